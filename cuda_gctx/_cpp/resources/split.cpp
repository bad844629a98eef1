#include "resources/split.hpp"

#include <algorithm>

#include "resources/splitter.hpp"
#include "resources/suggestion.hpp"

namespace gctx {
namespace {

Grain grain_of(const SmResource& resource) {
  return {std::max(resource.alignment, 1U), std::max(resource.min_partition_size, 1U)};
}

// Returns whether the number of SMs alone decides if a request fits: no group needs co-scheduling or a domain.
bool counting_decides(const Needs& needs) {
  return std::all_of(needs.begin(), needs.end(), [](const Need& need) {
    return !need.request.locality_domain && (need.is_loose() || (need.count && !need.is_promised()));
  });
}

bool counts_fit(const Needs& needs, unsigned sm_count) {
  return std::uint64_t{needs.total()} + (needs.has_open() ? pair_size : 0) <= sm_count;
}

// Returns whether the pieces of a group or remainder are known without a call of the driver: all are pairs of SMs,
// which any resource can give, and the driver has no better way.
bool pieces_are_known(const Needs& needs, const SmResource& input, bool has_structured) {
  const bool of_pairs = std::all_of(needs.begin(), needs.end(), [&](const Need& need) {
    const bool hint = need.request.backfill && need.request.coscheduled > pair_size;
    return need.is_loose() && !need.request.locality_domain && !(hint && has_structured);
  });
  const bool has_odd_sizes = std::any_of(
      needs.begin(), needs.end(), [&](const Need& need) { return need.count.value_or(0) % input.alignment != 0; });
  return of_pairs && (input.alignment <= pair_size || (has_odd_sizes && !has_structured));
}

SplitResult split_source(const Driver& driver, const SmResourcePtr& source, Grain grain,
                         const std::vector<GroupRequest>& requests, bool dry_run, const Requery& requery) {
  Splitter splitter(driver, source, grain, dry_run, requery);
  if (const Needs needs(requests, grain); !needs.any_odd()) {
    if (auto result = splitter.as_asked(needs)) {
      return result;
    }
    if (const auto coarser = splitter.real_grain()) {
      splitter = Splitter(driver, source, *coarser, dry_run, requery);
      if (auto result = splitter.as_asked(Needs(requests, *coarser))) {
        return result;
      }
    }
    if (auto result = splitter.loosened(Needs(requests, splitter.grain()))) {
      return result;
    }
  }
  const Splitter dry(driver, source, splitter.grain(), true, requery);
  const auto fits = [&](const std::vector<GroupRequest>& others) {
    const Needs needs(others, dry.grain());
    return dry.as_asked(needs) || dry.loosened(needs);
  };
  refuse({driver, splitter.grain(), source->sm_count, &dry, fits}, requests);
}

}  // namespace

SplitResult split(const Driver& driver, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                  bool dry_run, const Requery& requery) {
  driver.require(Feature::green_contexts);
  if (input->dry_run) {
    fail_value("a dry-run SMResource cannot be split: repeat its split without dry_run");
  }
  if (input->sm_count == 0) {
    throw SplitFailure("an SMResource with no SMs cannot be split");
  }
  for (const GroupRequest& request : requests) {
    if (request.locality_domain) {
      driver.require(Feature::locality_domains);
    }
    if (request.supplemental) {
      driver.require(Feature::supplemental_sms);
    }
  }
  if (input->splittable) {
    return split_source(driver, input, grain_of(*input), requests, dry_run, requery);
  }

  // A query of a context is the last resort: the context costs a millisecond, and memory that the driver keeps.
  const Grain grain = grain_of(*input);
  const Needs needs(requests, grain);
  if (counting_decides(needs)) {
    const auto fits = [&](const std::vector<GroupRequest>& others) {
      const Needs smaller(others, grain);
      return counting_decides(smaller) && counts_fit(smaller, input->sm_count);
    };
    if (needs.any_odd() || !counts_fit(needs, input->sm_count)) {
      refuse({driver, grain, input->sm_count, nullptr, fits}, requests);
    }
    const bool has_structured = driver.has(Feature::structured_split);
    if (dry_run && pieces_are_known(needs, *input, has_structured)) {
      const Splitter splitter(driver, input, grain, true, requery);
      return splitter.known_pieces(needs, has_structured ? Strategy::structured : Strategy::fine);
    }
  }
  // The resource of a context has a smaller minimum than its group. The larger one keeps the meaning of requests.
  const SmResourcePtr source = requery(input);
  Grain finer = grain_of(*source);
  finer.minimum = std::max(finer.minimum, grain.minimum);
  return split_source(driver, source, finer, requests, dry_run, requery);
}

}  // namespace gctx
