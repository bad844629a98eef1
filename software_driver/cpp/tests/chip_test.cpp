// The model of a chip against what the hardware answered, what the driver's documentation promises, and what must hold
// of every split.
#include "chip/chip.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/check.hpp"

using software_driver::Bond;
using software_driver::Chip;
using software_driver::find_profile;
using software_driver::SmSet;
using software_driver::SplitAnswer;
using software_driver::test::failures;
using Params = CU_DEV_SM_RESOURCE_GROUP_PARAMS;

namespace {

#define CHECK_EQUAL(left, right)                                                                                      \
  do {                                                                                                                \
    const auto left_value = static_cast<long long>(left);                                                             \
    const auto right_value = static_cast<long long>(right);                                                           \
    if (left_value != right_value) {                                                                                  \
      ++failures;                                                                                                     \
      std::printf("%s:%d: failed: %s is %lld, should be %lld\n", __FILE__, __LINE__, #left, left_value, right_value); \
    }                                                                                                                 \
  } while (false)

constexpr unsigned fine = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
constexpr unsigned compact = CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
constexpr unsigned backfill = CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
constexpr unsigned local = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID;
constexpr unsigned supplemental = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
constexpr unsigned any_domain = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY;

Chip chip_of(const char* key) { return Chip(*find_profile(key)); }

SmSet set_of(std::initializer_list<int> sms) {
  SmSet set;
  for (const int sm : sms) {
    set.set(static_cast<std::size_t>(sm));
  }
  return set;
}

SmSet joined(const SplitAnswer& answer) {
  SmSet all = answer.remainder;
  for (const SmSet& group : answer.groups) {
    all |= group;
  }
  return all;
}

Params group(unsigned count, unsigned coscheduled = 0, unsigned preferred = 0, unsigned flags = 0,
             unsigned domain = 0) {
  Params params{};
  params.smCount = count;
  params.coscheduledSmCount = coscheduled;
  params.preferredCoscheduledSmCount = preferred;
  params.flags = flags;
  params.localityDomainId = domain;
  return params;
}

SplitAnswer structured(const Chip& chip, const std::vector<Params>& params, int version, bool dry = false) {
  return chip.split_structured(chip.all(), params, 0, version, dry);
}

// Disjoint, complete, and named as what they are.
void check_is_a_partition(const SmSet& input, const SplitAnswer& answer) {
  std::size_t total = answer.remainder.count();
  for (const SmSet& sms : answer.groups) {
    total += sms.count();
  }
  CHECK_EQUAL(total, input.count());
  CHECK(joined(answer) == input);
  CHECK_EQUAL(answer.coscheduled.size(), answer.groups.size());
}

void check_counts(const SplitAnswer& answer, std::initializer_list<unsigned> counts, unsigned remainder) {
  CHECK_EQUAL(answer.result, CUDA_SUCCESS);
  CHECK_EQUAL(answer.groups.size(), counts.size());
  if (answer.groups.size() != counts.size()) {
    return;
  }
  std::size_t i = 0;
  for (const unsigned count : counts) {
    CHECK_EQUAL(answer.groups[i++].count(), count);
  }
  CHECK_EQUAL(answer.remainder.count(), remainder);
}

// Every row of the recording of the H200 with driver 13.0: all minima, flags and numbers of groups asked for.
void test_h200_splits_by_count_as_recorded() {
  const Chip chip = chip_of("h200");
  // Size of a group, and how many groups of it there are at most, with flags 0 and 2.
  const std::vector<std::pair<unsigned, unsigned>> recorded{{8, 15},  {16, 8},  {24, 5},  {32, 4}, {40, 3}, {48, 2},
                                                            {56, 2},  {64, 2},  {72, 1},  {80, 1}, {88, 1}, {96, 1},
                                                            {104, 1}, {112, 1}, {120, 1}, {128, 1}};
  for (unsigned min = 0; min <= 133; ++min) {
    for (const unsigned asked : {1U, 2U, 3U, 4U, 7U, 16U, 64U, 132U}) {
      for (const unsigned flags : {0U, compact}) {
        const SplitAnswer answer = chip.split_by_count(chip.all(), min, flags, asked);
        if (min > 132) {
          CHECK_EQUAL(answer.result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
          continue;
        }
        unsigned size = 132;
        unsigned most = 1;
        for (auto row = recorded.rbegin(); row != recorded.rend(); ++row) {
          if (min <= row->first) {
            std::tie(size, most) = *row;
          }
        }
        const unsigned count = std::min(asked, most);
        CHECK_EQUAL(answer.result, CUDA_SUCCESS);
        CHECK_EQUAL(answer.groups.size(), count);
        for (const SmSet& sms : answer.groups) {
          CHECK_EQUAL(sms.count(), size);
        }
        CHECK_EQUAL(answer.remainder.count(), 132 - count * size);
        check_is_a_partition(chip.all(), answer);
      }
      const SplitAnswer answer = chip.split_by_count(chip.all(), min, fine, asked);
      if (min > 132) {
        CHECK_EQUAL(answer.result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
      } else {
        const unsigned size = min < 2 ? 2 : (min + 1) / 2 * 2;
        CHECK_EQUAL(answer.groups.size(), std::min(asked, 132 / size));
        for (const SmSet& sms : answer.groups) {
          CHECK_EQUAL(sms.count(), size);
        }
        check_is_a_partition(chip.all(), answer);
      }
      CHECK_EQUAL(chip.split_by_count(chip.all(), min, fine | compact, asked).result, CUDA_ERROR_INVALID_VALUE);
    }
  }
}

void test_h200_sm_ids_as_recorded() {
  const Chip chip = chip_of("h200");
  const SplitAnswer eights = chip.split_by_count(chip.all(), 8, 0, 132);
  CHECK(eights.groups[0] == set_of({0, 1, 16, 17, 32, 33, 48, 49}));
  CHECK(eights.groups[3] == set_of({6, 7, 22, 23, 38, 39, 54, 55}));
  CHECK(eights.groups[7] == set_of({14, 15, 30, 31, 46, 47, 62, 63}));
  CHECK(eights.groups[8] == set_of({64, 65, 78, 79, 92, 93, 106, 107}));
  CHECK(eights.groups[14] == set_of({76, 77, 90, 91, 104, 105, 118, 119}));
  CHECK(eights.remainder == set_of({120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131}));
  const SplitAnswer sixteens = chip.split_by_count(chip.all(), 16, 0, 132);
  CHECK(sixteens.groups[0] == set_of({0, 1, 16, 17, 32, 33, 48, 49, 64, 65, 78, 79, 94, 95, 128, 129}));
  CHECK(sixteens.groups[7] == set_of({14, 15, 30, 31, 46, 47, 62, 63, 92, 93, 106, 107, 118, 119, 126, 127}));
  const SplitAnswer tens = chip.split_by_count(chip.all(), 10, fine, 132);
  CHECK(tens.groups[12] == set_of({16, 17, 42, 43, 68, 69, 94, 95, 120, 121}));
  const SplitAnswer sixteen = chip.split_by_count(chip.all(), 16, 0, 2);
  CHECK((sixteen.groups[0] | eights.groups[0]) == set_of({0, 1, 4, 5, 16, 17, 20, 21, 32, 33, 36, 37, 48, 49, 52, 53}));
}

void test_h200_clusters_as_recorded() {
  const Chip chip = chip_of("h200");
  const auto check = [&](const SmSet& sms, Bond bond, unsigned most, std::initializer_list<unsigned> active) {
    CHECK_EQUAL(chip.max_cluster_size(sms, bond), most);
    unsigned size = 2;
    for (const unsigned clusters : active) {
      CHECK_EQUAL(chip.max_active_clusters(sms, size, 8, bond), clusters);
      size *= 2;
    }
  };
  const SplitAnswer eights = chip.split_by_count(chip.all(), 8, 0, 132);
  check(chip.all(), Bond::gpc, 16, {528, 248, 124, 58});
  check(eights.groups[0], eights.bonds[0], 8, {32, 16, 8, 0});
  check(eights.remainder, eights.remainder_bond, 2, {48, 0, 0, 0});
  const SplitAnswer halves = chip.split_by_count(chip.all(), 64, 0, 132);
  check(halves.groups[0], halves.bonds[0], 8, {256, 120, 56, 0});
  const SplitAnswer compact_halves = chip.split_by_count(chip.all(), 64, compact, 132);
  check(compact_halves.groups[0], compact_halves.bonds[0], 16, {256, 124, 58, 25});
  const SplitAnswer pairs = chip.split_by_count(chip.all(), 64, fine, 132);
  check(pairs.groups[0], pairs.bonds[0], 6, {256, 48, 0, 0});
  const SplitAnswer large = chip.split_by_count(chip.all(), 48, compact, 132);
  check(large.groups[0], large.bonds[0], 16, {192, 96, 48, 17});
  const SplitAnswer most = chip.split_by_count(chip.all(), 128, 0, 132);
  check(most.groups[0], most.bonds[0], 10, {512, 248, 124, 0});
  const SplitAnswer most_pairs = chip.split_by_count(chip.all(), 128, fine, 132);
  check(most_pairs.groups[0], most_pairs.bonds[0], 14, {512, 208, 98, 0});
}

// Rows of the recording of splits of what a context over a group holds: groups, SMs in each, SMs left.
void test_h200_splits_of_contexts_as_recorded() {
  const Chip chip = chip_of("h200");
  struct Row {
    unsigned min, flags, groups, size, left;
  };
  const auto check = [&](const SmSet& sms, unsigned alignment, Bond bond, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      const SplitAnswer answer = chip.split_by_count(sms, row.min, row.flags, 132, alignment, bond);
      CHECK_EQUAL(answer.groups.size(), row.groups);
      for (const SmSet& group_sms : answer.groups) {
        CHECK_EQUAL(group_sms.count(), row.size);
      }
      CHECK_EQUAL(answer.remainder.count(), row.left);
    }
  };
  const SplitAnswer plain = chip.split_by_count(chip.all(), 64, 0, 132);
  CHECK_EQUAL(plain.coscheduled[0], 8);
  check(plain.groups[0], plain.coscheduled[0], plain.bonds[0],
        {{8, 0, 7, 8, 8},
         {16, 0, 4, 14, 8},
         {24, 0, 2, 24, 16},
         {32, 0, 2, 30, 4},
         {64, 0, 1, 64, 0},
         {10, 1, 6, 10, 4}});
  const SplitAnswer large = chip.split_by_count(chip.all(), 64, compact, 132);
  check(large.groups[0], large.coscheduled[0], large.bonds[0],
        {{8, 0, 4, 8, 32}, {16, 0, 4, 14, 8}, {32, 0, 2, 30, 4}});
  const SplitAnswer whole = chip.split_by_count(chip.all(), 128, 0, 132);
  check(whole.groups[0], whole.coscheduled[0], whole.bonds[0],
        {{8, 0, 15, 8, 8}, {16, 0, 8, 10, 48}, {32, 0, 4, 26, 24}, {64, 0, 2, 60, 8}});
  const SplitAnswer pairs = chip.split_by_count(chip.all(), 64, fine, 132);
  CHECK_EQUAL(pairs.coscheduled[0], 2);
  check(
      pairs.groups[0], pairs.coscheduled[0], pairs.bonds[0],
      {{2, 0, 24, 2, 16}, {4, 0, 16, 2, 32}, {8, 0, 8, 6, 16}, {14, 0, 4, 14, 8}, {16, 0, 4, 16, 0}, {4, 1, 16, 4, 0}});
  CHECK(chip.split_by_count(pairs.groups[0], 8, 0, 132, pairs.coscheduled[0], pairs.bonds[0]).groups[2] ==
        set_of({4, 5, 16, 17, 32, 33}));
  const SplitAnswer units = chip.split_by_count(chip.all(), 120, 0, 132);
  CHECK(chip.split_by_count(units.groups[0], 16, 0, 132, units.coscheduled[0], units.bonds[0]).groups[0] ==
        set_of({0, 1, 14, 15, 16, 17, 30, 31, 32, 33, 46, 47, 48, 49, 62, 63}));
  const SplitAnswer one = chip.split_by_count(chip.all(), 8, 0, 1);
  CHECK_EQUAL(one.remainder_coscheduled, 2);
  check(one.remainder, one.remainder_coscheduled, one.remainder_bond,
        {{8, 2, 11, 2, 102},
         {16, 2, 7, 16, 12},
         {20, 2, 6, 18, 16},
         {62, 2, 2, 54, 16},
         {20, 0, 6, 16, 28},
         {62, 0, 2, 56, 12}});
}

// The driver's documentation names these for a Hopper card of 132 SMs.
void test_documented_splits_by_count() {
  for (const char* key : {"h100", "h200"}) {
    const Chip chip = chip_of(key);
    check_counts(chip.split_by_count(chip.all(), 72, 0, 2), {72}, 60);
    check_counts(chip.split_by_count(chip.all(), 11, 0, 6), {16, 16, 16, 16, 16, 16}, 36);
    check_counts(chip.split_by_count(chip.all(), 11, fine, 6), {12, 12, 12, 12, 12, 12}, 60);
    check_counts(chip.split_by_count(chip.all(), 1, 0, 2), {8, 8}, 116);
  }
}

// Guideline of the 12.4 era.
void test_grain_before_hopper() {
  const Chip chip = chip_of("a100");
  check_counts(chip.split_by_count(chip.all(), 1, 0, 2), {4, 4}, 100);
  check_counts(chip.split_by_count(chip.all(), 5, 0, 1), {6}, 102);
  check_counts(chip.split_by_count(chip.all(), 1, fine, 1), {2}, 106);
  check_counts(chip.split_by_count(chip.all(), 54, 0, 3), {54, 54}, 0);
  CHECK_EQUAL(chip.split_by_count(chip.all(), 109, 0, 1).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

void test_bad_arguments_of_the_split_by_count() {
  const Chip chip = chip_of("h200");
  CHECK_EQUAL(chip.split_by_count(chip.all(), 8, 0, 0).result, CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(chip.split_by_count(SmSet(), 0, 0, 1).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

void test_documented_structured_splits() {
  const Chip chip = chip_of("h200");
  for (const int version : {13010, 13030, 13040, 13050}) {
    // 16 SMs able to run clusters of 16.
    const SplitAnswer clusters = structured(chip, {group(16)}, version);
    check_counts(clusters, {16}, 116);
    CHECK_EQUAL(chip.max_cluster_size(clusters.groups[0], clusters.bonds[0]), 16);
    // 16 without clusters, and the rest as a remainder or as a group.
    check_counts(structured(chip, {group(16, 2, 2)}, version), {16}, 116);
    check_counts(structured(chip, {group(16, 2, 2), group(0, 2, 2, backfill)}, version), {16, 116}, 0);
    const SplitAnswer fours = structured(chip, {group(28, 4, 4), group(32, 4, 4)}, version);
    check_counts(fours, {28, 32}, 72);
    CHECK(chip.max_cluster_size(fours.groups[0], fours.bonds[0]) >= 4);
    check_counts(structured(chip, {group(0, 8, 8)}, version), {120}, 12);
    const SplitAnswer rest = structured(chip, {group(8, 2, 2), group(0, 4, 4)}, version);
    CHECK_EQUAL(rest.result, CUDA_SUCCESS);
    CHECK_EQUAL(rest.groups[1].count() % 4, 0);
    CHECK(rest.groups[1].count() >= 100);
    check_counts(structured(chip, {group(10, 2)}, version), {10}, 122);
    check_counts(structured(chip, {group(8, 4), group(0, 2, 0, backfill)}, version), {8, 124}, 0);
  }
}

void test_zero_coscheduling_by_version() {
  const Chip chip = chip_of("h200");
  const SplitAnswer before = structured(chip, {group(0)}, 13030);
  check_counts(before, {120}, 12);
  CHECK_EQUAL(before.params[0].smCount, 120);
  CHECK_EQUAL(before.params[0].coscheduledSmCount, 8);
  const SplitAnswer after = structured(chip, {group(0)}, 13040);
  check_counts(after, {132}, 0);
  CHECK_EQUAL(after.params[0].smCount, 132);
  CHECK_EQUAL(after.params[0].coscheduledSmCount, 0);
  const Chip b200 = chip_of("b200");
  check_counts(structured(b200, {group(0)}, 13040), {148}, 0);
  CHECK_EQUAL(structured(chip, {group(10)}, 13010).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  check_counts(structured(chip, {group(10)}, 13040), {10}, 122);
}

void test_structured_agrees_with_by_count() {
  const Chip chip = chip_of("h200");
  check_counts(structured(chip, {group(16, 8), group(0, 8)}, 13010), {16, 104}, 12);
  check_counts(structured(chip, {group(8, 8), group(16, 8), group(24, 8)}, 13010), {8, 16, 24}, 84);
  // Seven groups of 16 are whole sets of 8 in one GPC each; an eighth would have to be pieced together.
  const std::vector<Params> seven(7, group(16));
  check_counts(structured(chip, seven, 13010), {16, 16, 16, 16, 16, 16, 16}, 20);
  const std::vector<Params> eight(8, group(16));
  CHECK_EQUAL(structured(chip, eight, 13010).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  check_counts(structured(chip, {group(0, 2)}, 13010), {132}, 0);
  check_counts(structured(chip, {group(120, 8)}, 13010), {120}, 12);
  CHECK_EQUAL(structured(chip, {group(128, 8)}, 13010).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  check_counts(structured(chip, {group(10, 8, 0, backfill)}, 13010), {10}, 122);
  check_counts(structured(chip, {group(132, 8, 0, backfill)}, 13010), {132}, 0);
}

void test_structured_groups_are_served_in_order() {
  const Chip chip = chip_of("h200");
  const SplitAnswer answer = structured(chip, {group(0, 8, 0, backfill), group(0, 2)}, 13010);
  CHECK_EQUAL(answer.result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  const SplitAnswer dry = structured(chip, {group(0, 8, 0, backfill), group(0, 2)}, 13010, true);
  check_counts(dry, {132, 0}, 0);
  CHECK_EQUAL(dry.params[1].smCount, 0);
}

void test_structured_refusals() {
  const Chip chip = chip_of("h200");
  const auto result = [&](const Params& params, int version = 13010, bool dry = false) {
    return structured(chip, {params}, version, dry).result;
  };
  const std::vector<Params> one{group(16)};
  CHECK_EQUAL(chip.split_structured(chip.all(), one, 1, 13010, false).result, CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(structured(chip, {}, 13010).result, CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(result(group(16, 8, 0, 8)), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(result(group(16, 8, 0, local)), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(result(group(16, 8, 0, local | supplemental), 13040), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(result(group(16, 8, 0, supplemental), 13050), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(result(group(16, 8, 0, 0, 1), 13050), CUDA_ERROR_INVALID_VALUE);
  Params reserved = group(16);
  reserved.reserved[3] = 1;
  CHECK_EQUAL(result(reserved), CUDA_ERROR_INVALID_VALUE);
  for (const Params& params : {group(1, 2), group(7, 2), group(134, 2), group(12, 8), group(16, 3), group(68, 34),
                               group(8, 16), group(16, 8, 12), group(4, 8, 0, backfill), group(4, 0, 0, backfill)}) {
    CHECK_EQUAL(result(params), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  }
  // No GPC holds 32 SMs.
  CHECK_EQUAL(result(group(32, 32)), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK_EQUAL(result(group(0, 32)), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK_EQUAL(result(group(0, 32), 13010, true), CUDA_SUCCESS);
  CHECK_EQUAL(result(group(64, 32, 0, backfill)), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  // Seven GPCs hold 16.
  CHECK_EQUAL(result(group(112, 16)), CUDA_SUCCESS);
  CHECK_EQUAL(result(group(128, 16)), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK_EQUAL(result(group(128, 16, 0, backfill)), CUDA_SUCCESS);
  // Dry runs with a count.
  CHECK_EQUAL(result(group(16, 8), 13030, true), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK_EQUAL(result(group(16, 8), 13040, true), CUDA_SUCCESS);
  const Chip a100 = chip_of("a100");
  CHECK_EQUAL(structured(a100, {group(16, 4)}, 13010).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK_EQUAL(structured(a100, {group(16, 2)}, 13010).result, CUDA_SUCCESS);
  // What was refused is handed back as it came.
  const SplitAnswer refused = structured(chip, {group(0), group(0, 32)}, 13010);
  CHECK_EQUAL(refused.params[0].smCount, 0);
  CHECK(refused.groups.empty());
}

void test_desktop_blackwell_refuses_aligned_halves() {
  const Chip chip = chip_of("rtx5080");
  CHECK_EQUAL(structured(chip, {group(40), group(40)}, 13010).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  check_counts(structured(chip, {group(40, 0, 0, backfill), group(40, 0, 0, backfill)}, 13010), {40, 40}, 4);
}

void test_locality_domains() {
  const Chip chip = chip_of("b200");
  CHECK_EQUAL(chip.locality_domain_sms(), 72);
  const SplitAnswer both = structured(chip, {group(64, 8, 0, local, 0), group(64, 8, 0, local, 1)}, 13040);
  check_counts(both, {64, 64}, 20);
  for (std::size_t sm = 0; sm < chip.sm_count(); ++sm) {
    for (std::size_t i = 0; i < both.groups.size(); ++i) {
      if (both.groups[i][sm]) {
        CHECK_EQUAL(chip.locality_domain_of(static_cast<int>(sm)), i);
      }
    }
  }
  check_counts(structured(chip, {group(0, 2, 0, local, 1)}, 13040), {72}, 76);
  check_counts(structured(chip, {group(0, 2, 0, local | supplemental, 1)}, 13050), {74}, 74);
  check_counts(structured(chip, {group(0, 2, 0, local | supplemental, any_domain)}, 13050), {148}, 0);
  CHECK_EQUAL(structured(chip, {group(80, 2, 0, local, 1)}, 13040).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  const SplitAnswer filled = structured(chip, {group(80, 2, 0, local | backfill, 1)}, 13040);
  check_counts(filled, {80}, 68);
  CHECK_EQUAL(structured(chip, {group(8, 8, 0, local, 2)}, 13040).result, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  // As the code of a library for this card expects them: 100 SMs of each domain, and 106 with SMs of none.
  const Chip vr200 = chip_of("vr200");
  CHECK_EQUAL(vr200.locality_domain_sms(), 100);
  check_counts(structured(vr200, {group(0, 2, 0, local, 0), group(0, 2, 0, local, 1)}, 13050), {100, 100}, 12);
  constexpr unsigned filled_up = local | backfill;
  check_counts(structured(vr200, {group(106, 2, 0, filled_up, 0), group(106, 2, 0, filled_up, 1)}, 13050), {106, 106},
               0);
  const Chip h200 = chip_of("h200");
  check_counts(structured(h200, {group(16, 8, 0, local, 0)}, 13040), {16}, 116);
  CHECK_EQUAL(h200.locality_domain_sms(), 132);
}

// Splits of pieces of splits, on every card: whatever is asked, the answer is a partition, and the same each time.
void test_random_splits_are_partitions() {
  const unsigned seed = 20261120;
  std::mt19937 random(seed);
  const auto below = [&](unsigned end) { return static_cast<unsigned>(random() % end); };
  const int before = failures;
  for (int round = 0; round < 4000 && failures == before; ++round) {
    const auto& profiles = software_driver::profiles();
    const Chip chip(profiles[below(static_cast<unsigned>(profiles.size()))]);
    SmSet input = chip.all();
    for (int step = 0; step < 3; ++step) {
      const unsigned flags = below(3);
      const unsigned min = below(static_cast<unsigned>(input.count()) + 2);
      const SplitAnswer answer = chip.split_by_count(input, min, flags, 1 + below(40));
      CHECK_EQUAL(answer.result != CUDA_SUCCESS, min > input.count());
      if (answer.result == CUDA_SUCCESS) {
        check_is_a_partition(input, answer);
        // Groups of what a context holds can stay smaller than asked, as the hardware's do.
        for (const SmSet& sms : answer.groups) {
          CHECK(sms.count() == answer.groups[0].count());
          CHECK(sms.count() >= min || input != chip.all());
        }
      }
      std::vector<Params> params;
      for (unsigned i = 0, count = 1 + below(4); i < count; ++i) {
        const unsigned grain = below(2) != 0 ? 0 : 2U << below(4);
        params.push_back(group(below(3) == 0 ? 0 : 2 * below(33), grain, 0, below(2)));
      }
      const int version = std::vector{13010, 13030, 13040, 13050}[below(4)];
      const SplitAnswer uneven = chip.split_structured(input, params, 0, version, false);
      const SplitAnswer again = chip.split_structured(input, params, 0, version, false);
      CHECK(uneven.groups == again.groups && uneven.remainder == again.remainder);
      if (uneven.result == CUDA_SUCCESS) {
        check_is_a_partition(input, uneven);
        for (std::size_t i = 0; i < params.size(); ++i) {
          CHECK_EQUAL(uneven.groups[i].count(), uneven.params[i].smCount);
          CHECK(uneven.params[i].smCount != 0);
          if (params[i].smCount != 0) {
            CHECK_EQUAL(uneven.params[i].smCount, params[i].smCount);
          }
        }
        input = below(2) != 0 && uneven.remainder.any() ? uneven.remainder
                                                        : uneven.groups[below(static_cast<unsigned>(params.size()))];
      } else if (answer.result == CUDA_SUCCESS) {
        input = answer.groups[below(static_cast<unsigned>(answer.groups.size()))];
      }
    }
  }
  if (failures != before) {
    std::printf("seed %u\n", seed);
  }
}

void test_profiles_are_plausible() {
  CHECK(find_profile("h300") == nullptr);
  for (const auto& [key, sms] : std::vector<std::pair<const char*, unsigned>>{{"h200", 132},
                                                                              {"h100", 132},
                                                                              {"a100", 108},
                                                                              {"l40s", 142},
                                                                              {"rtx4090", 128},
                                                                              {"b200", 148},
                                                                              {"vr200", 212},
                                                                              {"rtx5080", 84}}) {
    const Chip chip = chip_of(key);
    CHECK_EQUAL(chip.sm_count(), sms);
    CHECK_EQUAL(chip.all().count(), sms);
    CHECK(chip.profile().name.ends_with("(simulated)"));
    CHECK_EQUAL(chip.max_active_clusters(chip.all(), 1, 4), 4 * sms);
  }
  CHECK_EQUAL(chip_of("a100").max_cluster_size(chip_of("a100").all()), 1);
  std::set<std::string_view> ids;
  for (const auto& behaviour : software_driver::chip_behaviours()) {
    CHECK(ids.insert(behaviour.subject).second);
  }
  CHECK(!ids.empty());
}

}  // namespace

int main() {
  test_h200_splits_by_count_as_recorded();
  test_h200_sm_ids_as_recorded();
  test_h200_clusters_as_recorded();
  test_h200_splits_of_contexts_as_recorded();
  test_documented_splits_by_count();
  test_grain_before_hopper();
  test_bad_arguments_of_the_split_by_count();
  test_documented_structured_splits();
  test_zero_coscheduling_by_version();
  test_structured_agrees_with_by_count();
  test_structured_groups_are_served_in_order();
  test_structured_refusals();
  test_desktop_blackwell_refuses_aligned_halves();
  test_locality_domains();
  test_random_splits_are_partitions();
  test_profiles_are_plausible();
  return software_driver::test::summary("chip_test");
}
