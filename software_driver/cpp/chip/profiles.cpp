// The cards that the software driver knows.
#include <algorithm>

#include "chip/chip.hpp"

namespace software_driver {
namespace {

// The part of the specified bandwidth that kernels get, and the bytes that one SM moves in a clock cycle: fitted to the
// decode step of tests/hardware/times/h200-driver-13.0.json, and assumed for the other cards.
constexpr double usable = 0.7;
constexpr double bytes_per_clock = 28.8;

// What the cards of an architecture have in common.
Profile architecture(int cc_major, int cc_minor, int threads, int blocks, std::size_t shared_kibibytes) {
  const bool hopper = cc_major >= 9;
  return {.key = "",
          .name = "",
          .cc_major = cc_major,
          .cc_minor = cc_minor,
          .sms_per_gpc = {},
          .min_partition = hopper ? 8U : 4U,
          .alignment = hopper ? 8U : 2U,
          .max_threads_per_sm = threads,
          .max_blocks_per_sm = blocks,
          .shared_bytes_per_sm = shared_kibibytes << 10,
          .copy_engines = 3,
          .max_cluster = cc_major >= 11 ? 8U
                         : hopper       ? 16U
                                        : 1U};
}

// Sizes in MiB, clocks in kHz, the bus in bits, the bandwidth of the specification in GB/s.
struct Memory {
  std::uint64_t size;
  int clock;
  int bus;
  int bandwidth;
  int l2;
};

Profile card(Profile profile, const char* key, const char* name, std::vector<int> sms_per_gpc, int clock,
             const Memory& memory) {
  profile.key = key;
  profile.name = std::string("NVIDIA ") + name + " (simulated)";
  profile.sms_per_gpc = std::move(sms_per_gpc);
  profile.clock_khz = clock;
  profile.memory_bytes = memory.size << 20;
  profile.memory_clock_khz = memory.clock;
  profile.memory_bus_bits = memory.bus;
  profile.l2_bytes = memory.l2 << 20;
  profile.memory_bytes_per_ns = usable * memory.bandwidth;
  profile.sm_bytes_per_ns = bytes_per_clock * clock / 1e6;
  return profile;
}

// Counts of SMs, memory sizes and limits per SM are those of the public specifications. Where the layout is `assumed`,
// the counts per cluster are one plausible way to switch off SMs: real cards of one model differ from each other.
std::vector<Profile> make_profiles() {
  const Profile ampere = architecture(8, 0, 2048, 32, 164);
  Profile hopper = architecture(9, 0, 2048, 32, 228);
  hopper.layout = Known::recorded;
  Profile ada = architecture(8, 9, 1536, 24, 100);
  // Two dies, modelled as two locality domains of 74 SMs.
  Profile blackwell = architecture(10, 0, 2048, 32, 228);
  blackwell.locality_domains = 2;
  // By the public code of a library that partitions VR200: 212 SMs, two domains of 100 and 12 SMs of none. 100 is no
  // multiple of 8, so domains are assumed to be aligned to 4; everything else but the memory is assumed too.
  Profile rubin = architecture(10, 7, 2048, 32, 228);
  rubin.locality_domains = 2;
  rubin.domain_alignment = 4;
  Profile consumer_blackwell = architecture(12, 0, 1536, 24, 100);
  consumer_blackwell.copy_engines = 2;
  // A Tegra SoC: the alignment is 2 whatever the compute capability (cuda.h).
  Profile tegra = architecture(11, 0, 1536, 24, 228);
  tegra.min_partition = tegra.alignment = 2;
  tegra.copy_engines = 2;
  tegra.integrated = true;
  std::vector<Profile> list;
  const std::vector<int> of_hopper{8, 16, 16, 16, 16, 16, 18, 18, 2, 2, 2, 2};
  // The bus is recorded; 6144 by the specification.
  list.push_back(card(hopper, "h200", "H200", of_hopper, 1980000, {143771, 3201000, 6016, 4800, 60}));
  list.push_back(card(hopper, "h100", "H100 80GB HBM3", of_hopper, 1980000, {81559, 2619000, 5120, 3350, 50}));
  list.push_back(
      card(ampere, "a100", "A100-SXM4-80GB", {14, 14, 16, 16, 16, 16, 16}, 1410000, {81920, 1593000, 5120, 2039, 40}));
  list.push_back(card(ada, "l40s", "L40S", {10, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12}, 2520000,
                      {46068, 9001000, 384, 864, 96}));
  ada.copy_engines = 2;
  list.push_back(card(ada, "rtx4090", "GeForce RTX 4090", {10, 10, 12, 12, 12, 12, 12, 12, 12, 12, 12}, 2520000,
                      {24564, 10501000, 384, 1008, 72}));
  list.push_back(
      card(blackwell, "b200", "B200", {18, 18, 18, 20, 18, 18, 18, 20}, 1965000, {183359, 3996000, 8192, 8000, 126}));
  list.push_back(card(rubin, "vr200", "VR200", {20, 20, 20, 20, 20, 2, 2, 2, 20, 20, 20, 20, 20, 2, 2, 2}, 2000000,
                      {294912, 5371000, 16384, 22000, 126}));
  // GPCs whose size is not a multiple of the alignment: few aligned counts fit, as reported for such cards
  // (docs/drivers.md).
  list.push_back(card(consumer_blackwell, "rtx5080", "GeForce RTX 5080", {12, 12, 12, 12, 12, 12, 12}, 2617000,
                      {16303, 15001000, 256, 960, 64}));
  list.push_back(card(tegra, "thor", "Thor", {6, 6, 8}, 1575000, {125772, 4266000, 256, 273, 32}));
  return list;
}

}  // namespace

const std::vector<Profile>& profiles() {
  static const std::vector<Profile> list = make_profiles();
  return list;
}

const Profile* find_profile(std::string_view key) {
  const auto found = std::ranges::find(profiles(), key, &Profile::key);
  return found == profiles().end() ? nullptr : &*found;
}

}  // namespace software_driver
