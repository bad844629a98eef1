// The model of a GPU's SMs: where they sit, and what the driver's two ways of splitting make of them.
// Pure values and functions: no driver ABI, no state, no locks.
#pragma once

#include <cuda.h>

#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace software_driver {

inline constexpr std::size_t max_sms = 512;
inline constexpr unsigned pair_size = 2;  // two SMs make a TPC, which no split takes apart
using SmSet = std::bitset<max_sms>;

// Where a behaviour is known from; printed by `explain`.
enum class Known { recorded, timed, documented, assumed };
inline constexpr const char* known_words[] = {"recorded", "timed", "documented", "assumed"};

// One thing that is done as the driver does it, and where that is known from: a section of the recordings of answers or
// of times, words of the driver's header, or nothing. The chip's own have names for subjects.
struct Behaviour {
  std::string_view subject;
  std::string_view drivers;
  std::string_view text;
  Known known;
  std::string_view source;
};

std::span<const Behaviour> chip_behaviours();

// One kind of card. `sms_per_gpc` is the layout: SMs in each GPC, in the order in which SM ids count
// across them. A cluster of 2 SMs is a pair that the chip keeps apart from its large clusters.
struct Profile {
  std::string key;   // "h200"
  std::string name;  // "NVIDIA H200 (simulated)"
  int cc_major = 0;
  int cc_minor = 0;
  std::vector<int> sms_per_gpc;
  Known layout = Known::assumed;
  unsigned min_partition = 0;
  unsigned alignment = 0;
  std::uint64_t memory_bytes = 0;
  int max_threads_per_sm = 0;
  int max_blocks_per_sm = 0;
  unsigned registers_per_sm = 65536;
  std::size_t shared_bytes_per_sm = 0;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
  int l2_bytes = 0;
  int copy_engines = 0;
  // What kernels get out of the memory at most, all together and each SM: below what the specifications promise.
  double memory_bytes_per_ns = 0;
  double sm_bytes_per_ns = 0;
  unsigned max_cluster = 1;  // blocks in the largest thread block cluster
  int locality_domains = 1;
  unsigned domain_alignment = 8;  // of the SMs of a domain that are not supplemental
  bool integrated = false;
};

const std::vector<Profile>& profiles();
const Profile* find_profile(std::string_view key);  // null if there is none of that name

// How the SMs of a set hold together. The driver does not only know which SMs a resource names, but keeps them in
// parts, and counts clusters and splits again by these parts (recorded: two sets of the same SMs answer differently).
enum class Bond : std::uint8_t {
  gpc,   // all SMs of one GPC are one part: the device, remainders, maximal clusters
  unit,  // parts of the device's grain inside a GPC: groups of a plain split
  pair,  // groups of a split that ignores co-scheduling
};

struct SplitAnswer {
  CUresult result = CUDA_SUCCESS;
  std::vector<SmSet> groups;
  SmSet remainder;
  // What a context made of a piece reports as its smallest partition and alignment, and how its SMs hold together, for
  // each group and for the remainder. A context over several pieces has the least alignment and the last bond of
  // theirs.
  std::vector<unsigned> coscheduled;
  unsigned remainder_coscheduled = 0;
  std::vector<Bond> bonds;
  Bond remainder_bond = Bond::gpc;
  // Structured split only: the parameters as the driver writes them back (discovered counts and co-scheduling).
  std::vector<CU_DEV_SM_RESOURCE_GROUP_PARAMS> params;
};

class Chip {
 public:
  explicit Chip(const Profile& profile);

  const Profile& profile() const noexcept { return profile_; }
  unsigned sm_count() const noexcept { return sm_count_; }
  const SmSet& all() const noexcept { return all_; }

  // The locality domain of an SM (-1: of none), and how many SMs a group of one domain can have without supplemental
  // ones.
  int locality_domain_of(int sm) const noexcept { return domain_of_[static_cast<std::size_t>(sm)]; }
  unsigned locality_domain_sms() const noexcept { return domain_sms_; }

  // cuDevSmResourceSplitByCount on `input`: at most `max_groups` groups of at least `min_count`, `flags` as in the
  // driver. `alignment` is what a query of the input reports (0: the device's own), `bond` how its SMs hold together.
  SplitAnswer split_by_count(const SmSet& input, unsigned min_count, unsigned flags, unsigned max_groups,
                             unsigned alignment = 0, Bond bond = Bond::gpc) const;

  // cuDevSmResourceSplit (13.1+) on `input` as `driver_version` (13010, 13040, ...) does it. `dry`: no result array was
  // given.
  SplitAnswer split_structured(const SmSet& input, std::span<const CU_DEV_SM_RESOURCE_GROUP_PARAMS> params,
                               unsigned flags, int driver_version, bool dry) const;

  // The sets of SMs that a cluster of so many blocks may run on: it never spans two.
  std::vector<SmSet> cluster_parts(const SmSet& sms, unsigned cluster_size, Bond bond = Bond::gpc) const;

  // Largest cluster that a kernel can use on these SMs, and how many clusters of a size can be active at once when
  // `blocks_per_sm` blocks of it fit on one SM.
  unsigned max_cluster_size(const SmSet& sms, Bond bond = Bond::gpc) const;
  unsigned max_active_clusters(const SmSet& sms, unsigned cluster_size, unsigned blocks_per_sm,
                               Bond bond = Bond::gpc) const;

 private:
  struct Part;
  struct Parts;
  Parts parts_of(const SmSet& input, Bond bond) const;
  void deal_pairs(const SmSet& input, unsigned size, SplitAnswer& answer) const;
  void deal_parts(const SmSet& input, unsigned size, unsigned grain, unsigned flags, Bond bond, unsigned max_groups,
                  SplitAnswer& answer) const;

  // `count` SMs of `from`, lowest numbers first: of one GPC, or of all.
  SmSet take(const SmSet& from, std::size_t gpc, unsigned count) const;
  SmSet take(const SmSet& from, unsigned count) const;
  // SMs of `from` that are left over when every GPC gives whole sets of `size`.
  SmSet leftovers(const SmSet& from, unsigned size) const;
  SmSet place_sets(const SmSet& from, unsigned count, unsigned coscheduled, unsigned preferred) const;
  SmSet locality_domain(unsigned id) const;

  Profile profile_;
  unsigned sm_count_ = 0;
  SmSet all_;
  std::vector<std::vector<int>> gpc_sms_;  // SM ids of each cluster, ascending
  std::vector<SmSet> gpcs_;
  std::vector<int> domain_of_;
  std::vector<SmSet> domains_;
  SmSet supplemental_;  // SMs of a domain beyond what every domain has
  unsigned domain_sms_ = 0;
};

}  // namespace software_driver
