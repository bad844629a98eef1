// The cards that the software driver knows.
#include "chip/chip.hpp"

namespace gctx::sim {
namespace {

constexpr std::uint64_t mebibytes(std::uint64_t count) { return count << 20; }
constexpr std::size_t kibibytes(std::size_t count) { return count << 10; }
// The part of the specified bandwidth (GB/s) that kernels get, and the bytes that one SM moves in a clock cycle: fitted
// to the decode step of tests/hardware/times/h200-driver-13.0.json, and assumed for the other cards.
constexpr double usable(double specified) { return 0.7 * specified; }
constexpr double bytes_per_clock = 28.8;

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
                  .shared_bytes_per_sm = kibibytes(228),
                  .clock_khz = 1980000,
                  .memory_clock_khz = 3201000,
                  .memory_bus_bits = 6016,  // recorded; 6144 by the specification
                  .l2_bytes = 60 << 20,
                  .copy_engines = 3,
                  .memory_bytes_per_ns = usable(4800),
                  .sm_bytes_per_ns = bytes_per_clock * 1980000 / 1e6,
                  .max_cluster = 16});
  list.push_back({.key = "h100",
                  .name = "NVIDIA H100 80GB HBM3 (simulated)",
                  .cc_major = 9,
                  .cc_minor = 0,
                  .sms_per_gpc = {8, 16, 16, 16, 16, 16, 18, 18, 2, 2, 2, 2},
                  .layout = Known::recorded,
                  .min_partition = 8,
                  .alignment = 8,
                  .memory_bytes = mebibytes(81559),
                  .max_threads_per_sm = 2048,
                  .max_blocks_per_sm = 32,
                  .shared_bytes_per_sm = kibibytes(228),
                  .clock_khz = 1980000,
                  .memory_clock_khz = 2619000,
                  .memory_bus_bits = 5120,
                  .l2_bytes = 50 << 20,
                  .copy_engines = 3,
                  .memory_bytes_per_ns = usable(3350),
                  .sm_bytes_per_ns = bytes_per_clock * 1980000 / 1e6,
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
                  .max_blocks_per_sm = 32,
                  .shared_bytes_per_sm = kibibytes(164),
                  .clock_khz = 1410000,
                  .memory_clock_khz = 1593000,
                  .memory_bus_bits = 5120,
                  .l2_bytes = 40 << 20,
                  .copy_engines = 3,
                  .memory_bytes_per_ns = usable(2039),
                  .sm_bytes_per_ns = bytes_per_clock * 1410000 / 1e6});
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
                  .max_blocks_per_sm = 24,
                  .shared_bytes_per_sm = kibibytes(100),
                  .clock_khz = 2520000,
                  .memory_clock_khz = 9001000,
                  .memory_bus_bits = 384,
                  .l2_bytes = 96 << 20,
                  .copy_engines = 3,
                  .memory_bytes_per_ns = usable(864),
                  .sm_bytes_per_ns = bytes_per_clock * 2520000 / 1e6});
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
                  .max_blocks_per_sm = 24,
                  .shared_bytes_per_sm = kibibytes(100),
                  .clock_khz = 2520000,
                  .memory_clock_khz = 10501000,
                  .memory_bus_bits = 384,
                  .l2_bytes = 72 << 20,
                  .copy_engines = 2,
                  .memory_bytes_per_ns = usable(1008),
                  .sm_bytes_per_ns = bytes_per_clock * 2520000 / 1e6});
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
                  .shared_bytes_per_sm = kibibytes(228),
                  .clock_khz = 1965000,
                  .memory_clock_khz = 3996000,
                  .memory_bus_bits = 8192,
                  .l2_bytes = 126 << 20,
                  .copy_engines = 3,
                  .memory_bytes_per_ns = usable(8000),
                  .sm_bytes_per_ns = bytes_per_clock * 1965000 / 1e6,
                  .max_cluster = 16,
                  .locality_domains = 2});
  // GPCs whose size is not a multiple of the alignment: few aligned counts fit, as reported for such cards
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
                  .shared_bytes_per_sm = kibibytes(100),
                  .clock_khz = 2617000,
                  .memory_clock_khz = 15001000,
                  .memory_bus_bits = 256,
                  .l2_bytes = 64 << 20,
                  .copy_engines = 2,
                  .memory_bytes_per_ns = usable(960),
                  .sm_bytes_per_ns = bytes_per_clock * 2617000 / 1e6,
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
                  .shared_bytes_per_sm = kibibytes(228),
                  .clock_khz = 1575000,
                  .memory_clock_khz = 4266000,
                  .memory_bus_bits = 256,
                  .l2_bytes = 32 << 20,
                  .copy_engines = 2,
                  .memory_bytes_per_ns = usable(273),
                  .sm_bytes_per_ns = bytes_per_clock * 1575000 / 1e6,
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
    if (profile.key == key) {
      return &profile;
    }
  }
  return nullptr;
}

}  // namespace gctx::sim
