// What is asked of a split, in the words of the public interface and in those of the planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "resources/inline_vector.hpp"

namespace gctx {

struct GroupRequest {
  std::optional<unsigned> count;  // nothing: everything left
  unsigned coscheduled = 0;       // 0: the alignment of what is split
  unsigned preferred = 0;         // 0: no preference
  bool backfill = false;
  std::optional<unsigned> locality_domain;  // CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY: of any
  bool supplemental = false;                // also SMs of the domain beyond what every domain has
};

// Without co-scheduling, SMs come in pairs (texture processing clusters) on every chip that has green contexts.
inline constexpr unsigned pair_size = 2;

inline unsigned round_up(unsigned n, unsigned grain) { return (n + grain - 1) / grain * grain; }
inline unsigned round_down(unsigned n, unsigned grain) { return n / grain * grain; }

// What the resource that is split says of itself.
struct Grain {
  unsigned alignment = 0;
  unsigned minimum = 0;
};

// loose: its SMs may sit anywhere, in pairs; aligned: in units of the alignment where there are enough of them;
// promised: a co-scheduling was asked for, and is kept or refused.
enum class Placement { loose, aligned, promised };

// What one group needs, once the grain of the resource is known.
struct Need {
  GroupRequest request;
  std::optional<unsigned> count;  // rounded up; nothing: everything left
  unsigned grain = 0;
  unsigned least = 0;  // the smallest count that the group can have
  Placement placement = Placement::aligned;

  bool is_loose() const noexcept { return placement == Placement::loose; }
  bool asks_for_pairs() const noexcept { return request.backfill || request.coscheduled == pair_size; }
  bool is_promised() const noexcept { return placement == Placement::promised; }
};

Need need_of(const GroupRequest& request, Grain grain);

// What all groups of a split need, and what that comes to: summed up as they are added, and never changed.
class Needs {
 public:
  Needs() = default;
  Needs(const std::vector<GroupRequest>& requests, Grain grain);

  void add(const Need& need);
  Needs with(std::size_t at, const Need& other) const;  // another in the place of one

  std::size_t size() const noexcept { return all_.size(); }
  bool empty() const noexcept { return all_.empty(); }
  const Need& operator[](std::size_t at) const noexcept { return all_[at]; }
  const Need* begin() const noexcept { return all_.begin(); }
  const Need* end() const noexcept { return all_.end(); }

  // All counts together. Beyond any device it says so, whatever was asked, and does not wrap around.
  unsigned total() const noexcept;
  unsigned common_divisor() const noexcept { return common_divisor_; }  // of all counts; 0 without any

  // A group that gets everything left, the first of them, and where it is.
  bool has_open() const noexcept { return open_ != none; }
  std::size_t open() const noexcept { return open_; }

  bool any_promised() const noexcept { return any_promised_; }
  bool any_local() const noexcept { return any_local_; }
  bool all_loose() const noexcept { return all_loose_; }
  bool any_odd() const noexcept { return any_odd_; }  // an exact count, which has to be even

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
