// The cards that the software driver knows.
#include "sim/chip/chip.hpp"

namespace gctx::sim {
namespace {

constexpr std::uint64_t mebibytes(std::uint64_t count) { return count << 20; }

// Counts of SMs, memory sizes and limits per SM are those of the public specifications. Where the layout is `assumed`,
// the counts per cluster are one plausible way to switch off SMs: real cards of one model differ from each other.
std::vector<Profile> make_profiles() {
  std::vector<Profile> list;
  list.push_back({.key = "h200",
                  .name = "NVIDIA H200 (simulated)",
                  .cc_major = 9,
                  .cc_minor = 0,
                  .sms_per_gpc = {8, 16, 16, 16, 16, 16, 18, 18, 2, 2, 2, 2},
                  .layout = Known::recorded,
                  .min_partition = 8,
                  .alignment = 8,
                  .memory_bytes = mebibytes(143771),
                  .max_threads_per_sm = 2048,
                  .max_blocks_per_sm = 32,
                  .max_cluster = 16});
  list.push_back({.key = "h100",
                  .name = "NVIDIA H100 80GB HBM3 (simulated)",
                  .cc_major = 9,
                  .cc_minor = 0,
                  .sms_per_gpc = {16, 16, 16, 16, 16, 16, 18, 18},
                  .layout = Known::assumed,
                  .min_partition = 8,
                  .alignment = 8,
                  .memory_bytes = mebibytes(81559),
                  .max_threads_per_sm = 2048,
                  .max_blocks_per_sm = 32,
                  .max_cluster = 16});
  list.push_back({.key = "a100",
                  .name = "NVIDIA A100-SXM4-80GB (simulated)",
                  .cc_major = 8,
                  .cc_minor = 0,
                  .sms_per_gpc = {14, 14, 16, 16, 16, 16, 16},
                  .layout = Known::assumed,
                  .min_partition = 4,
                  .alignment = 2,
                  .memory_bytes = mebibytes(81920),
                  .max_threads_per_sm = 2048,
                  .max_blocks_per_sm = 32});
  list.push_back({.key = "l40s",
                  .name = "NVIDIA L40S (simulated)",
                  .cc_major = 8,
                  .cc_minor = 9,
                  .sms_per_gpc = {10, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12},
                  .layout = Known::assumed,
                  .min_partition = 4,
                  .alignment = 2,
                  .memory_bytes = mebibytes(46068),
                  .max_threads_per_sm = 1536,
                  .max_blocks_per_sm = 24});
  list.push_back({.key = "rtx4090",
                  .name = "NVIDIA GeForce RTX 4090 (simulated)",
                  .cc_major = 8,
                  .cc_minor = 9,
                  .sms_per_gpc = {10, 10, 12, 12, 12, 12, 12, 12, 12, 12, 12},
                  .layout = Known::assumed,
                  .min_partition = 4,
                  .alignment = 2,
                  .memory_bytes = mebibytes(24564),
                  .max_threads_per_sm = 1536,
                  .max_blocks_per_sm = 24});
  // Two dies, modelled as two locality domains of 74 SMs.
  list.push_back({.key = "b200",
                  .name = "NVIDIA B200 (simulated)",
                  .cc_major = 10,
                  .cc_minor = 0,
                  .sms_per_gpc = {18, 18, 18, 20, 18, 18, 18, 20},
                  .layout = Known::assumed,
                  .min_partition = 8,
                  .alignment = 8,
                  .memory_bytes = mebibytes(183359),
                  .max_threads_per_sm = 2048,
                  .max_blocks_per_sm = 32,
                  .max_cluster = 16,
                  .locality_domains = 2});
  // Clusters of the chip that are no multiple of the alignment: few aligned counts fit, as reported of such cards
  // (docs/drivers.md).
  list.push_back({.key = "rtx5080",
                  .name = "NVIDIA GeForce RTX 5080 (simulated)",
                  .cc_major = 12,
                  .cc_minor = 0,
                  .sms_per_gpc = {12, 12, 12, 12, 12, 12, 12},
                  .layout = Known::assumed,
                  .min_partition = 8,
                  .alignment = 8,
                  .memory_bytes = mebibytes(16303),
                  .max_threads_per_sm = 1536,
                  .max_blocks_per_sm = 24,
                  .max_cluster = 8});
  // A Tegra SoC: the alignment is 2 whatever the compute capability (cuda.h).
  list.push_back({.key = "thor",
                  .name = "NVIDIA Thor (simulated)",
                  .cc_major = 11,
                  .cc_minor = 0,
                  .sms_per_gpc = {6, 6, 8},
                  .layout = Known::assumed,
                  .min_partition = 2,
                  .alignment = 2,
                  .memory_bytes = mebibytes(125772),
                  .max_threads_per_sm = 1536,
                  .max_blocks_per_sm = 24,
                  .max_cluster = 8,
                  .integrated = true});
  return list;
}

}  // namespace

const std::vector<Profile>& profiles() {
  static const std::vector<Profile> list = make_profiles();
  return list;
}

const Profile* find_profile(std::string_view key) {
  for (const Profile& profile : profiles()) {
    if (profile.key == key) return &profile;
  }
  return nullptr;
}

}  // namespace gctx::sim
