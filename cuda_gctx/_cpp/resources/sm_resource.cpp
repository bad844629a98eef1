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

// Returns the resource that a resource was split from, or null for that of a device or a foreign context.
const SmResource* parent_of(const SmResource* resource) {
  return resource->origin ? resource->origin->parent.get() : nullptr;
}

// A split that created a resource (`is_itself`), or one that created an ancestor of the resource.
struct Ancestor {
  const SplitCall* split;
  const Members* members;
  bool is_itself;
};

// Calls `look` with the splits from the resource upwards until `look` returns true.
template <typename Look>
bool any_ancestor(const SmResource& resource, bool is_itself, const Look& look) {
  const auto upwards = [&](const SplitCall& split, const Members& members) {
    return look(Ancestor{&split, &members, is_itself}) || any_ancestor(*split.parent, false, look);
  };
  return (resource.origin && upwards(*resource.origin, resource.members)) ||
         std::any_of(resource.also.begin(), resource.also.end(),
                     [&](const SmResourcePtr& piece) { return upwards(*piece->origin, piece->members); });
}

// Compares the pieces of splits that both resources come from. Returns nullopt if no such split decides.
std::optional<bool> overlap_by_origin(const SmResource& a, const SmResource& b) {
  std::optional<bool> answer;
  any_ancestor(a, true, [&](const Ancestor& x) {
    return any_ancestor(b, true, [&](const Ancestor& y) {
      if (x.split != y.split) {
        return false;
      }
      const Members& mine = *x.members;
      const Members& theirs = *y.members;
      if (!share_a_member(mine, theirs)) {
        answer = false;
      } else if ((x.is_itself && y.is_itself) ||
                 (x.is_itself && std::includes(mine.begin(), mine.end(), theirs.begin(), theirs.end())) ||
                 (y.is_itself && std::includes(theirs.begin(), theirs.end(), mine.begin(), mine.end()))) {
        answer = true;
      }
      return answer.has_value();
    });
  });
  return answer;
}

// Returns whether two sets have more SMs together than a resource that contains both.
bool too_many_to_be_disjoint(const SmResource& a, const SmResource& b) {
  for (const SmResource* x = parent_of(&a); x != nullptr; x = parent_of(x)) {
    for (const SmResource* y = parent_of(&b); y != nullptr; y = parent_of(y)) {
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
  auto result = std::make_shared<SmResource>(resources.front());
  result->requested.reset();
  result->also.clear();
  for (auto it = std::next(resources.begin()); it != resources.end(); ++it) {
    const SmResource& next = **it;
    result->units.append(next.units);
    result->members.append(next.members);
    result->sm_count += next.sm_count;
    result->alignment = std::min(result->alignment, next.alignment);
    result->coscheduled = std::min(result->promised(), next.promised());
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
