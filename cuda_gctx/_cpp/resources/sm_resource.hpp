// A set of SMs as a value: the driver's own words for it, copied whole, and where it came from. The driver hides which
// SMs a resource names, so what can be known of overlap is known from the way the resource was made.
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

// How a group was made. by_count: it is one group of the driver's homogeneous split; composed: several of them
// together; fine: out of pairs of SMs; bisected: from a second split, inside a hidden context.
enum class Strategy : int { none, structured, by_count, composed, fine, bisected };
const char* strategy_name(Strategy strategy) noexcept;  // null for none

using Units = InlineVector<CUdevResource, 1>;
using Members = InlineVector<std::uint32_t, 6>;

// One call that split `parent` into disjoint pieces, numbered from 0; the driver's remainder is the last number.
struct SplitCall {
  SmResourcePtr parent;
};

struct SmResource {
  SmResource() noexcept {}  // so that arrays of them are not cleared before they are initialised
  explicit SmResource(const SmResourcePtr& other) { copy(other); }
  SmResource(const SmResource&) = delete;

  void copy(const SmResourcePtr& other) {
    *this = *other;
    come_from(other);
  }

  // From the split that gave another resource, as the same pieces.
  void come_from(const SmResourcePtr& other) {
    origin = other->origin;
    members = other->members;
    keeps_origin = origin == nullptr || other->keeps_origin ? other->keeps_origin : other;
  }

  const Driver* driver = nullptr;
  int device = 0;
  unsigned sm_count = 0;

  // The driver's resources that make up this set: one, or several pieces of one split. Copied, never rebuilt: a
  // CUdevResource carries the identity of its SMs in bytes that have no name.
  Units units;

  std::optional<unsigned> requested;
  unsigned min_partition_size = 0;
  unsigned alignment = 0;    // the driver splits it in units of this size
  unsigned coscheduled = 0;  // no larger sets of its SMs are promised to sit in one GPC; 0: the alignment
  unsigned flags = 0;
  Strategy strategy = Strategy::none;
  bool dry_run = false;

  // Only what a device or context query returned can be split by the driver (error 915 for groups and remainders).
  bool splittable = false;
  bool whole_device = false;

  // Null for a device's own resource and for foreign contexts. A piece and its split are one block of memory; what is
  // copied from a piece keeps that.
  const SplitCall* origin = nullptr;
  Members members;  // which pieces of `origin`, ascending
  SmResourcePtr keeps_origin;
  SplitCall dealt;  // of the last piece: the split, for all of them

  // From further splits that gave the same SMs: a context that is kept serves the groups of one split after the other.
  std::vector<SmResourcePtr> also;

  // What a request for as many SMs can have promised.
  unsigned promised() const noexcept { return coscheduled != 0 ? std::min(alignment, coscheduled) : alignment; }

 private:
  SmResource& operator=(const SmResource&) = default;
};

// The driver splits only what a device or context query returned. This asks a context over a group or a remainder (see
// handles/split_contexts.hpp).
using Requery = std::function<SmResourcePtr(const SmResourcePtr&)>;

bool byte_equal(const CUdevResource& a, const CUdevResource& b) noexcept;

// Whether two values say the same: the driver's words for them are equal byte by byte.
bool same_sms(const SmResource& a, const SmResource& b) noexcept;

// Whether two resources share SMs; nothing if that cannot be known.
std::optional<bool> overlaps(const SmResource& a, const SmResource& b);

// What a context made of these resources names: the pieces of one split together.
SmResourcePtr merged(const std::vector<SmResourcePtr>& resources);

// No SMs of a device, as a remainder is where a split leaves nothing over.
SmResourcePtr none_of(const SmResource& whole);

}  // namespace gctx
