// The request of a split: its groups as the caller passes them, and as the splitter needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "resources/inline_vector.hpp"

namespace gctx {

struct GroupRequest {
  std::optional<unsigned> count;  // nullopt: all remaining SMs
  unsigned coscheduled = 0;       // 0: the alignment of the resource
  unsigned preferred = 0;         // 0: no preference
  bool backfill = false;
  std::optional<unsigned> locality_domain;  // CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY: any domain
  bool supplemental = false;                // also SMs beyond the number that every domain has
};

// The grain without co-scheduling: a texture processing cluster, on every chip with green contexts.
inline constexpr unsigned pair_size = 2;

inline unsigned round_up(unsigned n, unsigned grain) { return (n + grain - 1) / grain * grain; }
inline unsigned round_down(unsigned n, unsigned grain) { return n / grain * grain; }

// The grain of a resource, as the driver reports it.
struct Grain {
  unsigned alignment = 0;
  unsigned minimum = 0;
};

// loose: pairs of SMs anywhere. aligned: units of the alignment, if there are enough. promised: the requested
// co-scheduling, or a refusal.
enum class Placement { loose, aligned, promised };

// The need of one group, for a known grain of the resource.
struct Need {
  GroupRequest request;
  std::optional<unsigned> count;  // rounded up; nullopt: all remaining SMs
  unsigned grain = 0;
  unsigned least = 0;  // the smallest possible count
  Placement placement = Placement::aligned;

  bool is_loose() const noexcept { return placement == Placement::loose; }
  bool asks_for_pairs() const noexcept { return request.backfill || request.coscheduled == pair_size; }
  bool is_promised() const noexcept { return placement == Placement::promised; }
};

Need need_of(const GroupRequest& request, Grain grain);

// The needs of all groups of a split, with sums that add() keeps up to date.
class Needs {
 public:
  Needs() = default;
  Needs(const std::vector<GroupRequest>& requests, Grain grain);

  void add(const Need& need);
  Needs with(std::size_t at, const Need& other) const;  // a copy with one need replaced

  std::size_t size() const noexcept { return all_.size(); }
  bool empty() const noexcept { return all_.empty(); }
  const Need& operator[](std::size_t at) const noexcept { return all_[at]; }
  const Need* begin() const noexcept { return all_.begin(); }
  const Need* end() const noexcept { return all_.end(); }

  // The sum of all counts, capped at the largest unsigned so that it cannot wrap around.
  unsigned total() const noexcept;
  unsigned common_divisor() const noexcept { return common_divisor_; }  // of all counts; 0 without counts

  // The first group that gets all remaining SMs, by position.
  bool has_open() const noexcept { return open_ != none; }
  std::size_t open() const noexcept { return open_; }

  bool any_promised() const noexcept { return any_promised_; }
  bool any_local() const noexcept { return any_local_; }
  bool all_loose() const noexcept { return all_loose_; }
  bool any_odd() const noexcept { return any_odd_; }  // an exact count that is odd, which never fits

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  InlineVector<Need, 4> all_;
  std::uint64_t total_ = 0;
  unsigned common_divisor_ = 0;
  std::size_t open_ = none;
  bool any_promised_ = false;
  bool any_local_ = false;
  bool all_loose_ = true;
  bool any_odd_ = false;
};

}  // namespace gctx
