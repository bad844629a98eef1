#include "resources/nearest.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "resources/outcome.hpp"

namespace gctx {
namespace {

// The counts that one group may have, and how many SMs the groups up to it may take together.
struct Choice {
  std::size_t group = 0;
  unsigned asked = 0;
  unsigned least = 0;
  unsigned most = 0;
  unsigned step = 0;
  unsigned room = 0;
};

struct Candidate {
  std::uint64_t cost = 0;
  std::vector<GroupRequest> requests;
};

constexpr std::uint64_t impossible = std::numeric_limits<std::uint64_t>::max();

// The distance from what was asked, in SMs; of equals, that which takes from the larger groups.
std::uint64_t cost_of(const Choice& choice, unsigned count, unsigned sm_count) {
  const unsigned distance = count < choice.asked ? choice.asked - count : count - choice.asked;
  const std::uint64_t taken = choice.most - count;
  return (std::uint64_t{distance} << 32) + taken * (sm_count - std::min(choice.asked, sm_count));
}

// The cheapest counts that keep to the room of each, by going through the groups one after the other and keeping the
// cheapest way to every total. Counts are even, so that totals are counted in pairs.
std::optional<Candidate> cheapest(const std::vector<Choice>& choices, const std::vector<GroupRequest>& requests,
                                  unsigned sm_count) {
  const std::size_t totals = sm_count / pair_size + 1;
  std::vector<std::uint64_t> cost(totals, impossible);
  cost[0] = 0;
  std::vector<std::vector<unsigned>> taken;  // by choice and total: the count that leads there
  for (const Choice& choice : choices) {
    std::vector<std::uint64_t> next(totals, impossible);
    taken.emplace_back(totals, 0);
    for (unsigned count = choice.least; count <= choice.most; count += choice.step) {
      const std::uint64_t own = cost_of(choice, count, sm_count);
      const std::size_t last = std::min(choice.room, sm_count) / pair_size;
      for (std::size_t total = count / pair_size; total <= last; ++total) {
        const std::uint64_t before = cost[total - count / pair_size];
        if (before != impossible && before + own < next[total]) {
          next[total] = before + own;
          taken.back()[total] = count;
        }
      }
    }
    cost = std::move(next);
  }
  const auto best = std::min_element(cost.begin(), cost.end());
  if (*best == impossible) {
    return std::nullopt;
  }
  Candidate candidate{*best, requests};
  auto total = static_cast<std::size_t>(best - cost.begin());
  for (std::size_t at = choices.size(); at-- > 0;) {
    const unsigned count = taken[at][total];
    total -= count / pair_size;
    if (candidate.requests[choices[at].group].count) {
      candidate.requests[choices[at].group].count = count;
    }
  }
  return candidate;
}

class Nearest {
 public:
  Nearest(const Refused& refused, const std::vector<GroupRequest>& requests)
      : refused_(refused), requests_(requests), needs_(needs_of(requests, refused.grain)) {
    const std::size_t open = open_group(needs_);
    holds_back_ = open != needs_.size() && !needs_[open].is_loose();
    for (std::size_t i = 0; i < needs_.size(); ++i) {
      order_.push_back(i);
    }
    // Large sets leave room for small ones; what may sit anywhere comes last.
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  }

  std::optional<std::vector<GroupRequest>> find() const {
    std::uint64_t least = 0;
    for (const Need& need : needs_) {
      least += need.least;
      if (refused_.splitter != nullptr && !refused_.splitter->can_promise(need)) {
        return std::nullopt;
      }
    }
    // What the driver refuses although it should fit costs a pair of SMs after the other.
    for (unsigned room = refused_.sm_count; room >= least && room != 0; room -= std::min(room, pair_size)) {
      for (Candidate& candidate : candidates(room)) {
        if (refused_.fits(candidate.requests)) {
          return std::move(candidate.requests);
        }
      }
    }
    return std::nullopt;
  }

 private:
  // By what a group takes away from others: large sets first.
  unsigned rank(std::size_t i) const {
    const Need& need = needs_[i];
    const bool held = need.is_promised() || (need.placement == Placement::aligned && holds_back_);
    return held ? std::max(need.grain, pair_size) : 0;
  }

  std::vector<Candidate> candidates(unsigned room) const {
    std::vector<Candidate> found;
    const bool promised =
        std::any_of(needs_.begin(), needs_.end(), [](const Need& need) { return need.is_promised(); });
    // Where an open group takes what is left of larger units, the other groups have to consist of these as well.
    const bool larger = holds_back_ && !promised;
    const unsigned step = refused_.grain.alignment;
    for (unsigned unit = step; unit <= (larger ? room / 2 : step); unit += step) {
      if (auto candidate = cheapest(choices(room, unit), requests_, room)) {
        found.push_back(std::move(*candidate));
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.cost < b.cost; });
    return found;
  }

  std::vector<Choice> choices(unsigned room, unsigned unit) const {
    std::vector<Choice> choices;
    for (const std::size_t i : order_) {
      const Need& need = needs_[i];
      const bool structured = refused_.driver.has(Feature::structured_split);
      Choice choice{.group = i, .least = need.least, .step = need.grain, .room = room};
      if (rank(i) != 0) {
        choice.step = need.is_promised() ? (structured ? need.grain : std::max(need.grain, unit)) : unit;
        choice.least = round_up(std::max(choice.least, choice.step), choice.step);
        choice.room = std::min(room, room_of(need, choice.step));
      }
      if (need.count) {
        choice.asked = std::min(*requests_[i].count, refused_.sm_count);
        choice.most = std::max(round_up(choice.asked, choice.step), choice.least);
      } else {
        choice.least = need.is_loose() ? pair_size : choice.step;
        choice.asked = choice.most = choice.least;
      }
      choices.push_back(choice);
    }
    return choices;
  }

  unsigned room_of(const Need& need, unsigned step) const {
    if (refused_.splitter == nullptr) {
      return 0;
    }
    const auto known = std::find_if(rooms_.begin(), rooms_.end(), [&](const auto& room) { return room.first == step; });
    if (known != rooms_.end()) {
      return known->second;
    }
    unsigned room = need.is_promised() ? refused_.splitter->in_sets_of(step) : refused_.splitter->in_units_of(step);
    if (step == refused_.grain.alignment) {
      room = std::max(refused_.splitter->in_sets_of(step), refused_.splitter->in_units_of(step));
    }
    rooms_.emplace_back(step, room);
    return room;
  }

  const Refused& refused_;
  const std::vector<GroupRequest>& requests_;
  Needs needs_;
  // An open group that has to be aligned gets what the aligned groups leave, so that these have to be aligned, too.
  bool holds_back_ = false;
  std::vector<std::size_t> order_;
  mutable std::vector<std::pair<unsigned, unsigned>> rooms_;
};

std::string list_text(const std::vector<GroupRequest>& requests) {
  constexpr std::size_t most_shown = 24;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(requests.size(), most_shown); ++i) {
    text += (i > 0 ? ", " : "") + (requests[i].count ? std::to_string(*requests[i].count) : std::string("None"));
  }
  return text + (requests.size() > most_shown ? ", ... " + std::to_string(requests.size()) + " in all]" : "]");
}

// How many of the groups fit, the first ones, if each is as small as it can be.
std::size_t groups_that_fit(const Refused& refused, const std::vector<GroupRequest>& requests) {
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

std::string what_would_help(const Refused& refused, const std::vector<GroupRequest>& requests) {
  const unsigned alignment = refused.grain.alignment;
  for (const GroupRequest& request : requests) {
    const bool promised = need_of(request, refused.grain).is_promised();
    if (promised && request.coscheduled != alignment && !refused.driver.has(Feature::structured_split)) {
      return "; coscheduled_sm_count=" + std::to_string(request.coscheduled) +
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
    return "; with backfill=True it would fit, with no promise of thread-block clusters above 2";
  }
  return {};
}

}  // namespace

void refuse(const Refused& refused, const std::vector<GroupRequest>& requests) {
  SplitFailure failure("cannot split groups of " + list_text(requests) + " SMs off " +
                       std::to_string(refused.sm_count) + " SMs (alignment " + std::to_string(refused.grain.alignment) +
                       ")");
  failure.suggestion = Nearest(refused, requests).find();
  const bool same_options = failure.suggestion.has_value();
  if (!same_options) {
    // The co-scheduling itself is out of reach here: what fits without asking for it.
    auto plain = requests;
    for (GroupRequest& request : plain) {
      request.coscheduled = 0;
      request.preferred = 0;
      request.locality_domain.reset();
    }
    failure.suggestion = Nearest(refused, plain).find();
  }
  if (failure.suggestion) {
    failure.message += ": the nearest request that fits is " + list_text(*failure.suggestion) +
                       (same_options ? "" : " without co-scheduling and locality");
  } else {
    failure.message += ": no request of " + std::to_string(requests.size()) + " groups fits, " +
                       std::to_string(groups_that_fit(refused, requests)) + " of the smallest size do";
  }
  failure.message += what_would_help(refused, requests);
  throw failure;
}

}  // namespace gctx
