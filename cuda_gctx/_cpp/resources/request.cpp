#include "resources/request.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace gctx {

Need need_of(const GroupRequest& request, Grain grain) {
  Need need{.request = request, .count = request.count};
  if (need.asks_for_pairs() || (request.coscheduled == 0 && grain.alignment <= pair_size)) {
    need.placement = Placement::loose;
  } else if (request.coscheduled != 0) {
    need.placement = Placement::promised;
  }
  need.grain = request.backfill ? pair_size : request.coscheduled != 0 ? request.coscheduled : grain.alignment;
  need.least = need.asks_for_pairs() ? pair_size : round_up(grain.minimum, need.grain);
  if (need.count && !request.backfill) {
    need.count = std::max(round_up(*need.count, need.grain), need.least);
  }
  return need;
}

Needs needs_of(const std::vector<GroupRequest>& requests, Grain grain) {
  Needs needs;
  for (const GroupRequest& request : requests) {
    needs.push_back(need_of(request, grain));
  }
  return needs;
}

unsigned finite_total(const Needs& needs) {
  std::uint64_t total = 0;
  for (const Need& need : needs) {
    total += need.count.value_or(0);
  }
  return static_cast<unsigned>(std::min<std::uint64_t>(total, std::numeric_limits<unsigned>::max()));
}

std::size_t open_group(const Needs& needs) {
  const auto open = std::find_if(needs.begin(), needs.end(), [](const Need& need) { return !need.count; });
  return static_cast<std::size_t>(open - needs.begin());
}

}  // namespace gctx
