// What the model of a chip does as the driver does, and where each rule is known from.
#include <array>

#include "chip/chip.hpp"

namespace gctx::sim {
namespace {

constexpr std::array behaviours{
    Behaviour{"chip.layout.recorded", "all",
              "The H200 and the H100 have clusters of 18, 18, 16, 16, 16, 16, 16 and 8 SMs and four pairs outside of "
              "them: the layout that gives the recorded counts and cluster capacities of eight cards, all alike",
              Known::recorded, "layout"},
    Behaviour{"chip.layout.others", "all", "Other cards have their public number of SMs in a plausible layout",
              Known::assumed, ""},
    Behaviour{"chip.sm_ids", "all",
              "SM ids count across the GPCs, a pair at a time; pairs outside of clusters come last", Known::recorded,
              "smids"},
    Behaviour{"by_count.grain", "all", "Minimum and grain are 8 on 9.0 and later; 0 counts as 1", Known::recorded,
              "split_by_count"},
    Behaviour{"by_count.grain_before_9", "all",
              "The minimum is 4 and the grain 2 on 8.x; minimum and grain are 2 on Tegra chips", Known::assumed, ""},
    Behaviour{"by_count.dealing", "all",
              "Groups are dealt the same parts in turn: units of 8 inside one GPC as far as they go, "
              "then smaller parts; which SMs a group gets depends on how many groups are asked for",
              Known::recorded, "layout"},
    Behaviour{"by_count.compact", "all", "MAX_POTENTIAL_CLUSTER_SIZE deals the largest parts of the GPCs first",
              Known::recorded, "layout"},
    Behaviour{"by_count.of_contexts", "all",
              "What a context holds is split by the parts it was made of; groups can then be smaller than asked",
              Known::recorded, "two_step"},
    Behaviour{"by_count.whole", "all",
              "A minimum above what the units hold, but not above the input, gives the whole input", Known::recorded,
              "split_by_count"},
    Behaviour{"by_count.too_many", "all", "A minimum above the input is INVALID_RESOURCE_CONFIGURATION",
              Known::recorded, "split_by_count"},
    Behaviour{"by_count.fine", "all", "IGNORE_SM_COSCHEDULING has a grain of 2", Known::recorded, "split_by_count"},
    Behaviour{"by_count.fine_order", "all",
              "IGNORE_SM_COSCHEDULING deals pairs in turn: one of every GPC, then the next of every one",
              Known::recorded, "layout"},
    Behaviour{"by_count.fine_runs", "all",
              "In a context of such groups, a run of neighbouring pairs is two parts: its last pair, and the others",
              Known::recorded, "two_step"},
    Behaviour{"by_count.flags", "all", "Both flags together are INVALID_VALUE; unknown flags are ignored",
              Known::recorded, "split_by_count"},
    Behaviour{"structured.order", "13.1 and newer",
              "Groups are served in the order of the array, each from what is left", Known::assumed, ""},
    Behaviour{"structured.count_rules", "13.1 and newer",
              "A count is 0 or even, between 2 and the input, and a multiple of its co-scheduling", Known::documented,
              "smCount must be a multiple of 2, as well as a multiple of coscheduledSmCount if it is nonzero."},
    Behaviour{"structured.coscheduling_rules", "13.1 and newer",
              "A co-scheduling is even and at most 32 on 9.0 and later, 2 otherwise and on Tegra chips",
              Known::documented, "The maximum is 32 on Compute Architecture 9.0+ and 2 otherwise."},
    Behaviour{"structured.codes", "13.1 and newer",
              "Counts that break the rules are INVALID_RESOURCE_CONFIGURATION, unknown flags and words that are not "
              "zero INVALID_VALUE",
              Known::assumed, ""},
    Behaviour{"structured.default_until_13_3", "13.1 to 13.3",
              "Up to 13.3 a co-scheduling of 0 means the alignment and is written back", Known::assumed, ""},
    Behaviour{"structured.default_from_13_4", "13.4 and newer",
              "From 13.4 a co-scheduling of 0 stays 0 and imposes nothing on discovery", Known::documented,
              "A coscheduledSmCount of 0 uses the default value internally while preserving 0 in groupParams."},
    Behaviour{"structured.empty_group", "13.1 and newer",
              "With a result array a group without SMs is INVALID_RESOURCE_CONFIGURATION; a dry run may find 0",
              Known::documented,
              "smCount cannot end up with 0 or a value less than coscheduledSmCount otherwise "
              "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION will be returned."},
    Behaviour{"structured.dry_counts", "13.1 to 13.3",
              "From 13.1 to 13.3 a dry run that names a count is INVALID_RESOURCE_CONFIGURATION", Known::assumed, ""},
    Behaviour{"structured.backfill", "13.1 and newer",
              "BACKFILL fills the count up with other SMs, once at least one co-scheduled set is there",
              Known::documented,
              "Treats constraints as a hint, ignoring them if necessary to reach the requested smCount."},
    Behaviour{"structured.placement", "13.1 and newer",
              "A group goes into one GPC if one can hold it, then preferred sets first, clusters in order",
              Known::assumed, ""},
    Behaviour{"structured.locality", "13.4 and newer",
              "From 13.4 a group may be bound to one locality domain; BACKFILL goes on to SMs of no domain, then to "
              "other domains; from 13.5 supplemental SMs",
              Known::documented,
              "backfill fills up to the requested smCount using the target locality domain first, then SMs not "
              "attributed to any locality domain, then SMs from other locality domains."},
    Behaviour{"structured.locality_layout", "13.1 and newer",
              "Domains are runs of GPCs; the SMs of a domain beyond what every domain has, in whole "
              "grains, are its supplemental ones",
              Known::assumed, ""},
    Behaviour{"clusters.capacity", "all",
              "A thread block cluster needs a part of a context's SMs with as many SMs as it has blocks, and then "
              "packs without loss",
              Known::recorded, "limits"},
    Behaviour{"clusters.parts", "all",
              "The parts are units of 8 for plain groups, whole GPCs for the device, remainders and "
              "MAX_POTENTIAL_CLUSTER_SIZE, and runs of pairs less one for IGNORE_SM_COSCHEDULING",
              Known::recorded, "limits"},
    Behaviour{"clusters.limit", "all", "Clusters have at most 16 blocks on 9.x and 10.x and 8 on later cards",
              Known::assumed, ""},
};

}  // namespace

std::span<const Behaviour> chip_behaviours() { return behaviours; }

}  // namespace gctx::sim
