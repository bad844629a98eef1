// The structured split (driver 13.1 and later): uneven groups, each out of sets of SMs that sit in one cluster of the
// chip.
#include <algorithm>
#include <array>

#include "chip/chip.hpp"

namespace software_driver {
namespace {

using Params = CU_DEV_SM_RESOURCE_GROUP_PARAMS;

constexpr int version_of_locality = 13040;
constexpr int version_of_supplemental = 13050;
// From 13.4 on a co-scheduling of 0 stays 0, and a dry run may name counts (docs/drivers.md).
constexpr int version_of_free_default = 13040;

// What one entry of the array asks for, with the defaults filled in.
struct Want {
  unsigned count = 0;  // 0: everything that fits
  unsigned coscheduled = 0;
  unsigned preferred = 0;
  bool loose = false;     // SMs outside of co-scheduled sets may fill up the count
  bool must_set = false;  // at least one co-scheduled set is due
};

unsigned allowed_flags(int driver_version) {
  unsigned flags = CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
  if (driver_version >= version_of_locality) {
    flags |= CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID;
  }
  if (driver_version >= version_of_supplemental) {
    flags |= CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
  }
  return flags;
}

// Words and flags that this driver knows, and that do not contradict each other. The code for others is assumed; the
// rules are documented ("must be zero-initialized", "only valid when").
bool words_are_known(const Params& params, int driver_version) {
  const bool local = (params.flags & CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID) != 0;
  const bool supplemental = (params.flags & CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS) != 0;
  return (params.flags & ~allowed_flags(driver_version)) == 0 && (local || !supplemental) &&
         (local || params.localityDomainId == 0) &&
         std::ranges::all_of(params.reserved, [](unsigned word) { return word == 0; });
}

// Counts that a layout could serve. Documented, all but the code (assumed after the split by count, which answers 915).
bool counts_are_legal(const Params& params, const Profile& profile, unsigned input_count) {
  const unsigned largest = profile.cc_major >= 9 && !profile.integrated ? 32 : 2;
  const unsigned coscheduled = params.coscheduledSmCount != 0 ? params.coscheduledSmCount : profile.alignment;
  const bool backfill = (params.flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
  const bool sets_are_legal = params.coscheduledSmCount % 2 == 0 && params.coscheduledSmCount <= largest &&
                              params.preferredCoscheduledSmCount % coscheduled == 0;
  const bool in_sets = backfill || params.coscheduledSmCount == 0 || params.smCount % params.coscheduledSmCount == 0;
  const bool count_is_legal = params.smCount >= 2 && params.smCount % 2 == 0 && params.smCount <= input_count &&
                              params.smCount >= params.coscheduledSmCount && in_sets;
  return sets_are_legal && (params.smCount == 0 || count_is_legal);
}

// Up to 13.3 a co-scheduling of 0 means the alignment, which the count must then obey (documented in those headers).
bool default_is_obeyed(const Params& params, const Profile& profile) {
  const bool backfill = (params.flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
  return params.coscheduledSmCount != 0 || params.smCount % profile.alignment == 0 ||
         (backfill && params.smCount >= profile.alignment);
}

}  // namespace

// Whole sets of `coscheduled` SMs out of `from`, at most `count` SMs (0: all that there are). Which clusters of the
// chip serve first is assumed: one that holds all of it if there is one, then those that hold preferred sets, then in
// order.
SmSet Chip::place_sets(const SmSet& from, unsigned count, unsigned coscheduled, unsigned preferred) const {
  SmSet placed;
  unsigned missing = count == 0 ? sm_count_ : count;
  missing -= missing % coscheduled;
  const auto place = [&](std::size_t gpc, unsigned sms) {
    placed |= take(from & ~placed, gpc, sms);
    missing -= sms;
  };
  const auto available = [&](std::size_t gpc) { return static_cast<unsigned>((from & ~placed & gpcs_[gpc]).count()); };

  if (count != 0) {
    for (std::size_t gpc = 0; gpc < gpcs_.size() && missing != 0; ++gpc) {
      if (available(gpc) >= missing) {
        place(gpc, missing);
      }
    }
  }
  for (const unsigned set : {std::max(preferred, coscheduled), coscheduled}) {
    for (std::size_t gpc = 0; gpc < gpcs_.size() && missing >= set; ++gpc) {
      const unsigned sms = std::min(available(gpc), missing);
      place(gpc, sms - sms % set);
    }
  }
  return placed;
}

SplitAnswer Chip::split_structured(const SmSet& input, std::span<const Params> params, unsigned flags,
                                   int driver_version, bool dry) const {
  SplitAnswer answer;
  answer.params.assign(params.begin(), params.end());
  const auto refuse = [&](CUresult result) {
    answer.result = result;
    answer.groups.clear();
    answer.coscheduled.clear();
    answer.bonds.clear();
    answer.params.assign(params.begin(), params.end());
    return answer;
  };
  if (flags != 0 || params.empty()) {
    return refuse(CUDA_ERROR_INVALID_VALUE);
  }

  const bool free_default = driver_version >= version_of_free_default;
  const auto input_count = static_cast<unsigned>(input.count());
  for (const Params& entry : params) {
    if (!words_are_known(entry, driver_version)) {
      return refuse(CUDA_ERROR_INVALID_VALUE);
    }
    // That a dry run names no count is reported of an H100 with 13.3 (docs/drivers.md).
    const bool fits = free_default || (default_is_obeyed(entry, profile_) && (!dry || entry.smCount == 0));
    if (!counts_are_legal(entry, profile_, input_count) || !fits) {
      return refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
  }

  answer.groups.reserve(params.size());
  answer.coscheduled.reserve(params.size());
  answer.bonds.reserve(params.size());
  SmSet left = input;
  for (Params& entry : answer.params) {
    const bool backfill = (entry.flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
    const bool named = entry.coscheduledSmCount != 0;
    const Want want{.count = entry.smCount,
                    .coscheduled = named ? entry.coscheduledSmCount : profile_.alignment,
                    .preferred = entry.preferredCoscheduledSmCount,
                    .loose = backfill || (free_default && !named),
                    .must_set = named || !free_default};

    // The pools of SMs, best first; only the first can serve co-scheduled sets.
    std::array<SmSet, 3> pools{left};
    if ((entry.flags & CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID) != 0) {
      const SmSet everywhere = pools[0];
      const SmSet domain = locality_domain(entry.localityDomainId);
      const bool supplemental = (entry.flags & CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS) != 0;
      pools[0] = everywhere & domain & (supplemental ? all_ : ~supplemental_);
      if (pools[0].none()) {
        return refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
      }
      if (backfill) {
        pools[1] = everywhere & ~locality_domain(CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY);
        pools[2] = everywhere & ~pools[0] & ~pools[1];
      }
    }

    SmSet group = place_sets(pools[0], want.count, want.coscheduled, want.preferred);
    const bool has_set = group.any();
    if (want.loose && (has_set || !want.must_set)) {
      for (const SmSet& pool : pools) {
        const unsigned missing = (want.count == 0 ? sm_count_ : want.count) - static_cast<unsigned>(group.count());
        if (missing == 0) {
          break;
        }
        const SmSet rest = pool & ~group;
        const SmSet odd = take(leftovers(rest, want.coscheduled), missing);
        group |= odd;
        group |= take(rest & ~odd, missing - static_cast<unsigned>(odd.count()));
      }
    }

    const auto size = static_cast<unsigned>(group.count());
    if ((want.count != 0 && size != want.count) || (size == 0 && !dry)) {
      return refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    left &= ~group;
    entry.smCount = size;
    if (!free_default) {
      entry.coscheduledSmCount = want.coscheduled;
    }
    answer.groups.push_back(group);
    answer.coscheduled.push_back(has_set ? want.coscheduled : 2);
    answer.bonds.push_back(want.coscheduled == 2 ? Bond::pair : Bond::gpc);
  }
  answer.remainder = left;
  answer.remainder_coscheduled = left.any() ? 2 : 0;
  return answer;
}

}  // namespace software_driver
