// What the model of a chip does as the driver does, and where each rule is known from.
#include <array>

#include "sim/chip/chip.hpp"

namespace gctx::sim {
namespace {

constexpr std::array behaviours{
    Behaviour{
        "chip.layout.h200",
        "The H200 has clusters of 18, 18, 16, 16, 16, 16, 16 and 8 SMs and four pairs outside of them: the layout "
        "that gives the recorded counts and cluster capacities of seven cards, all alike",
        Known::recorded},
    Behaviour{"chip.layout.others", "Other cards have their public number of SMs in a plausible layout",
              Known::assumed},
    Behaviour{"chip.sm_ids",
              "SM ids count across the clusters of the chip, a pair at a time; pairs outside of clusters come last",
              Known::recorded},
    Behaviour{"by_count.grain", "Minimum and grain are 8 on 9.0 and later; 0 counts as 1", Known::recorded},
    Behaviour{"by_count.grain_before_9",
              "The minimum is 4 and the grain 2 on 8.x; minimum and grain are 2 on Tegra chips", Known::documented},
    Behaviour{
        "by_count.dealing",
        "Groups are dealt the same parts in turn: units of 8 inside one cluster of the chip as far as they go, then "
        "smaller parts; which SMs a group gets depends on how many groups are asked for",
        Known::recorded},
    Behaviour{"by_count.compact",
              "MAX_POTENTIAL_CLUSTER_SIZE deals the largest parts of the clusters of the chip first", Known::recorded},
    Behaviour{"by_count.of_contexts",
              "What a context holds is split by the parts it was made of; groups can then be smaller than asked",
              Known::recorded},
    Behaviour{"by_count.whole", "A minimum above what the units hold, but not above the input, gives the whole input",
              Known::recorded},
    Behaviour{"by_count.too_many", "A minimum above the input is INVALID_RESOURCE_CONFIGURATION", Known::recorded},
    Behaviour{"by_count.fine", "IGNORE_SM_COSCHEDULING has a grain of 2", Known::recorded},
    Behaviour{
        "by_count.fine_order",
        "IGNORE_SM_COSCHEDULING deals pairs in turn: one of every cluster of the chip, then the next of every one",
        Known::recorded},
    Behaviour{"by_count.fine_runs",
              "In a context of such groups, a run of neighbouring pairs is two parts: its last pair, and the others",
              Known::recorded},
    Behaviour{"by_count.flags", "Both flags together are INVALID_VALUE; unknown flags are ignored", Known::recorded},
    Behaviour{"structured.order", "Groups are served in the order of the array, each from what is left",
              Known::documented},
    Behaviour{"structured.count_rules",
              "A count is 0 or even, between 2 and the input, and a multiple of its co-scheduling", Known::documented},
    Behaviour{"structured.coscheduling_rules",
              "A co-scheduling is even and at most 32 on 9.0 and later, 2 otherwise and on Tegra chips",
              Known::documented},
    Behaviour{"structured.codes",
              "Counts that break the rules are INVALID_RESOURCE_CONFIGURATION, unknown flags and words that are not "
              "zero INVALID_VALUE",
              Known::assumed},
    Behaviour{"structured.default_until_13_3",
              "Up to 13.3 a co-scheduling of 0 means the alignment and is written back", Known::documented},
    Behaviour{"structured.default_from_13_4", "From 13.4 a co-scheduling of 0 stays 0 and imposes nothing on discovery",
              Known::documented},
    Behaviour{"structured.empty_group",
              "With a result array a group without SMs is INVALID_RESOURCE_CONFIGURATION; a dry run may find 0",
              Known::documented},
    Behaviour{"structured.dry_counts",
              "From 13.1 to 13.3 a dry run that names a count is INVALID_RESOURCE_CONFIGURATION", Known::documented},
    Behaviour{"structured.backfill",
              "BACKFILL fills the count up with other SMs, once at least one co-scheduled set is there",
              Known::documented},
    Behaviour{"structured.placement",
              "A group goes into one cluster of the chip if one can hold it, then preferred sets first, clusters in "
              "order",
              Known::assumed},
    Behaviour{"structured.locality",
              "From 13.4 a group may be bound to one locality domain; BACKFILL goes on to SMs of no domain, then to "
              "other domains; from 13.5 supplemental SMs",
              Known::documented},
    Behaviour{"structured.locality_layout",
              "Domains are runs of clusters of the chip; the SMs of a domain beyond what every domain has, in whole "
              "grains, are its supplemental ones",
              Known::assumed},
    Behaviour{
        "clusters.capacity",
        "A thread block cluster needs a part of a context's SMs with as many SMs as it has blocks, and then packs "
        "without loss",
        Known::recorded},
    Behaviour{"clusters.parts",
              "The parts are units of 8 for plain groups, whole clusters of the chip for the device, remainders and "
              "MAX_POTENTIAL_CLUSTER_SIZE, and runs of pairs less one for IGNORE_SM_COSCHEDULING",
              Known::recorded},
    Behaviour{"clusters.limit", "Clusters have at most 16 blocks on 9.x and 10.x and 8 on later cards",
              Known::documented},
};

}  // namespace

std::span<const Behaviour> chip_behaviours() { return behaviours; }

}  // namespace gctx::sim
