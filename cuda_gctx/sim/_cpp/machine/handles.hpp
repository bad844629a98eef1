// Handles that are given out to callers: numbers that look like addresses, checked in a table before any use, so that a
// wrong one answers an error and never crashes. A freed slot is used again at once: recycled addresses find bugs.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace gctx::sim {

// Unique in the process, never used again.
inline std::uint64_t next_id() {
  static std::atomic<std::uint64_t> count{0};
  return ++count;
}

// What every object that has a handle knows of its making.
struct Object {
  std::uint64_t handle = 0;
  std::uint64_t id = 0;      // of next_id()
  std::uint64_t order = 0;   // of creation on this machine
  std::uint64_t thread = 0;  // the serial number of the thread that made it
  std::uint64_t owner = 0;   // the id of the context with which it goes; 0: of none
  bool hidden = false;       // made by the driver for itself: no entry in the ledger
};

template <class T>
class HandleTable {
 public:
  HandleTable(unsigned table, unsigned epoch)
      : base_((std::uint64_t{1} << 46) | (std::uint64_t{table} << 41) |
              (static_cast<std::uint64_t>(epoch & 0x3fff) << 27)) {}

  T& add(std::unique_ptr<T> object) {
    std::size_t slot = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    object->handle = base_ | ((static_cast<std::uint64_t>(slot) + 1) << 6);
    orphans_.erase(slot);
    slots_[slot] = std::move(object);
    ++live_;
    return *slots_[slot];
  }

  template <class Handle>
  T* find(Handle handle) const noexcept {
    const std::size_t slot = slot_of(handle);
    return slot < slots_.size() ? slots_[slot].get() : nullptr;
  }

  // Was it given out by this table, and is its object gone?
  template <class Handle>
  bool is_stale(Handle handle) const noexcept {
    const std::size_t slot = slot_of(handle);
    return slot < slots_.size() && slots_[slot] == nullptr;
  }

  // An object that goes with its context: its handle answers so until it is given out again.
  void orphan(const T& object) { orphans_.insert(slot_of(object.handle)); }
  template <class Handle>
  bool is_orphan(Handle handle) const noexcept {
    return orphans_.contains(slot_of(handle));
  }

  std::unique_ptr<T> remove(const T& object) {
    free_.push_back(slot_of(object.handle));
    return remove_reserving(object);
  }

  // The handle is stale, but only `add_at` gives it out again.
  std::unique_ptr<T> remove_reserving(const T& object) {
    --live_;
    return std::move(slots_[slot_of(object.handle)]);
  }
  T& add_at(std::uint64_t handle, std::unique_ptr<T> object) {
    object->handle = handle;
    ++live_;
    return *(slots_[slot_of(handle)] = std::move(object));
  }

  std::size_t live() const noexcept { return live_; }

  template <class Visit>
  void each(Visit&& visit) const {
    for (const auto& slot : slots_) {
      if (slot) {
        visit(*slot);
      }
    }
  }

 private:
  template <class Handle>
  std::size_t slot_of(Handle handle) const noexcept {
    const auto value = std::bit_cast<std::uint64_t>(handle);
    constexpr std::uint64_t slot_mask = ((std::uint64_t{1} << 21) - 1) << 6;
    if ((value & ~slot_mask) != base_) {
      return static_cast<std::size_t>(-1);
    }
    return static_cast<std::size_t>((value & slot_mask) >> 6) - 1;
  }

  std::uint64_t base_;
  std::vector<std::unique_ptr<T>> slots_;
  std::vector<std::size_t> free_;
  std::set<std::size_t> orphans_;
  std::size_t live_ = 0;
};

template <class Handle>
Handle as_handle(const Object& object) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(object.handle);
  } else {
    return static_cast<Handle>(object.handle);
  }
}

}  // namespace gctx::sim
