// Blocks on SMs: where they fit, and how those that share an SM, or the memory, slow each other down.
#include "machine/sms.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace software_driver {
namespace {

// Less than this of a block's time is left over by rounding alone.
constexpr double rounding_ns = 1e-3;
bool is_over(double left) { return left <= 2 * rounding_ns; }

// Of device memory under load. Assumed.
constexpr double memory_latency_ns = 600;

// What memory delivers when `demand` is asked of it: all of it as long as that is little, and never more than the
// device has. The sharpness of the bend is fitted to a recording (tests/hardware/times/h200-driver-13.0.json).
double delivered(double demand, double limit) {
  if (demand <= 0) {
    return 0;
  }
  const double part = demand / limit;
  return demand / std::pow(1 + std::pow(part, 4), 0.25);
}

// Those that use memory.
void slow_down(std::span<Resident> residents, double pace) {
  for (Resident& resident : residents) {
    if (resident.cost.bytes > 0) {
      resident.rate *= pace;
    }
  }
}

// Further ahead than a day, counts of nanoseconds lose their exactness: it is looked at again then.
std::uint64_t moment_in(double ns, std::uint64_t now) {
  constexpr double far = 8.64e13;
  return now + static_cast<std::uint64_t>(std::ceil(std::clamp(ns, 0.0, far)));
}

}  // namespace

Sms::Sms(const Chip& chip) : chip_(&chip), sms_(chip.sm_count()) {}

unsigned Sms::capacity(const Profile& card, const BlockNeeds& needs) {
  std::size_t blocks = static_cast<std::size_t>(card.max_blocks_per_sm);
  if (needs.threads != 0) {
    blocks = std::min<std::size_t>(blocks, static_cast<unsigned>(card.max_threads_per_sm) / needs.threads);
  }
  if (needs.registers != 0) {
    blocks = std::min<std::size_t>(blocks, card.registers_per_sm / needs.registers);
  }
  if (needs.shared_bytes != 0) {
    blocks = std::min(blocks, card.shared_bytes_per_sm / needs.shared_bytes);
  }
  return static_cast<unsigned>(blocks);
}

double Sms::alone_ns(const BlockCost& cost) const {
  const double rate = std::min(profile().sm_bytes_per_ns, cost.in_flight / memory_latency_ns);
  return std::max({cost.compute_ns, cost.bytes > 0 ? cost.bytes / rate : 0, 1.0});
}

void Resident::go_on(const Sms& sms, const BlockCost& piece, std::uint64_t pieces) {
  cost = piece;
  alone_ns = sms.alone_ns(piece);
  left_ns = alone_ns * static_cast<double>(pieces);
}

bool Sms::fits(const Sm& sm, const BlockNeeds& needs) const {
  const Profile& card = profile();
  return sm.blocks < static_cast<unsigned>(card.max_blocks_per_sm) &&
         sm.threads + needs.threads <= static_cast<unsigned>(card.max_threads_per_sm) &&
         sm.registers + needs.registers <= card.registers_per_sm &&
         sm.shared_bytes + needs.shared_bytes <= card.shared_bytes_per_sm;
}

void Sms::deal(const SmSet& among, const BlockNeeds& needs, const std::function<bool(std::size_t)>& take) const {
  // All SMs with so many blocks, then all with the next number of them, to which those before may belong by now.
  constexpr unsigned none = std::numeric_limits<unsigned>::max();
  for (unsigned blocks = 0, next = none; blocks != none; blocks = std::exchange(next, none)) {
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      const Sm& sm = sms_[i];
      if (!among.test(i) || !fits(sm, needs)) {
        continue;
      }
      if (sm.blocks == blocks) {
        if (!take(i)) {
          return;
        }
        if (!fits(sm, needs)) {
          continue;
        }
      }
      next = std::min(next, sm.blocks);
    }
  }
}

std::vector<std::size_t> Sms::room_together(const std::vector<SmSet>& parts, const BlockNeeds& needs,
                                            unsigned count) const {
  std::vector<std::size_t> best;
  unsigned best_load = 0;
  for (const SmSet& part : parts) {
    std::vector<Sm> trial;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      if (!part.test(i)) {
        continue;
      }
      const Sm& sm = sms_[i];
      trial.push_back({sm.blocks, sm.threads, sm.registers, sm.shared_bytes, 0, {}});
      places.push_back(i);
    }
    std::vector<std::size_t> chosen;
    unsigned load = 0;
    while (chosen.size() < count) {
      std::optional<std::size_t> next;
      for (std::size_t i = 0; i < trial.size(); ++i) {
        if (fits(trial[i], needs) && (!next || trial[i].blocks < trial[*next].blocks)) {
          next = i;
        }
      }
      if (!next) {
        break;
      }
      Sm& sm = trial[*next];
      sm.take(needs);
      load = std::max(load, sm.blocks);
      chosen.push_back(places[*next]);
    }
    if (chosen.size() < count || (!best.empty() && load >= best_load)) {
      continue;
    }
    best = std::move(chosen);
    best_load = load;
  }
  return best;
}

double Sms::rate_of(const BlockCost& cost, double alone_ns, double used) const {
  const double share = used > 1 ? 1 / used : 1;
  // The throughput that it needs, compared with what it gets.
  const double compute = cost.throughput > 0 ? cost.compute_ns / alone_ns : 0;
  return compute > share ? share / compute : 1;
}

std::uint64_t Sms::end_of(const Whole& whole, std::uint64_t on_sm) const {
  const double alone = alone_ns(whole.cost);
  const double rate = rate_of(whole.cost, alone, static_cast<double>(on_sm) * whole.cost.throughput);
  return moment_in((alone - rounding_ns) / rate, whole.started);
}

bool Sms::place_whole(const WorkPtr& work, const SmSet& among, std::uint64_t blocks, const BlockNeeds& needs,
                      const BlockCost& cost, std::uint64_t now) {
  const std::uint64_t count = among.count();
  const auto is_taken = [&](const Whole& whole) { return (whole.sms & among).any(); };
  if (cost.bytes > 0 || blocks > count * capacity(profile(), needs) || (busy_ & among).any() ||
      std::ranges::any_of(wholes_, is_taken)) {
    return false;
  }
  wholes_.push_back({work, among, blocks, blocks / count, blocks % count, needs, cost, now});
  return true;
}

void Sms::unfold(const SmSet& among, std::uint64_t now,
                 const std::function<void(const WorkPtr&, std::uint64_t)>& ended) {
  std::erase_if(wholes_, [&](const Whole& whole) {
    if ((whole.sms & among).none()) {
      return false;
    }
    const std::uint64_t sm_count = whole.sms.count();
    std::uint64_t gone = 0;
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      if (!whole.sms.test(i)) {
        continue;
      }
      const std::uint64_t on_sm = whole.on(number);
      const double rate = rate_of(whole.cost, alone_ns(whole.cost), static_cast<double>(on_sm) * whole.cost.throughput);
      if (on_sm > 0 && end_of(whole, on_sm) <= now) {
        gone += on_sm;
      } else {
        for (std::uint64_t k = 0; k < on_sm; ++k) {
          place(std::array{i},
                {.work = whole.work,
                 .index = k * sm_count + number,
                 .needs = whole.needs,
                 .cost = whole.cost,
                 .rate = rate},
                whole.started);
        }
      }
      ++number;
    }
    if (gone > 0) {
      ended(whole.work, gone);
    }
    return true;
  });
}

void Sms::place(std::span<const std::size_t> places, Resident run, std::uint64_t now) {
  run.run = ++runs_;
  run.places = places.size();
  run.started = now;
  run.go_on(*this, run.cost, run.count);
  const auto begin = [&](std::size_t i, Resident&& one) {
    Sm& sm = sms_[i];
    touch(sm, now);
    sm.take(one.needs);
    sm.residents.push_back(std::move(one));
    busy_.set(i);
  };
  for (const std::size_t i : places.first(places.size() - 1)) {
    begin(i, Resident(run));
    run.index += run.count;
  }
  begin(places.back(), std::move(run));
}

void Sms::add_flow(const WorkPtr& work, double bytes, std::uint64_t now) {
  touch_flows(now);
  flows_.push_back({work, bytes});
  stale_ = true;
}

template <class Visit>
void Sms::each_busy(Visit&& visit) {
  for (std::size_t i = 0; i < sms_.size(); ++i) {
    if (busy_.test(i)) {
      visit(i, sms_[i]);
    }
  }
}

// Something is about to change there: what runs has gone on until now at its old rates, which hold no more.
void Sms::touch(Sm& sm, std::uint64_t now) {
  const auto passed = static_cast<double>(now - std::exchange(sm.updated, now));
  for (Resident& resident : sm.residents) {
    resident.left_ns -= passed * resident.rate;
  }
  sm.stale = stale_ = true;
}

void Sms::touch_flows(std::uint64_t now) {
  const auto passed = static_cast<double>(now - std::exchange(flows_updated_, now));
  for (Flow& flow : flows_) {
    flow.left_bytes -= passed * flow.rate;
  }
}

// Among the blocks of an SM, as if memory had no limit but the SM's own. A block moves on at the pace of what it gets
// least of.
void Sms::share_throughput(Sm& sm) const {
  double used = 0;
  for (const Resident& resident : sm.residents) {
    used += resident.cost.throughput;
  }
  sm.demand = 0;
  for (Resident& resident : sm.residents) {
    resident.rate = rate_of(resident.cost, resident.alone_ns, used);
    sm.demand += resident.cost.bytes / resident.alone_ns * resident.rate;
  }
  if (sm.demand > profile().sm_bytes_per_ns) {
    slow_down(sm.residents, profile().sm_bytes_per_ns / sm.demand);
    sm.demand = profile().sm_bytes_per_ns;
  }
}

// Each SM shares its throughput among its blocks, then the memory what all ask of it: an SM that asks for none of it
// goes on as it was until something changes there, so that an event costs no more than what it changes.
void Sms::set_rates(std::uint64_t now) {
  const double limit = profile().memory_bytes_per_ns;
  double asked = static_cast<double>(flows_.size()) * limit;
  each_busy([&](std::size_t, Sm& sm) {
    if (sm.stale || sm.demand > 0) {
      touch(sm, now);
      share_throughput(sm);
    }
    asked += sm.demand;
  });
  const double pace = asked > 0 ? delivered(asked, limit) / asked : 1;
  each_busy([&](std::size_t, Sm& sm) {
    if (std::exchange(sm.stale, false)) {
      slow_down(sm.residents, pace);
      double soonest = std::numeric_limits<double>::infinity();
      for (const Resident& resident : sm.residents) {
        soonest = std::min(soonest, (resident.left_ns - rounding_ns) / resident.rate);
      }
      sm.end = moment_in(soonest, now);
    }
  });
  for (Flow& flow : flows_) {
    flow.rate = limit * pace;
  }
  stale_ = false;
}

std::uint64_t Sms::next_end(std::uint64_t now) {
  touch_flows(now);
  if (stale_) {
    set_rates(now);
  }
  std::uint64_t soonest = never;
  each_busy([&](std::size_t, const Sm& sm) { soonest = std::min(soonest, sm.end); });
  for (const Whole& whole : wholes_) {
    soonest = std::min(soonest, end_of(whole, whole.on(0)));
  }
  for (const Flow& flow : flows_) {
    soonest = std::min(soonest, moment_in((flow.left_bytes - rounding_ns) / flow.rate, now));
  }
  return soonest;
}

bool Sms::runs_only(const std::function<bool(const Work&)>& is_meant) const {
  return flows_.empty() && std::ranges::all_of(wholes_, [&](const Whole& whole) { return is_meant(*whole.work); }) &&
         std::ranges::all_of(sms_, [&](const Sm& sm) {
           return std::ranges::all_of(sm.residents, [&](const Resident& one) { return is_meant(*one.work); });
         });
}

void Sms::collect(std::uint64_t now, const std::function<void(const WorkPtr&, std::uint64_t)>& whole_ended,
                  const std::function<void(std::size_t, Resident&)>& give_more,
                  const std::function<void(std::size_t, const Resident&)>& ended,
                  const std::function<void(const WorkPtr&)>& flow_ended) {
  std::vector<Whole> over;
  std::erase_if(wholes_, [&](Whole& whole) {
    return end_of(whole, whole.on(0)) <= now && (over.push_back(std::move(whole)), true);
  });
  for (const Whole& whole : over) {
    whole_ended(whole.work, whole.blocks);
  }
  over_.clear();
  each_busy([&](std::size_t i, Sm& sm) {
    if (sm.end > now) {
      return;
    }
    touch(sm, now);
    for (Resident& resident : sm.residents) {
      if (is_over(resident.left_ns)) {
        over_.emplace_back(i, &resident);
      }
    }
  });
  std::ranges::sort(over_, {}, [](const auto& one) { return one.second->run; });
  for (const auto& [sm, resident] : over_) {
    give_more(sm, *resident);
  }
  each_busy([&](std::size_t i, Sm& sm) {
    if (sm.end > now) {
      return;
    }
    std::erase_if(sm.residents, [&](const Resident& resident) {
      return is_over(resident.left_ns) && (sm.lose(resident.needs), ended(i, resident), true);
    });
    if (sm.residents.empty()) {
      busy_.reset(i);
    }
  });
  touch_flows(now);
  std::erase_if(flows_,
                [&](const Flow& flow) { return is_over(flow.left_bytes) && (flow_ended(flow.work), stale_ = true); });
}

void Sms::cut_short(const SmSet& among, std::uint64_t now, const std::function<bool(const Work&)>& gives_way,
                    const std::function<void(const WorkPtr&, std::uint64_t)>& given_back) {
  const auto cut = [&](std::span<Resident* const> runs) {
    std::uint64_t kept = 0;
    for (const Resident* run : runs) {
      const double done = run->alone_ns * static_cast<double>(run->count) - run->left_ns;
      kept = std::max(kept, static_cast<std::uint64_t>(std::max(done, 0.0) / run->alone_ns) + 1);
    }
    if (kept >= runs.front()->count) {
      return;
    }
    const std::uint64_t back = runs.front()->count - kept;
    for (Resident* run : runs) {
      run->count = kept;
      run->left_ns -= run->alone_ns * static_cast<double>(back);
    }
    given_back(runs.front()->work, back * runs.size());
  };
  struct Cluster {
    std::vector<Resident*> runs;
    bool is_among = false;
  };
  std::map<std::uint64_t, Cluster> clusters;
  each_busy([&](std::size_t i, Sm& sm) {
    touch(sm, now);
    for (Resident& resident : sm.residents) {
      if (resident.count == 1 || !gives_way(*resident.work)) {
        continue;
      }
      if (resident.places > 1) {
        Cluster& cluster = clusters[resident.run];
        cluster.runs.push_back(&resident);
        cluster.is_among = cluster.is_among || among.test(i);
      } else if (among.test(i)) {
        cut(std::array{&resident});
      }
    }
  });
  for (const auto& [number, cluster] : clusters) {
    if (cluster.is_among && cluster.runs.size() == cluster.runs.front()->places) {
      cut(cluster.runs);
    }
  }
}

}  // namespace software_driver
