#include "resources/split.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace gctx {
namespace {

// Without co-scheduling, SMs come in pairs (texture processing clusters) on every chip that has green contexts.
constexpr unsigned fine_grain = 2;

unsigned round_up(unsigned n, unsigned grain) { return (n + grain - 1) / grain * grain; }

// What one group really needs, once the grain of the resource is known.
struct Need {
  GroupRequest request;
  std::optional<unsigned> count;  // rounded up; nothing: everything left
  unsigned grain = 0;
  bool fine = false;  // may be built out of pairs of SMs
};

using Needs = InlineVector<Need, 4>;

struct Grain {
  unsigned alignment = 0;
  unsigned minimum = 0;
};

Need need_of(const GroupRequest& request, Grain grain) {
  const bool asks_for_pairs = request.backfill || request.coscheduled == fine_grain;
  // Where the alignment is a pair (before 9.0, and in what is left over), nothing is lost by building out of pairs.
  Need need{request, request.count, 0, asks_for_pairs || grain.alignment <= fine_grain};
  need.grain = request.backfill ? fine_grain : request.coscheduled != 0 ? request.coscheduled : grain.alignment;
  if (need.count && !request.backfill) {
    const unsigned least = asks_for_pairs ? fine_grain : grain.minimum;
    need.count = round_up(std::max(*need.count, least), need.grain);
  }
  return need;
}

Needs needs_of(const std::vector<GroupRequest>& requests, Grain grain) {
  Needs needs;
  for (const auto& request : requests) {
    needs.push_back(need_of(request, grain));
  }
  return needs;
}

// Beyond any device it says so, whatever was asked, and does not wrap around.
unsigned finite_total(const Needs& needs) {
  std::uint64_t total = 0;
  for (const Need& need : needs) {
    total += need.count.value_or(0);
  }
  return static_cast<unsigned>(std::min<std::uint64_t>(total, std::numeric_limits<unsigned>::max()));
}

bool all_fine(const Needs& needs) {
  return std::all_of(needs.begin(), needs.end(), [](const Need& need) { return need.fine; });
}

// Pieces of one by-count split: equal units and whatever the driver had left.
struct Cut {
  std::shared_ptr<const SplitCall> call;
  Units units;
  unsigned unit_size = 0;
  CUdevResource rest{};
  unsigned rest_count = 0;
};

unsigned count_of(const CUdevResource& resource) {
  return resource.type == CU_DEV_RESOURCE_TYPE_SM ? resource.sm.smCount : 0;
}

// The driver's way of saying that a request does not fit, as opposed to something being wrong.
bool does_not_fit(CUresult result) {
  return result == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION || result == CUDA_ERROR_INVALID_VALUE;
}

class Splitter {
 public:
  Splitter(const Driver& driver, SmResourcePtr input, Grain grain, bool dry_run, const Requery& requery)
      : driver_(driver), input_(std::move(input)), grain_(grain), dry_run_(dry_run), requery_(requery) {}

  // Every way that asks for no context, best first. `reserve`: SMs that an open group must leave over.
  std::optional<SplitResult> in_one_call(const Needs& needs, unsigned reserve = 0) const {
    if (finite_total(needs) > input_->sm_count) {
      return std::nullopt;
    }
    if (auto result = structured(needs)) {
      return result;
    }
    if (auto result = composed(needs, reserve)) {
      return result;
    }
    return fine(needs);
  }

  // Two calls: the aligned groups first, then those that ask for no alignment, out of what is left over, which a
  // context makes splittable. Aligned SMs cannot be had out of a remainder, so nothing is gained by more calls.
  std::optional<SplitResult> bisected(const Needs& needs) const {
    Order aligned;
    Order fine;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      (needs[i].fine ? fine : aligned).push_back(i);
    }
    if (aligned.empty() || fine.empty() || finite_total(needs) > input_->sm_count) {
      return std::nullopt;
    }
    SplitResult result;
    result.groups.resize(needs.size());
    const bool served = serve(input_, needs, aligned, finite_total(chosen(needs, fine)), result) &&
                        result.remainder->sm_count != 0 && serve(requery_(result.remainder), needs, fine, 0, result);
    return served ? std::optional(std::move(result)) : std::nullopt;
  }

  // The grain that the driver really has, where it is coarser than what it says (seen on a card that says 8 and needs
  // 16).
  std::optional<Grain> real_grain() const {
    const auto cut = by_count(1, grain_.alignment, 0);
    if (!cut || cut->unit_size <= grain_.alignment) {
      return std::nullopt;
    }
    return Grain{cut->unit_size, cut->unit_size};
  }

 private:
  using Order = std::vector<std::size_t>;

  static Needs chosen(const Needs& needs, const Order& which) {
    Needs some;
    for (const std::size_t i : which) {
      some.push_back(needs[i]);
    }
    return some;
  }

  // One call for some of the groups; their places in `result` are filled, and the remainder is there for the next call.
  bool serve(const SmResourcePtr& from, const Needs& needs, const Order& which, unsigned reserve,
             SplitResult& result) const {
    const auto step = Splitter(driver_, from, grain_, dry_run_, requery_).in_one_call(chosen(needs, which), reserve);
    if (!step) {
      return false;
    }
    for (std::size_t i = 0; i < which.size(); ++i) {
      result.groups[which[i]] = relabelled(*step->groups[i]);
    }
    result.remainder = relabelled(*step->remainder);
    return true;
  }

  static SmResourcePtr relabelled(const SmResource& resource) {
    auto copy = std::make_shared<SmResource>(resource);
    if (copy->strategy != Strategy::none) {
      copy->strategy = Strategy::bisected;
    }
    return copy;
  }

  std::shared_ptr<SmResource> piece(const std::shared_ptr<const SplitCall>& call, Strategy strategy) const {
    auto result = std::make_shared<SmResource>();
    result->driver = input_->driver;
    result->device = input_->device;
    result->origin = call;
    result->strategy = strategy;
    result->dry_run = dry_run_;
    return result;
  }

  void add(SmResource& to, const CUdevResource& unit, std::size_t member) const {
    to.units.push_back(unit);
    to.members.push_back(static_cast<std::uint32_t>(member));
    to.sm_count += count_of(unit);
  }

  // What a set of SMs promises: the driver's own word where it gives one (13.1 and newer), else what it was built from.
  void describe(SmResource& piece, bool is_fine) const {
    const CUdevResource* only = piece.units.size() == 1 ? &piece.units.front() : nullptr;
    const bool told = only != nullptr && only->sm.minSmPartitionSize != 0 && only->sm.smCoscheduledAlignment != 0;
    const unsigned alignment = is_fine ? std::min(fine_grain, grain_.alignment) : grain_.alignment;
    piece.alignment = told ? only->sm.smCoscheduledAlignment : alignment;
    piece.min_partition_size = told ? only->sm.minSmPartitionSize : is_fine ? alignment : grain_.minimum;
    // Before 13.1 the driver has no such field and may leave anything in its place.
    piece.flags = only != nullptr && driver_.has(Feature::structured_split) ? only->sm.flags : 0;
  }

  std::optional<SplitResult> structured(const Needs& needs) const {
    if (!driver_.has(Feature::structured_split)) {
      return std::nullopt;
    }
    // Groups are served in order, each from what is left: "everything left" has to be served last.
    std::vector<std::size_t> order;
    for (const bool finite : {true, false}) {
      for (std::size_t i = 0; i < needs.size(); ++i) {
        if (needs[i].count.has_value() == finite) {
          order.push_back(i);
        }
      }
    }
    std::vector<CU_DEV_SM_RESOURCE_GROUP_PARAMS> params(needs.size());
    for (std::size_t at = 0; at < order.size(); ++at) {
      params[at] = structured_params(needs[order[at]]);
    }
    std::vector<CUdevResource> units(needs.size());
    CUdevResource rest{};
    const CUresult answer = driver_.cuDevSmResourceSplit(units.data(), static_cast<unsigned>(units.size()),
                                                         input_->units.data(), &rest, 0, params.data());
    if (does_not_fit(answer)) {
      return std::nullopt;
    }
    driver_.check(answer, "cuDevSmResourceSplit");
    const auto call = std::make_shared<const SplitCall>(SplitCall{input_});
    SplitResult result;
    result.groups.resize(needs.size());
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Need& need = needs[order[at]];
      if (count_of(units[at]) < std::max(need.count.value_or(1), 1U)) {
        return std::nullopt;
      }
      auto group = piece(call, Strategy::structured);
      add(*group, units[at], at);
      group->requested = need.request.count;
      describe(*group, need.fine);
      result.groups[order[at]] = std::move(group);
    }
    auto remainder = piece(call, Strategy::structured);
    if (count_of(rest) != 0) {
      add(*remainder, rest, order.size());
      describe(*remainder, true);
    }
    result.remainder = std::move(remainder);
    return result;
  }

  CU_DEV_SM_RESOURCE_GROUP_PARAMS structured_params(const Need& need) const {
    CU_DEV_SM_RESOURCE_GROUP_PARAMS params{};
    params.smCount = need.count.value_or(0);
    // Always said: a zero means the alignment up to 13.3 and no co-scheduling at all from 13.4 on.
    params.coscheduledSmCount = need.request.coscheduled != 0 ? need.request.coscheduled : grain_.alignment;
    params.preferredCoscheduledSmCount = need.request.preferred;
    if (need.request.backfill) {
      params.flags |= CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
      // A group that is to be filled up still has to hold one co-scheduled set.
      if (need.count && *need.count < params.coscheduledSmCount) {
        params.coscheduledSmCount = fine_grain;
      }
    }
    if (need.request.locality_domain) {
      params.flags |= CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID;
      params.localityDomainId = *need.request.locality_domain;
    }
    return params;
  }

  std::optional<Cut> by_count(unsigned groups, unsigned size, unsigned flags) const {
    Cut cut;
    cut.units.resize(groups);
    unsigned got = groups;
    const CUresult answer =
        driver_.cuDevSmResourceSplitByCount(cut.units.data(), &got, input_->units.data(), &cut.rest, flags, size);
    if (does_not_fit(answer)) {
      return std::nullopt;
    }
    driver_.check(answer, "cuDevSmResourceSplitByCount");
    if (got == 0) {
      return std::nullopt;
    }
    cut.units.resize(got);
    cut.unit_size = count_of(cut.units.front());
    cut.rest_count = count_of(cut.rest);
    cut.call = std::make_shared<const SplitCall>(SplitCall{input_});
    return cut;
  }

  // Whether the driver's by-count split can keep what the groups ask of co-scheduling, out of units of the alignment.
  bool alignment_suffices(const Needs& needs) const {
    return std::all_of(needs.begin(), needs.end(), [&](const Need& need) {
      const unsigned wanted = need.request.coscheduled;
      const bool held = wanted == 0 || (wanted <= grain_.alignment && grain_.alignment % wanted == 0);
      return held && !need.request.locality_domain && need.count.value_or(0) % grain_.alignment == 0;
    });
  }

  // Larger potential clusters are what a preference above the alignment asks for; before 13.1 a flag of the whole
  // split.
  unsigned aligned_flags(const Needs& needs) const {
    const bool larger = std::any_of(needs.begin(), needs.end(),
                                    [&](const Need& need) { return need.request.preferred > grain_.alignment; });
    return larger ? static_cast<unsigned>(CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) : 0U;
  }

  // Fine splits cannot be combined with the flag for larger clusters (the driver answers INVALID_VALUE).
  bool fine_suffices(const Needs& needs) const {
    return all_fine(needs) && aligned_flags(needs) == 0 &&
           std::none_of(needs.begin(), needs.end(),
                        [](const Need& need) { return need.request.locality_domain.has_value(); });
  }

  // One by-count split into equal units, out of which the groups are put together. Smallest units first: a unit of the
  // alignment lies inside one cluster of the chip, while the driver pieces larger ones together. (H200: a group of 16
  // made of two units of 8 holds 16 clusters of 8 blocks of 128 threads, the driver's own group of 16 holds 8.) Where
  // pairs of SMs are all there is, large units do.
  std::optional<SplitResult> composed(const Needs& needs, unsigned reserve) const {
    if (!alignment_suffices(needs)) {
      return std::nullopt;
    }
    unsigned common = 0;
    for (const Need& need : needs) {
      common = std::gcd(common, need.count.value_or(0));
    }
    const unsigned step = grain_.alignment;
    const unsigned largest = common != 0 ? common : step;
    for (unsigned at = step; at <= largest; at += step) {
      const unsigned unit = step > fine_grain ? at : largest + step - at;
      if (largest % unit == 0) {
        if (auto result = composed_of(unit, needs, reserve)) {
          return result;
        }
      }
    }
    return std::nullopt;
  }

  std::optional<SplitResult> composed_of(unsigned unit, const Needs& needs, unsigned reserve) const {
    const bool open = std::any_of(needs.begin(), needs.end(), [](const Need& need) { return !need.count; });
    // An open group is given whole units, so all of them are asked for; otherwise only those that are needed.
    const unsigned groups = (open ? input_->sm_count : finite_total(needs)) / unit;
    const auto cut = groups != 0 ? by_count(groups, unit, aligned_flags(needs)) : std::nullopt;
    // A driver may answer with smaller groups than asked for (seen where a remainder is split again).
    if (!cut || cut->unit_size != unit) {
      return std::nullopt;
    }
    return assembled(*cut, needs, Strategy::composed, false, reserve);
  }

  std::optional<SplitResult> fine(const Needs& needs) const {
    if (!fine_suffices(needs)) {
      return std::nullopt;
    }
    unsigned unit = 0;
    for (const Need& need : needs) {
      unit = std::gcd(unit, need.count.value_or(0));
    }
    const bool nothing_finite = unit == 0;
    if (nothing_finite) {
      unit = input_->sm_count / fine_grain * fine_grain;
    }
    const unsigned groups = nothing_finite ? 1 : finite_total(needs) / unit;
    const auto cut = unit != 0 ? by_count(groups, unit, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) : std::nullopt;
    if (!cut || cut->unit_size != unit) {
      return std::nullopt;
    }
    return assembled(*cut, needs, Strategy::fine, true, 0);
  }

  // Hands the units of a cut to the groups, in order; nothing if they are too few.
  std::optional<SplitResult> assembled(const Cut& cut, const Needs& needs, Strategy strategy, bool is_fine,
                                       unsigned reserve) const {
    const unsigned kept_back = reserve > cut.rest_count ? round_up(reserve - cut.rest_count, cut.unit_size) : 0;
    const unsigned finite_units = (finite_total(needs) + kept_back) / cut.unit_size;
    if (finite_units > cut.units.size()) {
      return std::nullopt;
    }
    const std::size_t spare = cut.units.size() - finite_units;
    const bool whole_units =
        std::all_of(needs.begin(), needs.end(), [&](const Need& need) { return need.count == cut.unit_size; });
    if (whole_units && !is_fine) {
      strategy = Strategy::by_count;
    }
    SplitResult result;
    result.groups.reserve(needs.size());
    std::size_t next = 0;
    bool rest_taken = false;
    for (const Need& need : needs) {
      auto group = piece(cut.call, strategy);
      const std::size_t take = need.count ? *need.count / cut.unit_size : spare;
      for (std::size_t i = 0; i < take; ++i, ++next) {
        add(*group, cut.units[next], next);
      }
      // "Everything left" of a group that asks for no co-scheduling includes what the driver had left over.
      const bool takes_rest = !need.count && need.fine && cut.rest_count != 0;
      if (takes_rest) {
        add(*group, cut.rest, cut.units.size());
        rest_taken = true;
      }
      if (group->sm_count == 0) {
        return std::nullopt;
      }
      group->requested = need.request.count;
      describe(*group, is_fine || takes_rest);
      result.groups.push_back(std::move(group));
    }
    auto remainder = piece(cut.call, strategy);
    for (; next < cut.units.size(); ++next) {
      add(*remainder, cut.units[next], next);
    }
    if (!rest_taken && cut.rest_count != 0) {
      add(*remainder, cut.rest, cut.units.size());
    }
    if (remainder->sm_count != 0) {
      describe(*remainder, true);
    }
    result.remainder = std::move(remainder);
    return result;
  }

  const Driver& driver_;
  SmResourcePtr input_;
  Grain grain_;
  bool dry_run_;
  const Requery& requery_;
};

// Shrinks the largest group step by step, then gives up groups, until one call can do it.
std::optional<std::vector<GroupRequest>> nearest_that_fits(const Splitter& splitter, std::vector<GroupRequest> requests,
                                                           Grain grain, unsigned available) {
  const auto least = [&](const GroupRequest& request) {
    GroupRequest smallest = request;
    smallest.count = fine_grain;
    return *need_of(smallest, grain).count;
  };
  // No group is smaller than a pair.
  requests.resize(std::min<std::size_t>(requests.size(), std::max(available / fine_grain, 1U)));
  for (GroupRequest& request : requests) {
    if (request.count) {
      const Need need = need_of(request, grain);
      const unsigned fitting = std::min(round_up(*need.count, need.grain), available / need.grain * need.grain);
      request.count = std::max(fitting, least(request));
    }
  }
  while (!requests.empty()) {
    if (splitter.in_one_call(needs_of(requests, grain))) {
      return requests;
    }
    auto largest = requests.end();
    for (auto it = requests.begin(); it != requests.end(); ++it) {
      if (it->count && *it->count > least(*it) && (largest == requests.end() || *it->count > *largest->count)) {
        largest = it;
      }
    }
    if (largest != requests.end()) {
      largest->count = *largest->count - need_of(*largest, grain).grain;
    } else {
      requests.pop_back();
    }
  }
  return std::nullopt;
}

std::string list_text(const std::vector<GroupRequest>& requests) {
  constexpr std::size_t most_told = 24;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(requests.size(), most_told); ++i) {
    text += (i > 0 ? ", " : "") + (requests[i].count ? std::to_string(*requests[i].count) : std::string("None"));
  }
  return text + (requests.size() > most_told ? ", ... " + std::to_string(requests.size()) + " in all]" : "]");
}

std::string what_would_help(const Driver& driver, const Splitter& splitter, const std::vector<GroupRequest>& requests,
                            Grain grain) {
  for (const auto& request : requests) {
    const bool held =
        request.coscheduled <= grain.alignment && grain.alignment % std::max(request.coscheduled, 1U) == 0;
    const bool exact = need_of(request, grain).count.value_or(0) % grain.alignment == 0;
    if (request.coscheduled > fine_grain && (!held || !exact) && !driver.has(Feature::structured_split)) {
      return "; coscheduled_sm_count=" + std::to_string(request.coscheduled) +
             " needs the structured split of CUDA driver 13.1 or newer, this driver is " +
             version_text(driver.version());
    }
  }
  if (std::all_of(requests.begin(), requests.end(), [](const GroupRequest& request) { return request.backfill; })) {
    return {};
  }
  auto relaxed = requests;
  for (auto& request : relaxed) {
    request.backfill = true;
    request.coscheduled = 0;
    if (request.count) {
      request.count = round_up(*request.count, fine_grain);
    }
  }
  if (grain.alignment > fine_grain && splitter.in_one_call(needs_of(relaxed, grain))) {
    return "; with backfill=True it would fit, with no promise of thread-block clusters above 2";
  }
  return {};
}

[[noreturn]] void refuse(const Driver& driver, const Splitter& splitter, const SmResource& input, Grain grain,
                         const std::vector<GroupRequest>& requests) {
  SplitFailure failure("cannot split groups of " + list_text(requests) + " SMs off " + std::to_string(input.sm_count) +
                       " SMs (alignment " + std::to_string(grain.alignment) + ")");
  failure.suggestion = nearest_that_fits(splitter, requests, grain, input.sm_count);
  if (!failure.suggestion) {
    // The co-scheduling itself is out of reach here: what fits without asking for it.
    auto plain = requests;
    for (auto& request : plain) {
      request.coscheduled = 0;
      request.preferred = 0;
      request.locality_domain.reset();
    }
    failure.suggestion = nearest_that_fits(splitter, plain, grain, input.sm_count);
  }
  failure.message +=
      failure.suggestion ? ": the nearest request that fits is " + list_text(*failure.suggestion) : ": no request fits";
  failure.message += what_would_help(driver, splitter, requests, grain);
  throw failure;
}

}  // namespace

SplitResult split(const Driver& driver, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                  bool dry_run, const Requery& requery) {
  driver.require(Feature::green_contexts);
  if (input->dry_run) {
    fail_value("this SMResource is the result of a dry run: repeat the split without dry_run to use it");
  }
  if (input->sm_count == 0) {
    throw SplitFailure("an SMResource with no SMs cannot be split");
  }
  for (const auto& request : requests) {
    if (request.locality_domain) {
      driver.require(Feature::locality_domains);
    }
  }
  const SmResourcePtr source = input->splittable ? input : requery(input);
  const Grain grain{std::max(source->alignment, 1U), std::max(source->min_partition_size, 1U)};
  const Splitter splitter(driver, source, grain, dry_run, requery);

  const bool odd = std::any_of(requests.begin(), requests.end(), [](const GroupRequest& request) {
    return request.backfill && request.count.value_or(0) % fine_grain != 0;
  });
  if (!odd) {
    const Needs needs = needs_of(requests, grain);
    if (auto result = splitter.in_one_call(needs)) {
      return std::move(*result);
    }
    if (const auto coarser = splitter.real_grain()) {
      const Splitter again(driver, source, *coarser, dry_run, requery);
      if (auto result = again.in_one_call(needs_of(requests, *coarser))) {
        return std::move(*result);
      }
      refuse(driver, again, *source, *coarser, requests);
    }
    if (auto result = splitter.bisected(needs)) {
      return std::move(*result);
    }
  }
  refuse(driver, splitter, *source, grain, requests);
}

}  // namespace gctx
