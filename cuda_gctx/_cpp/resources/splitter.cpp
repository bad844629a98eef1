#include "resources/splitter.hpp"

#include <algorithm>
#include <utility>

namespace gctx {
namespace {

unsigned count_of(const CUdevResource& resource) {
  return resource.type == CU_DEV_RESOURCE_TYPE_SM ? resource.sm.smCount : 0;
}

// Returns whether the driver says that a request does not fit. Other errors are failures.
bool does_not_fit(CUresult result) {
  return result == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION || result == CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// The pieces of one by-count split: equal units and the remainder. Without units if the split does not fit.
struct Splitter::Cut {
  Resources units;
  unsigned unit_size = 0;
  CUdevResource rest{};
};

// The pieces of a split under construction; the last is the remainder. The block of a split into one group has the size
// of three pieces. malloc caches blocks of up to 1032 bytes per thread.
static_assert(3 * sizeof(SmResource) <= 1032);
class Splitter::Pieces {
 public:
  Pieces(const Splitter& splitter, std::size_t groups, Strategy strategy)
      : splitter_(splitter), groups_(groups), block_(std::make_shared<Piece[]>(groups + 1)) {
    remainder().dealt.parent = *splitter.input_;
    for (std::size_t i = 0; i <= groups; ++i) {
      SmResource& piece = block_[static_cast<std::ptrdiff_t>(i)];
      piece.driver = splitter.input().driver;
      piece.device = splitter.input().device;
      piece.origin = &remainder().dealt;
      piece.strategy = splitter.label_.value_or(strategy);
      piece.dry_run = splitter.dry_run_;
    }
  }

  SmResource& operator[](std::size_t at) { return block_[static_cast<std::ptrdiff_t>(at)]; }
  SmResource& remainder() { return (*this)[groups_]; }

  // Adds a part to a piece. `member`: the number of the part in the split.
  static void add(SmResource& to, const CUdevResource& part, std::size_t member) {
    to.units.push_back(part);
    to.members.push_back(static_cast<std::uint32_t>(member));
    to.sm_count += count_of(part);
  }

  // Sets the grain of a piece: the driver's own values if it reports them (13.1 and newer), else those of the strategy.
  // `coscheduled` is the promise of the piece: the driver's value holds only for at least one set.
  void describe(SmResource& piece, bool is_loose, unsigned coscheduled) const {
    const Grain grain = splitter_.grain_;
    const CUdevResource* only = piece.units.size() == 1 ? &piece.units.front() : nullptr;
    const bool is_known = only != nullptr && only->sm.minSmPartitionSize != 0 && only->sm.smCoscheduledAlignment != 0;
    const unsigned alignment = is_loose ? std::min(pair_size, grain.alignment) : grain.alignment;
    piece.alignment = is_known ? only->sm.smCoscheduledAlignment : alignment;
    piece.min_partition_size = is_known ? only->sm.minSmPartitionSize : is_loose ? alignment : grain.minimum;
    piece.coscheduled = coscheduled;
    // Before 13.1 the driver has no such field and may leave anything in its place.
    piece.flags = only != nullptr && splitter_.driver_->has(Feature::structured_split) ? only->sm.flags : 0;
  }

  SplitResult result() && { return {std::move(block_), groups_}; }

 private:
  const Splitter& splitter_;
  std::size_t groups_;
  std::shared_ptr<Piece[]> block_;
};

// ---- the order of the strategies

SplitResult Splitter::as_asked(const Needs& needs) const {
  const bool possible = std::all_of(needs.begin(), needs.end(), [&](const Need& need) { return can_promise(need); });
  if (!possible || needs.total() > sm_count()) {
    return {};
  }
  if (!needs.has_open() || needs[needs.open()].is_loose()) {
    return at_once(needs);
  }
  // An open aligned group gets the largest count that fits and that a request could name, whatever strategy serves.
  Need open = needs[needs.open()];
  const unsigned most = round_down(sm_count() - needs.total(), open.grain);
  for (unsigned count = most; count != 0 && count >= open.least; count -= open.grain) {
    open.count = count;
    if (auto result = at_once(needs.with(needs.open(), open))) {
      return result;
    }
  }
  return {};
}

SplitResult Splitter::loosened(const Needs& needs) const {
  // No aligned SMs would remain for an open group.
  if (needs.total() > sm_count() || (needs.has_open() && !needs[needs.open()].is_loose())) {
    return {};
  }
  Order aligned;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    if (needs[i].placement == Placement::aligned) {
      aligned.push_back(static_cast<std::uint32_t>(i));
    }
  }
  std::sort(aligned.begin(), aligned.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(*needs[a].count, b) < std::pair(*needs[b].count, a);
  });
  Needs trial = needs;
  for (const std::uint32_t i : aligned) {
    Need loose = trial[i];
    loose.placement = Placement::loose;
    trial = trial.with(i, loose);
    if (auto result = at_once(trial)) {
      return result;
    }
  }
  return {};
}

SplitResult Splitter::at_once(const Needs& needs) const {
  auto result = in_one_call(needs);
  if (!result) {
    result = bisected(needs);
  }
  return result;
}

SplitResult Splitter::in_one_call(const Needs& needs) const {
  const bool has_structured = driver_->has(Feature::structured_split);
  auto result = has_structured ? structured(needs, Fill::none) : composed(needs);
  for (const Fill fill : {Fill::beyond_sets, Fill::pairs}) {
    if (!result && has_structured) {
      result = structured(needs, fill);
    }
  }
  if (!result && has_structured) {
    result = composed(needs);
  }
  if (!result) {
    result = fine(needs);
  }
  return result;
}

// Splits twice: first the groups that need co-scheduling, then the loose groups, as pairs of the remainder, which a
// context makes splittable. A remainder has no aligned SMs, so more splits gain nothing.
SplitResult Splitter::bisected(const Needs& needs) const {
  Needs held;
  Needs loose;
  for (Need need : needs) {
    if (need.is_loose()) {
      need.request.coscheduled = 0;  // pairs, whatever the request asked for
      loose.add(need);
    } else {
      held.add(need);
    }
  }
  if (held.empty() || loose.empty() || loose.any_local()) {
    return {};
  }
  const auto first = labelled(Strategy::bisected).in_one_call(held);
  const unsigned due = loose.total() + (loose.has_open() ? pair_size : 0);
  if (!first || first.remainder()->sm_count < due) {
    return {};
  }
  const Grain pairs{pair_size, pair_size};
  const SmResourcePtr source = dry_run_ ? first.remainder() : (*requery_)(first.remainder());
  const Splitter rest = Splitter(*driver_, source, pairs, dry_run_, *requery_).labelled(Strategy::bisected);
  const auto second = dry_run_ ? rest.known_pieces(loose, Strategy::bisected) : rest.in_one_call(loose);
  if (!second) {
    return {};
  }
  Pieces pieces(*this, needs.size(), Strategy::bisected);
  std::size_t next_held = 0;
  std::size_t next_loose = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    pieces[i].copy(needs[i].is_loose() ? second.group(next_loose++) : first.group(next_held++));
  }
  pieces.remainder().copy(second.remainder());
  return std::move(pieces).result();
}

Splitter Splitter::labelled(Strategy label) const {
  Splitter copy = *this;
  copy.label_ = label;
  return copy;
}

SplitResult Splitter::known_pieces(const Needs& needs, Strategy strategy) const {
  unsigned left = sm_count() - needs.total();
  Pieces pieces(*this, needs.size(), strategy);
  const auto fill = [&](std::size_t at, unsigned count) {
    SmResource& piece = pieces[at];
    piece.sm_count = count;
    piece.members.push_back(static_cast<std::uint32_t>(at));
    if (count != 0) {
      piece.alignment = piece.min_partition_size = pair_size;
    }
  };
  for (std::size_t i = 0; i < needs.size(); ++i) {
    fill(i, needs[i].count ? *needs[i].count : std::exchange(left, 0));
    pieces[i].requested = needs[i].request.count;
  }
  fill(needs.size(), left);
  return std::move(pieces).result();
}

// ---- the structured split

bool Splitter::can_promise(const Need& need) const {
  if (!need.is_promised() || driver_->has(Feature::structured_split)) {
    return true;
  }
  // A unit of the alignment keeps each co-scheduling that divides the alignment.
  const unsigned coscheduled = need.request.coscheduled;
  return need.count ? grain_.alignment % coscheduled == 0 : grain_.alignment == coscheduled;
}

// Returns the order of the groups in the driver's array, which serves each group from the remaining SMs. Large sets
// come first, because small sets fit into the rest, and not vice versa. Loose groups follow, and an open group is the
// last.
Splitter::Order Splitter::service_order(const Needs& needs) {
  Order order;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    order.push_back(static_cast<std::uint32_t>(i));
  }
  const auto rank = [&](std::uint32_t i) {
    const Need& need = needs[i];
    return !need.count ? 2U : need.is_loose() ? 1U : 0U;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : rank(a) == 0 && needs[a].grain > needs[b].grain;
  });
  return order;
}

// Returns whether a group of pairs gets whole sets, because its count is a multiple of the set.
bool Splitter::is_whole_sets(const Need& need) const {
  const GroupRequest& request = need.request;
  const unsigned set = std::max(request.coscheduled, grain_.alignment);
  return need.asks_for_pairs() && need.count && *need.count % set == 0 && set > pair_size;
}

Splitter::Params Splitter::params_of(const Need& need, Fill fill) const {
  const GroupRequest& request = need.request;
  Params params{};
  params.smCount = need.count.value_or(0);
  // Always set: zero means the alignment up to 13.3, and no co-scheduling from 13.4 on.
  params.coscheduledSmCount = request.coscheduled != 0 ? request.coscheduled : grain_.alignment;
  params.preferredCoscheduledSmCount = request.preferred;
  if (fill == Fill::none && is_whole_sets(need)) {
    params.coscheduledSmCount = std::max(request.coscheduled, grain_.alignment);
  } else if (request.backfill) {
    params.flags |= CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
    if (fill == Fill::pairs || (need.count && *need.count < params.coscheduledSmCount)) {
      params.coscheduledSmCount = pair_size;
    }
  } else if (need.is_loose()) {
    params.coscheduledSmCount = pair_size;
    if (request.coscheduled == 0) {
      params.preferredCoscheduledSmCount = std::max(request.preferred, grain_.alignment);
    }
  }
  // The driver accepts only multiples of the co-scheduling, which meets a smaller preference.
  params.preferredCoscheduledSmCount = round_down(params.preferredCoscheduledSmCount, params.coscheduledSmCount);
  if (request.locality_domain) {
    params.flags |= CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID;
    params.localityDomainId = *request.locality_domain;
    if (request.supplemental) {
      params.flags |= CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
    }
  }
  return params;
}

SplitResult Splitter::structured(const Needs& needs, Fill fill) const {
  // Skips a call with the same parameters as the call before.
  const bool differs = std::any_of(needs.begin(), needs.end(), [&](const Need& need) {
    return fill == Fill::none ? true : fill == Fill::beyond_sets ? is_whole_sets(need) : need.request.backfill;
  });
  if (!differs) {
    return {};
  }
  const Order order = service_order(needs);
  InlineVector<Params, 8> params;
  for (const std::uint32_t i : order) {
    params.push_back(params_of(needs[i], fill));
  }
  Resources units;
  units.resize(needs.size());
  CUdevResource rest{};
  const CUresult answer = driver_->cuDevSmResourceSplit(units.data(), static_cast<unsigned>(units.size()),
                                                        input().units.data(), &rest, 0, params.data());
  if (does_not_fit(answer)) {
    return {};
  }
  driver_->check(answer, "cuDevSmResourceSplit");
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::optional<unsigned> count = needs[order[at]].count;
    if (count ? count_of(units[at]) != *count : count_of(units[at]) == 0) {
      return {};
    }
  }
  Pieces pieces(*this, needs.size(), Strategy::structured);
  for (std::size_t at = 0; at < order.size(); ++at) {
    const Need& need = needs[order[at]];
    SmResource& piece = pieces[order[at]];
    Pieces::add(piece, units[at], at);
    piece.requested = need.request.count;
    const bool is_filled = (params[at].flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
    pieces.describe(piece, need.is_loose(), is_filled ? pair_size : params[at].coscheduledSmCount);
  }
  if (count_of(rest) != 0) {
    Pieces::add(pieces.remainder(), rest, order.size());
    pieces.describe(pieces.remainder(), true, pair_size);
  }
  return std::move(pieces).result();
}

// ---- the split by count

Splitter::Cut Splitter::by_count(unsigned groups, unsigned size, unsigned flags) const {
  Cut cut;
  cut.units.resize(groups);
  unsigned returned = groups;
  const CUresult answer =
      driver_->cuDevSmResourceSplitByCount(cut.units.data(), &returned, input().units.data(), &cut.rest, flags, size);
  if (does_not_fit(answer)) {
    returned = 0;
  } else {
    driver_->check(answer, "cuDevSmResourceSplitByCount");
  }
  cut.units.resize(returned);
  cut.unit_size = returned != 0 ? count_of(cut.units.front()) : 0;
  return cut;
}

std::optional<Grain> Splitter::real_grain() const {
  const unsigned nominal = std::max(grain_.alignment, grain_.minimum);
  const Cut cut = grain_.alignment > pair_size ? by_count(1, nominal, 0) : Cut{};
  if (cut.unit_size <= nominal) {
    return {};
  }
  return Grain{cut.unit_size, cut.unit_size};
}

// Returns whether the counts and promises of the groups allow units of the alignment.
bool Splitter::units_suffice(const Needs& needs) const {
  return !needs.any_local() && std::all_of(needs.begin(), needs.end(), [&](const Need& need) {
    const bool held = !need.is_promised() || grain_.alignment % need.request.coscheduled == 0;
    return held && need.count.value_or(0) % grain_.alignment == 0;
  });
}

// Composes the groups from the equal units of one by-count split. Units of the alignment come first: each lies in one
// GPC, so they keep a promise and hold the most clusters. If they are too few, the driver composes larger units from
// several GPCs, of which the largest hold the most clusters. (H200, clusters of 8 blocks of 128 threads: a unit of 8
// holds 8, each of eight groups of 16 holds 8, each of two groups of 64 holds 56, and one group of 128 holds 124.)
SplitResult Splitter::composed(const Needs& needs) const {
  const unsigned step = grain_.alignment;
  const unsigned common = needs.common_divisor();
  const bool suffice = common != 0 && units_suffice(needs);
  const bool has_sets = step > pair_size;
  auto result = suffice && has_sets ? composed_of(step, needs) : SplitResult();
  if (!suffice || result || needs.any_promised()) {
    return result;
  }
  for (unsigned unit = common; !result && unit >= (has_sets ? 2 * step : step); unit -= step) {
    if (common % unit == 0) {
      result = composed_of(unit, needs);
    }
  }
  return result;
}

SplitResult Splitter::composed_of(unsigned unit, const Needs& needs) const {
  // A preference above the alignment asks for larger potential clusters. Before 13.1, this is a flag of the whole
  // split.
  const bool prefers = std::any_of(needs.begin(), needs.end(),
                                   [&](const Need& need) { return need.request.preferred > grain_.alignment; });
  if (prefers) {
    if (auto result = composed_of(unit, needs, CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE)) {
      return result;
    }
  }
  return composed_of(unit, needs, 0);
}

SplitResult Splitter::composed_of(unsigned unit, const Needs& needs, unsigned flags) const {
  const unsigned groups = needs.total() / unit;
  const Cut cut = by_count(groups, unit, flags);
  // A driver may return smaller groups than requested (seen: a second split of a remainder).
  const bool served = cut.unit_size == unit && cut.units.size() == groups;
  if (!served || (needs.has_open() && count_of(cut.rest) == 0)) {
    return {};
  }
  const bool whole_units =
      std::all_of(needs.begin(), needs.end(), [&](const Need& need) { return need.count == unit; });
  const Strategy strategy = whole_units ? Strategy::by_count : Strategy::composed;
  // Within a group or remainder, pairs are the same whichever call created them.
  const bool of_pairs = grain_.alignment <= pair_size && !is_whole();
  return assembled(cut, needs, of_pairs ? Strategy::fine : strategy, false);
}

SplitResult Splitter::fine(const Needs& needs) const {
  if (!needs.all_loose() || needs.any_local()) {
    return {};
  }
  const unsigned common = needs.common_divisor();
  const unsigned unit = common != 0 ? common : round_down(sm_count(), pair_size);
  const unsigned groups = common != 0 ? needs.total() / unit : 1;
  const Cut cut = unit != 0 ? by_count(groups, unit, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) : Cut{};
  const bool served = cut.unit_size == unit && cut.units.size() == groups;
  if (!served || (needs.has_open() && common != 0 && count_of(cut.rest) == 0)) {
    return {};
  }
  return assembled(cut, needs, Strategy::fine, true);
}

// Assigns the units of a cut to the groups, in order. An open group gets the rest. No group has units and the rest:
// from 13.1 on, the driver refuses a context over parts of different alignment.
SplitResult Splitter::assembled(const Cut& cut, const Needs& needs, Strategy strategy, bool is_loose) const {
  Pieces pieces(*this, needs.size(), strategy);
  // A unit of the alignment lies in one GPC. A larger unit may span several GPCs.
  const bool holds_sets = !is_loose && cut.unit_size == grain_.alignment;
  bool rest_is_free = count_of(cut.rest) != 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const Need& need = needs[i];
    SmResource& piece = pieces[i];
    const bool takes_units = need.count || needs.total() == 0;
    if (takes_units) {
      const unsigned count = need.count.value_or(cut.unit_size);
      piece.units.reserve(count / cut.unit_size);
      for (unsigned assigned = 0; assigned < count; assigned += cut.unit_size, ++next) {
        Pieces::add(piece, cut.units[next], next);
      }
    } else {
      Pieces::add(piece, cut.rest, cut.units.size());
      rest_is_free = false;
    }
    piece.requested = need.request.count;
    pieces.describe(piece, is_loose || !takes_units, holds_sets && takes_units ? grain_.alignment : pair_size);
  }
  if (rest_is_free) {
    Pieces::add(pieces.remainder(), cut.rest, cut.units.size());
    pieces.describe(pieces.remainder(), true, pair_size);
  }
  return std::move(pieces).result();
}

}  // namespace gctx
