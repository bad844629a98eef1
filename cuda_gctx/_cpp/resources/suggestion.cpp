#include "resources/suggestion.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "resources/outcome.hpp"

namespace gctx {
namespace {

using Requests = std::vector<GroupRequest>;

// The counts that a suggestion can have for one group.
struct Range {
  unsigned count = 0;  // the current count; for an open group the fewest SMs that it needs
  unsigned least = 0;
  unsigned step = 0;
  bool is_seated = false;  // needs SMs of one GPC or locality domain, so that the sum of the counts does not decide
};

Range range_of(const Refused& refused, const GroupRequest& request) {
  const Need need = need_of(request, refused.grain);
  Range range{.step = need.grain, .is_seated = !need.is_loose() || request.locality_domain.has_value()};
  if (need.is_promised() && !refused.driver.has(Feature::structured_split)) {
    range.step = std::max(range.step, refused.grain.alignment);  // only whole units keep the promise
  }
  range.least = need.count || !need.is_loose() ? round_up(need.least, range.step) : pair_size;
  return range;
}

// Shrinks the groups of a request until it fits: the largest group first, by its grain. The result is good, not
// optimal. Returns nullopt if the smallest counts do not fit.
std::optional<Requests> smaller_that_fits(const Refused& refused, Requests requests) {
  std::vector<Range> ranges;
  std::uint64_t least = 0;
  for (const GroupRequest& request : requests) {
    ranges.push_back(range_of(refused, request));
    least += ranges.back().least;
    if (least > refused.sm_count ||
        (refused.splitter != nullptr && !refused.splitter->can_promise(need_of(request, refused.grain)))) {
      return std::nullopt;
    }
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    Range& range = ranges[i];
    const auto most = static_cast<unsigned>(refused.sm_count - (least - range.least));  // the others keep their least
    const unsigned asked = round_up(std::min(requests[i].count.value_or(0), most), range.step);
    range.count = std::max(std::min(asked, round_down(most, range.step)), range.least);
    total += range.count;
  }
  const auto shrink_largest = [&](bool only_seated) {
    Range* largest = nullptr;
    for (Range& range : ranges) {
      const bool can_shrink = range.count > range.least && (range.is_seated || !only_seated);
      largest = can_shrink && (largest == nullptr || range.count > largest->count) ? &range : largest;
    }
    if (largest != nullptr) {
      largest->count -= largest->step;
      total -= largest->step;
    }
    return largest != nullptr;
  };
  while (total > refused.sm_count && shrink_largest(false)) {
  }
  do {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (requests[i].count) {
        requests[i].count = ranges[i].count;
      }
    }
    if (refused.fits(requests)) {
      return requests;
    }
  } while (shrink_largest(true) || shrink_largest(false));
  return std::nullopt;
}

std::optional<Requests> suggestion_for(const Refused& refused, const Requests& requests) {
  if (requests.size() == 1 && requests.front().count.value_or(0) >= refused.sm_count) {
    Requests all = requests;
    all.front().count.reset();
    if (refused.fits(all)) {
      return all;
    }
  }
  return smaller_that_fits(refused, requests);
}

std::string list_text(const Requests& requests) {
  constexpr std::size_t most_shown = 24;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(requests.size(), most_shown); ++i) {
    text += (i > 0 ? ", " : "") + (requests[i].count ? std::to_string(*requests[i].count) : std::string("None"));
  }
  return text + (requests.size() > most_shown ? ", ... " + std::to_string(requests.size()) + " in all]" : "]");
}

// Counts the first groups that fit if each is as small as it can be.
std::size_t groups_that_fit(const Refused& refused, const Requests& requests) {
  std::size_t groups = 0;
  unsigned total = 0;
  for (const GroupRequest& request : requests) {
    total += need_of(request, refused.grain).least;
    if (total > refused.sm_count) {
      break;
    }
    ++groups;
  }
  return groups;
}

std::string what_would_help(const Refused& refused, const Requests& requests) {
  const unsigned alignment = refused.grain.alignment;
  for (const GroupRequest& request : requests) {
    const bool promised = need_of(request, refused.grain).is_promised();
    if (promised && request.coscheduled != alignment && !refused.driver.has(Feature::structured_split)) {
      return "coscheduled_sm_count=" + std::to_string(request.coscheduled) +
             " needs the structured split of CUDA driver 13.1 or newer, this driver is " +
             version_text(refused.driver.version());
    }
  }
  std::uint64_t exact = 0;
  for (const GroupRequest& request : requests) {
    exact += request.count ? round_up(std::min(*request.count, refused.sm_count + 1), pair_size) : pair_size;
  }
  const bool asked =
      std::all_of(requests.begin(), requests.end(), [](const auto& request) { return request.backfill; });
  if (!asked && alignment > pair_size && exact <= refused.sm_count) {
    return "with backfill=True it would fit, with no promise of thread-block clusters above 2";
  }
  return {};
}

std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

}  // namespace

void refuse(const Refused& refused, const Requests& requests) {
  SplitFailure failure("cannot split groups of " + list_text(requests) + " SMs off " +
                       std::to_string(refused.sm_count) + " SMs (alignment " + std::to_string(refused.grain.alignment) +
                       ")");
  failure.suggestion = suggestion_for(refused, requests);
  const bool keeps_options = failure.suggestion.has_value();
  const auto open = std::count_if(requests.begin(), requests.end(), [](const auto& request) { return !request.count; });
  if (!keeps_options && open <= 1) {  // several open groups need the domains that they name
    Requests plain = requests;
    for (GroupRequest& request : plain) {
      request.coscheduled = 0;
      request.preferred = 0;
      request.locality_domain.reset();
      request.supplemental = false;
    }
    failure.suggestion = suggestion_for(refused, plain);
  }
  std::string fitting;
  if (failure.suggestion) {
    fitting = "a request that fits is " + list_text(*failure.suggestion);
    failure.advice = keeps_options ? "" : "it drops co-scheduling and locality";
  } else if (const std::size_t groups = groups_that_fit(refused, requests); groups < requests.size()) {
    failure.advice = "no request of " + std::to_string(requests.size()) + " groups fits, " + std::to_string(groups) +
                     " of the smallest size do";
  } else {
    failure.advice = "no smaller request fits";
  }
  failure.advice = joined(failure.advice, open > 1 ? "" : what_would_help(refused, requests));
  failure.message += ": " + joined(fitting, failure.advice);
  throw failure;
}

}  // namespace gctx
