// What is asked of a split, in the words of the public interface and in those of the planner.
#pragma once

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

using Needs = InlineVector<Need, 4>;

Need need_of(const GroupRequest& request, Grain grain);
Needs needs_of(const std::vector<GroupRequest>& requests, Grain grain);

// All counts together. Beyond any device it says so, whatever was asked, and does not wrap around.
unsigned finite_total(const Needs& needs);

// The place of the group that gets everything left; the number of groups if there is none.
std::size_t open_group(const Needs& needs);

}  // namespace gctx
