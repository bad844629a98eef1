// The parts that the SMs of a resource hold together in, and what is counted by them: the split by count, which deals
// the same parts to every group, and what thread block clusters find.
#include <algorithm>

#include "chip/chip.hpp"

namespace software_driver {
namespace {

constexpr unsigned unit_size = 8;
constexpr unsigned fine_flag = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
constexpr unsigned compact_flag = CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;

unsigned rounded_up(unsigned count, unsigned grain) { return (count + grain - 1) / grain * grain; }

}  // namespace

// SMs of one GPC, taken from the front.
struct Chip::Part {
  unsigned gpc = 0;
  unsigned begin = 0;
  unsigned end = 0;
  unsigned size() const noexcept { return end - begin; }
};

struct Chip::Parts {
  std::vector<std::uint16_t> sms;  // what the parts point into
  std::vector<Part> parts;
};

// Parts of the GPCs, cluster by cluster. Recorded, from the largest thread block clusters of contexts
// and from splits of what contexts hold:
// - units: neighbouring pairs are one part, but the units of a GPC stay apart (what is beyond the last
//   whole unit belongs to it);
// - pairs: of a run of neighbouring pairs, the last is a part of its own and the others are one part.
Chip::Parts Chip::parts_of(const SmSet& input, Bond bond) const {
  Parts result;
  result.sms.reserve(sm_count_);
  result.parts.reserve(sm_count_ / pair_size);
  for (unsigned gpc = 0; gpc < gpc_sms_.size(); ++gpc) {
    const std::vector<int>& here = gpc_sms_[gpc];
    const std::size_t last_unit = std::max<std::size_t>(1, here.size() / unit_size) - 1;
    const auto unit_of = [&](std::size_t index) { return std::min(index / unit_size, last_unit); };
    Part part{.gpc = gpc, .begin = static_cast<unsigned>(result.sms.size()), .end = 0};
    const auto close = [&](std::size_t end) {
      part.end = static_cast<unsigned>(end);
      if (part.size() == 0) {
        return;
      }
      result.parts.push_back(part);
      part.begin = part.end;
    };
    const auto close_run = [&] {
      const std::size_t end = result.sms.size();
      if (bond == Bond::pair && end - part.begin > pair_size) {
        close(end - pair_size);
      }
      close(end);
    };
    std::size_t previous = 0;
    for (std::size_t index = 0; index < here.size(); ++index) {
      if (!input[static_cast<std::size_t>(here[index])]) {
        continue;
      }
      const bool apart = index != previous + 1;
      if (bond == Bond::pair && apart) {
        close_run();
      }
      if (bond == Bond::unit && (apart || unit_of(index) != unit_of(previous))) {
        close_run();
      }
      result.sms.push_back(static_cast<std::uint16_t>(here[index]));
      previous = index;
    }
    close_run();
  }
  return result;
}

// Thread block clusters need a part with at least as many SMs as they have blocks, and then pack without loss.
unsigned Chip::max_cluster_size(const SmSet& sms, Bond bond) const {
  if (profile_.max_cluster <= 1) {
    return 1;
  }
  unsigned largest = 1;
  for (const Part& part : parts_of(sms, bond).parts) {
    largest = std::max(largest, part.size());
  }
  return std::min(largest, profile_.max_cluster);
}

std::vector<SmSet> Chip::cluster_parts(const SmSet& sms, unsigned cluster_size, Bond bond) const {
  std::vector<SmSet> sets;
  const Parts all = parts_of(sms, bond);
  for (const Part& part : all.parts) {
    if (part.size() < cluster_size) {
      continue;
    }
    SmSet& set = sets.emplace_back();
    for (unsigned i = part.begin; i < part.end; ++i) {
      set.set(all.sms[i]);
    }
  }
  return sets;
}

unsigned Chip::max_active_clusters(const SmSet& sms, unsigned cluster_size, unsigned blocks_per_sm, Bond bond) const {
  if (cluster_size == 0 || cluster_size > profile_.max_cluster) {
    return 0;
  }
  if (cluster_size == 1) {
    return static_cast<unsigned>(sms.count()) * blocks_per_sm;
  }
  unsigned clusters = 0;
  for (const Part& part : parts_of(sms, bond).parts) {
    if (part.size() >= cluster_size) {
      clusters += part.size() * blocks_per_sm / cluster_size;
    }
  }
  return clusters;
}

// Pairs one by one: the first of every GPC, then the second of every one, and so on, to the groups in
// turn.
void Chip::deal_pairs(const SmSet& input, unsigned size, SplitAnswer& answer) const {
  const Parts all = parts_of(input, Bond::gpc);
  const std::size_t groups = answer.groups.size();
  const std::size_t due = groups * (size / pair_size);
  std::size_t dealt = 0;
  for (unsigned round = 0; dealt < due; ++round) {
    for (const Part& part : all.parts) {
      const unsigned first = part.begin + round * pair_size;
      if (first >= part.end || dealt == due) {
        continue;
      }
      SmSet& group = answer.groups[dealt++ % groups];
      group.set(all.sms[first]);
      group.set(all.sms[first + 1]);
    }
  }
}

// Parts of one size after the other, largest first, and of each size the same number to every group, in turn. The
// device as a whole counts how often the size fits into each part, and without the flag for large clusters begins with
// units; what a context holds counts every part once, even where groups then stay smaller than asked, and without that
// flag takes less than 16 at once (all recorded).
void Chip::deal_parts(const SmSet& input, unsigned size, unsigned grain, unsigned flags, Bond bond, unsigned max_groups,
                      SplitAnswer& answer) const {
  const bool whole = input == all_ && grain == profile_.alignment && bond == Bond::gpc;
  Parts all = parts_of(input, bond);
  const auto fits = [&](const Part& part, unsigned set) {
    return whole ? part.size() / set : part.size() >= set ? 1U : 0U;
  };
  const auto count = [&](unsigned set) {
    unsigned total = 0;
    for (const Part& part : all.parts) {
      total += fits(part, set);
    }
    return total;
  };
  // Every group begins with a set of the grain.
  const unsigned groups = std::min({max_groups, static_cast<unsigned>(input.count()) / size, count(grain)});
  answer.groups.resize(groups);
  if (groups == 0) {
    return;
  }

  unsigned largest = 0;
  for (const Part& part : all.parts) {
    largest = std::max(largest, part.size());
  }
  if ((flags & compact_flag) == 0) {
    largest = std::min(largest, whole ? unit_size : 2 * unit_size - pair_size);
  }
  unsigned reached = 0;
  for (unsigned set = largest; set != 0 && reached != size; set -= pair_size) {
    const unsigned rounds = std::min((size - reached) / set, count(set) / groups);
    const std::size_t due = static_cast<std::size_t>(rounds) * groups;
    std::size_t dealt = 0;
    const auto deal = [&](Part& part) {
      SmSet& group = answer.groups[dealt++ % groups];
      for (unsigned i = 0; i < set; ++i) {
        group.set(all.sms[part.begin++]);
      }
    };
    if (rounds == 0) {
      continue;
    }
    // One set of every GPC, then the next of every one.
    while (dealt < due) {
      unsigned last_gpc = ~0U;
      for (Part& part : all.parts) {
        if (dealt == due) {
          break;
        }
        if (part.size() < set || part.gpc == last_gpc) {
          continue;
        }
        deal(part);
        last_gpc = part.gpc;
      }
    }
    reached += rounds * set;
  }
}

SplitAnswer Chip::split_by_count(const SmSet& input, unsigned min_count, unsigned flags, unsigned max_groups,
                                 unsigned alignment, Bond bond) const {
  SplitAnswer answer;
  // Flags that the driver does not know are ignored (recorded).
  const bool fine = (flags & fine_flag) != 0;
  if ((fine && (flags & compact_flag) != 0) || max_groups == 0) {
    answer.result = CUDA_ERROR_INVALID_VALUE;
    return answer;
  }
  const auto input_count = static_cast<unsigned>(input.count());
  if (min_count > input_count || input_count == 0) {
    answer.result = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    return answer;
  }
  const unsigned own = alignment == 0 ? profile_.alignment : alignment;
  const unsigned grain = fine ? pair_size : own;
  const unsigned smallest = fine || own != profile_.alignment ? grain : profile_.min_partition;
  const unsigned size = rounded_up(std::max(min_count, smallest), grain);
  if (fine || profile_.alignment == pair_size) {
    answer.groups.resize(std::min(max_groups, input_count / size));
    deal_pairs(input, size, answer);
  } else {
    deal_parts(input, size, grain, flags, bond, max_groups, answer);
  }
  // More than the parts hold, but no more than the input has: all of it (recorded for 129 to 132 of 132).
  Bond made = fine ? Bond::pair : (flags & compact_flag) != 0 || grain != profile_.alignment ? Bond::gpc : Bond::unit;
  if (answer.groups.empty()) {
    answer.groups.push_back(input);
    made = bond;
  }
  SmSet taken;
  for (const SmSet& group : answer.groups) {
    taken |= group;
  }
  answer.remainder = input & ~taken;
  answer.coscheduled.assign(answer.groups.size(), grain);
  answer.bonds.assign(answer.groups.size(), std::max(made, bond));
  answer.remainder_coscheduled = answer.remainder.any() ? pair_size : 0;
  answer.remainder_bond = bond;
  return answer;
}

}  // namespace software_driver
