#include "resources/sm_resource.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace gctx {

const char* strategy_name(Strategy strategy) noexcept {
  switch (strategy) {
    case Strategy::none:
      return nullptr;
    case Strategy::structured:
      return "structured";
    case Strategy::by_count:
      return "by-count";
    case Strategy::composed:
      return "composed";
    case Strategy::fine:
      return "fine";
    case Strategy::bisected:
      return "bisected";
  }
  return nullptr;
}

bool byte_equal(const CUdevResource& a, const CUdevResource& b) noexcept {
  return std::memcmp(&a, &b, sizeof(CUdevResource)) == 0;
}

namespace {

bool share_a_member(const Members& a, const Members& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](std::uint32_t member) { return std::binary_search(b.begin(), b.end(), member); });
}

bool share_a_unit(const SmResource& a, const SmResource& b) {
  return std::any_of(a.units.begin(), a.units.end(), [&](const CUdevResource& unit) {
    return std::any_of(b.units.begin(), b.units.end(),
                       [&](const CUdevResource& other) { return byte_equal(unit, other); });
  });
}

// The resource itself, then what it was split from, and so on up to a device's or a foreign context's own resource.
const SmResource* container(const SmResource* resource) {
  return resource->origin ? resource->origin->parent.get() : nullptr;
}

// The answer where the two meet in one split; nothing if they never do, or meet without telling.
std::optional<bool> overlap_by_origin(const SmResource& a, const SmResource& b) {
  for (const SmResource* x = &a; x != nullptr && x->origin; x = container(x)) {
    for (const SmResource* y = &b; y != nullptr && y->origin; y = container(y)) {
      if (x->origin != y->origin) {
        continue;
      }
      if (!share_a_member(x->members, y->members)) {
        return false;
      }
      const bool x_holds_y = std::includes(x->members.begin(), x->members.end(), y->members.begin(), y->members.end());
      const bool y_holds_x = std::includes(y->members.begin(), y->members.end(), x->members.begin(), x->members.end());
      if ((x == &a && y == &b) || (x == &a && x_holds_y) || (y == &b && y_holds_x)) {
        return true;
      }
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Two sets that together are larger than something that holds both must meet.
bool too_many_to_be_disjoint(const SmResource& a, const SmResource& b) {
  for (const SmResource* x = container(&a); x != nullptr; x = container(x)) {
    for (const SmResource* y = container(&b); y != nullptr; y = container(y)) {
      const bool same = x == y || (x->whole_device && y->whole_device);
      if (same && a.sm_count + b.sm_count > x->sm_count) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

bool same_sms(const SmResource& a, const SmResource& b) noexcept {
  return a.driver == b.driver && a.device == b.device && a.dry_run == b.dry_run &&
         std::equal(a.units.begin(), a.units.end(), b.units.begin(), b.units.end(), byte_equal);
}

std::optional<bool> overlaps(const SmResource& a, const SmResource& b) {
  if (a.driver != b.driver || a.device != b.device || a.sm_count == 0 || b.sm_count == 0) {
    return false;
  }
  if (&a == &b || a.whole_device || b.whole_device || share_a_unit(a, b)) {
    return true;
  }
  if (const auto known = overlap_by_origin(a, b)) {
    return known;
  }
  if (too_many_to_be_disjoint(a, b)) {
    return true;
  }
  return std::nullopt;
}

SmResourcePtr merged(const std::vector<SmResourcePtr>& resources) {
  if (resources.size() == 1) {
    return resources.front();
  }
  auto result = std::make_shared<SmResource>(*resources.front());
  result->requested.reset();
  for (auto it = std::next(resources.begin()); it != resources.end(); ++it) {
    const SmResource& next = **it;
    result->units.append(next.units);
    result->members.append(next.members);
    result->sm_count += next.sm_count;
    result->alignment = std::min(result->alignment, next.alignment);
    result->min_partition_size = std::min(result->min_partition_size, next.min_partition_size);
  }
  std::sort(result->members.begin(), result->members.end());
  return result;
}

SmResourcePtr none_of(const SmResource& whole) {
  auto result = std::make_shared<SmResource>();
  result->driver = whole.driver;
  result->device = whole.device;
  return result;
}

}  // namespace gctx
