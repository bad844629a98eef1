#include "resources/nearest.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>

#include "resources/outcome.hpp"

namespace gctx {
namespace {

// The counts that one group may have, and how many SMs it and the groups before it in its part of the device may take
// together. A part is a locality domain; all groups that are bound to none share one.
struct Choice {
  std::size_t group = 0;
  unsigned asked = 0;
  unsigned due = 0;  // what it would get
  unsigned least = 0;
  unsigned most = 0;
  unsigned step = 0;
  unsigned room = 0;
  bool opens_part = false;
};

// The SMs of the groups so far: of all, and of those in the same part of the device as the last one.
struct Total {
  unsigned all = 0;
  unsigned in_part = 0;
};

constexpr std::uint64_t impossible = std::numeric_limits<std::uint64_t>::max();

// Counts are even, so that totals are counted in pairs.
std::size_t in_pairs(unsigned sms) { return sms / pair_size; }

// How far a count is from what was asked: first by the SMs that are missing, then by the difference from what the group
// would get; of equals, that which takes from the larger groups. Sums over the most groups that a device holds keep to
// their bits.
std::uint64_t cost_of(const Choice& choice, unsigned count, unsigned sm_count) {
  const std::uint64_t missing = choice.asked - std::min(count, choice.asked);
  const std::uint64_t moved = std::max(choice.due, count) - std::min(choice.due, count);
  return (missing << 44) + (moved << 24) + moved * (sm_count - choice.asked);
}

// The requests whose counts keep to the room of each choice, and what the cheapest way to complete each costs.
class Lattice {
 public:
  Lattice(std::vector<Choice> choices, unsigned sm_count)
      : choices_(std::move(choices)),
        sm_count_(sm_count),
        has_parts_(std::count_if(choices_.begin(), choices_.end(),
                                 [](const Choice& choice) { return choice.opens_part; }) > 1) {
    const std::size_t totals = in_pairs(sm_count) + 1;
    ahead_.assign(choices_.size() + 1, std::vector<std::uint64_t>(has_parts_ ? totals * totals : totals, impossible));
    std::fill(ahead_.back().begin(), ahead_.back().end(), 0);
    for (std::size_t at = choices_.size(); at-- > 0;) {
      for (unsigned all = 0; all <= sm_count; all += pair_size) {
        for (unsigned in_part = has_parts_ ? 0 : all; in_part <= all; in_part += pair_size) {
          std::uint64_t& cheapest = ahead_[at][place({all, in_part})];
          each_count(at, {all, in_part}, [&](unsigned, Total, std::uint64_t own, std::uint64_t rest) {
            cheapest = std::min(cheapest, own + rest);
          });
        }
      }
    }
  }

  const std::vector<Choice>& choices() const noexcept { return choices_; }
  std::uint64_t cheapest() const { return ahead_.front().front(); }

  // Calls `visit(count, total with it, cost, cheapest rest)` for the counts that leave a way for the groups after this
  // one, the largest count first.
  template <typename Visit>
  void each_count(std::size_t at, Total before, const Visit& visit) const {
    const Choice& choice = choices_[at];
    for (unsigned count = choice.most; count >= choice.least; count -= choice.step) {
      const Total total{before.all + count, (choice.opens_part ? 0 : before.in_part) + count};
      const bool fits = total.all <= sm_count_ && total.in_part <= choice.room;
      const std::uint64_t rest = fits ? ahead_[at + 1][place(total)] : impossible;
      if (rest != impossible) {
        visit(count, total, cost_of(choice, count, sm_count_), rest);
      }
      if (count < choice.step) {
        break;
      }
    }
  }

 private:
  std::size_t place(Total total) const noexcept {
    return has_parts_ ? in_pairs(total.all) * (in_pairs(sm_count_) + 1) + in_pairs(total.in_part) : in_pairs(total.all);
  }

  std::vector<Choice> choices_;
  unsigned sm_count_;
  bool has_parts_;
  std::vector<std::vector<std::uint64_t>> ahead_;  // by choice and total before it
};

// Goes through the requests of several lattices in the order of their cost. What each way costs to its end is known, so
// that the first complete one is the cheapest of all that are left, and whichever the driver takes first is the
// nearest.
class InOrder {
 public:
  explicit InOrder(const std::vector<Lattice>& lattices) : lattices_(lattices) {
    for (const Lattice& lattice : lattices_) {
      if (lattice.cheapest() != impossible) {
        add({.lattice = &lattice, .total = {}, .bound = lattice.cheapest()});
      }
    }
  }

  // The counts by group; nothing once there are no more.
  std::optional<std::vector<unsigned>> next() {
    while (!ahead_.empty() && steps_.size() < most_steps) {
      const std::size_t place = ahead_.top();
      ahead_.pop();
      const Step step = steps_[place];
      if (step.done == step.lattice->choices().size()) {
        return counts_of(step);
      }
      const auto go_on = [&](unsigned count, Total total, std::uint64_t own, std::uint64_t rest) {
        add({.lattice = step.lattice,
             .done = step.done + 1,
             .total = total,
             .count = count,
             .before = place,
             .cost = step.cost + own,
             .bound = step.cost + own + rest});
      };
      step.lattice->each_count(step.done, step.total, go_on);
    }
    return std::nullopt;
  }

  bool is_exhausted() const noexcept { return ahead_.empty(); }

 private:
  static constexpr std::size_t most_steps = 200'000;

  // The counts of the first `done` groups: that of the last of them, and the step before.
  struct Step {
    const Lattice* lattice = nullptr;
    std::size_t done = 0;
    Total total;
    unsigned count = 0;
    std::size_t before = 0;
    std::uint64_t cost = 0;
    std::uint64_t bound = 0;
  };

  void add(const Step& step) {
    steps_.push_back(step);
    ahead_.push(steps_.size() - 1);
  }

  std::vector<unsigned> counts_of(Step step) const {
    std::vector<unsigned> counts(step.done);
    for (; step.done != 0; step = steps_[step.before]) {
      counts[step.lattice->choices()[step.done - 1].group] = step.count;
    }
    return counts;
  }

  // Of equals the one that is further on, then the one that was found first: the largest counts of the first groups.
  bool comes_after(std::size_t a, std::size_t b) const {
    const Step& x = steps_[a];
    const Step& y = steps_[b];
    return x.bound != y.bound ? x.bound > y.bound : x.done != y.done ? x.done < y.done : a > b;
  }

  struct After {
    const InOrder* all;
    bool operator()(std::size_t a, std::size_t b) const { return all->comes_after(a, b); }
  };

  const std::vector<Lattice>& lattices_;
  std::vector<Step> steps_;
  std::priority_queue<std::size_t, std::vector<std::size_t>, After> ahead_{After{this}};
};

struct Found {
  std::optional<std::vector<GroupRequest>> request;
  bool is_certain = true;  // that there is none, where there is none
};

class Nearest {
 public:
  Nearest(const Refused& refused, const std::vector<GroupRequest>& requests)
      : refused_(refused), requests_(requests), needs_(requests, refused.grain) {
    holds_back_ = needs_.has_open() && !needs_[needs_.open()].is_loose();
    for (std::size_t i = 0; i < needs_.size(); ++i) {
      order_.push_back(i);
    }
    // One part of the device after the other. In each, large sets leave room for small ones; what may sit anywhere
    // comes last.
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return part(a) != part(b) ? part(a) < part(b) : rank(a) > rank(b);
    });
  }

  Found find() const {
    std::uint64_t least = 0;
    for (const Need& need : needs_) {
      least += need.least;
      if (least > refused_.sm_count || (refused_.splitter != nullptr && !refused_.splitter->can_promise(need))) {
        return {};
      }
    }
    const std::vector<Lattice> lattices = ways();
    InOrder in_order(lattices);
    std::set<std::vector<unsigned>> tried;  // one request may be in several lattices
    while (auto counts = in_order.next()) {
      if (tried.size() == most_tried) {
        return {std::nullopt, false};
      }
      const auto [at, is_new] = tried.insert(std::move(*counts));
      if (!is_new) {
        continue;
      }
      auto candidate = requests_;
      for (std::size_t i = 0; i < candidate.size(); ++i) {
        if (candidate[i].count) {
          candidate[i].count = (*at)[i];
        }
      }
      if (refused_.fits(candidate)) {
        return {std::move(candidate)};
      }
    }
    return {std::nullopt, in_order.is_exhausted()};
  }

 private:
  // By what a group takes away from others: large sets first.
  unsigned rank(std::size_t i) const {
    const Need& need = needs_[i];
    const bool held = need.is_promised() || (need.placement == Placement::aligned && holds_back_);
    return held ? std::max(need.grain, pair_size) : 0;
  }

  // A refusal takes no longer than some tenths of a second, whatever the driver says.
  static constexpr std::size_t most_tried = 500;

  // The locality domain that a group cannot leave.
  std::optional<unsigned> part(std::size_t i) const {
    const GroupRequest& request = needs_[i].request;
    return request.backfill ? std::nullopt : request.locality_domain;
  }

  // What may fit, one lattice for each way in which the driver might serve it. Nothing outside of them does.
  std::vector<Lattice> ways() const {
    // Where an open group takes what is left of larger units, the other groups have to consist of these as well.
    const bool larger = holds_back_ && !needs_.any_promised();
    const unsigned step = refused_.grain.alignment;
    std::vector<Lattice> ways;
    for (unsigned unit = step; unit <= (larger ? refused_.sm_count / 2 : step); unit += step) {
      ways.emplace_back(choices(unit), refused_.sm_count);
    }
    return ways;
  }

  std::vector<Choice> choices(unsigned unit) const {
    std::vector<Choice> choices;
    const bool structured = refused_.driver.has(Feature::structured_split);
    for (const std::size_t i : order_) {
      const Need& need = needs_[i];
      Choice choice{.group = i, .least = need.least, .step = need.grain, .room = refused_.sm_count};
      if (rank(i) != 0) {
        choice.step = need.is_promised() ? (structured ? need.grain : std::max(need.grain, unit)) : unit;
        choice.least = round_up(std::max(choice.least, choice.step), choice.step);
        choice.room = room_of(need, choice.step);
      }
      if (part(i)) {
        choice.room = std::min(choice.room, room_in(*part(i), rank(i) != 0 ? choice.step : pair_size));
      }
      choice.opens_part = choices.empty() || part(choices.back().group) != part(i);
      if (need.count) {
        choice.asked = std::min(*requests_[i].count, refused_.sm_count);
        choice.due = std::min(*need.count, refused_.sm_count);
        choice.most = std::max(round_up(choice.asked, choice.step), choice.least);
      } else {
        choice.least = need.is_loose() ? pair_size : choice.step;
        choice.asked = choice.due = choice.most = choice.least;
      }
      choices.push_back(choice);
    }
    return choices;
  }

  // At most how many SMs groups can have in sets or units of a size.
  unsigned room_of(const Need& need, unsigned step) const {
    if (refused_.splitter == nullptr) {
      return 0;
    }
    const auto known = rooms_.find(step);
    if (known != rooms_.end()) {
      return known->second;
    }
    unsigned room = need.is_promised() ? refused_.splitter->in_sets_of(step) : refused_.splitter->in_units_of(step);
    if (step == refused_.grain.alignment) {
      room = std::max(refused_.splitter->in_sets_of(step), refused_.splitter->in_units_of(step));
    }
    return rooms_.emplace(step, room).first->second;
  }

  unsigned room_in(unsigned domain, unsigned step) const {
    const auto [at, is_new] = rooms_in_.try_emplace({domain, step});
    if (is_new) {
      at->second = refused_.splitter->in_sets_of(step, domain);
    }
    return at->second;
  }

  const Refused& refused_;
  const std::vector<GroupRequest>& requests_;
  Needs needs_;
  // An open group that has to be aligned gets what the aligned groups leave, so that these have to be aligned, too.
  bool holds_back_ = false;
  std::vector<std::size_t> order_;
  mutable std::map<unsigned, unsigned> rooms_;
  mutable std::map<std::pair<unsigned, unsigned>, unsigned> rooms_in_;  // by domain and size
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

void refuse(const Refused& refused, const std::vector<GroupRequest>& requests) {
  SplitFailure failure("cannot split groups of " + list_text(requests) + " SMs off " +
                       std::to_string(refused.sm_count) + " SMs (alignment " + std::to_string(refused.grain.alignment) +
                       ")");
  Found found = Nearest(refused, requests).find();
  const bool same_options = found.request.has_value();
  const auto open = std::count_if(requests.begin(), requests.end(), [](const auto& request) { return !request.count; });
  if (!same_options && open > 1) {
    // All that is left in several domains has no like without these.
    found = {std::nullopt, false};
  } else if (!same_options) {
    // The co-scheduling itself is out of reach here: what fits without asking for it.
    auto plain = requests;
    for (GroupRequest& request : plain) {
      request.coscheduled = 0;
      request.preferred = 0;
      request.locality_domain.reset();
      request.supplemental = false;
    }
    found = Nearest(refused, plain).find();
  }
  failure.suggestion = std::move(found.request);
  std::string nearest;
  if (failure.suggestion) {
    nearest = "the nearest request that fits is " + list_text(*failure.suggestion);
    failure.advice = same_options ? "" : "it drops co-scheduling and locality";
  } else if (!found.is_certain) {
    failure.advice = "no request near it fits";
  } else {
    failure.advice = "no request of " + std::to_string(requests.size()) + " groups fits, " +
                     std::to_string(groups_that_fit(refused, requests)) + " of the smallest size do";
  }
  failure.advice = joined(failure.advice, open > 1 ? "" : what_would_help(refused, requests));
  failure.message += ": " + joined(nearest, failure.advice);
  throw failure;
}

}  // namespace gctx
