// A set of SMs as a value: the driver's CUdevResource, copied whole, and its origin. The driver hides the SMs of a
// resource, so overlap is known only from the splits that created the resources.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "resources/inline_vector.hpp"

namespace gctx {

class Driver;
struct SmResource;
using SmResourcePtr = std::shared_ptr<const SmResource>;

// The strategy that created a group. by_count: one group of the driver's homogeneous split. composed: several such
// groups. fine: pairs of SMs. bisected: a second split, inside a hidden context.
enum class Strategy : int { none, structured, by_count, composed, fine, bisected };
const char* strategy_name(Strategy strategy) noexcept;  // null for none

using Units = InlineVector<CUdevResource, 1>;
using Members = InlineVector<std::uint32_t, 6>;

// A call that split `parent` into disjoint pieces, numbered from 0. The driver's remainder has the last number.
struct SplitCall {
  SmResourcePtr parent;
};

struct SmResource {
  SmResource() noexcept {}  // user-provided, so that arrays are not cleared before their initialisation
  explicit SmResource(const SmResourcePtr& other) { copy(other); }
  SmResource(const SmResource&) = delete;

  void copy(const SmResourcePtr& other) {
    *this = *other;
    come_from(other);
  }

  // Takes over the origin and the pieces of another resource.
  void come_from(const SmResourcePtr& other) {
    origin = other->origin;
    members = other->members;
    keeps_origin = origin == nullptr || other->keeps_origin ? other->keeps_origin : other;
  }

  const Driver* driver = nullptr;
  int device = 0;
  unsigned sm_count = 0;

  // The driver's resources of this set: one, or several pieces of one split. They are copied, never rebuilt: a
  // CUdevResource identifies its SMs in undocumented bytes.
  Units units;

  std::optional<unsigned> requested;
  unsigned min_partition_size = 0;
  unsigned alignment = 0;    // the driver splits the resource in units of this size
  unsigned coscheduled = 0;  // the largest sets of SMs that are promised to lie in one GPC; 0: the alignment
  unsigned flags = 0;
  Strategy strategy = Strategy::none;
  bool dry_run = false;

  // The driver splits only the result of a device or context query (error 915 for groups and remainders).
  bool splittable = false;
  bool whole_device = false;

  // Null for the resource of a device and for foreign contexts. A piece and its split share a block of memory, which
  // `keeps_origin` keeps for a copy of the piece.
  const SplitCall* origin = nullptr;
  Members members;  // the numbers of the pieces of `origin`, ascending
  SmResourcePtr keeps_origin;
  SplitCall dealt;  // in the last piece only: the split of all pieces

  // Pieces of other splits with the same SMs: a kept context serves the groups of several splits in turn.
  std::vector<SmResourcePtr> also;

  // The largest co-scheduling that a request for all of these SMs can have.
  unsigned promised() const noexcept { return coscheduled != 0 ? std::min(alignment, coscheduled) : alignment; }

 private:
  SmResource& operator=(const SmResource&) = default;
};

// Returns a splittable resource of the SMs of a group or a remainder, by a query of a context (see
// handles/split_contexts.hpp).
using Requery = std::function<SmResourcePtr(const SmResourcePtr&)>;

bool byte_equal(const CUdevResource& a, const CUdevResource& b) noexcept;

// Returns whether the CUdevResources of two values are equal byte by byte.
bool same_sms(const SmResource& a, const SmResource& b) noexcept;

// Returns whether two resources share SMs, or nullopt if unknown.
std::optional<bool> overlaps(const SmResource& a, const SmResource& b);

// Joins pieces of one split, as a context over them does.
SmResourcePtr merged(const std::vector<SmResourcePtr>& resources);

// Returns an empty resource of the same device, such as the remainder of a split that used all SMs.
SmResourcePtr none_of(const SmResource& whole);

}  // namespace gctx
