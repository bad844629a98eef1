#include "resources/request.hpp"

#include <algorithm>
#include <numeric>

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

Needs::Needs(const std::vector<GroupRequest>& requests, Grain grain) {
  for (const GroupRequest& request : requests) {
    add(need_of(request, grain));
  }
}

void Needs::add(const Need& need) {
  if (need.count) {
    total_ += *need.count;
    common_divisor_ = std::gcd(common_divisor_, *need.count);
  } else if (!has_open()) {
    open_ = size();
  }
  any_promised_ |= need.is_promised();
  any_local_ |= need.request.locality_domain.has_value();
  all_loose_ &= need.is_loose();
  any_odd_ |= need.request.backfill && need.count.value_or(0) % pair_size != 0;
  all_.push_back(need);
}

Needs Needs::with(std::size_t at, const Need& other) const {
  Needs needs;
  for (const Need& need : *this) {
    needs.add(&need == &all_[at] ? other : need);
  }
  return needs;
}

unsigned Needs::total() const noexcept {
  return static_cast<unsigned>(std::min<std::uint64_t>(total_, std::numeric_limits<unsigned>::max()));
}

}  // namespace gctx
