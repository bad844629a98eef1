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

namespace software_driver {

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

// The handles of a table, whatever its objects are.
class Handles {
 public:
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  // Was it given out by this table, and is its object gone?
  template <class Handle>
  bool is_stale(Handle handle) const noexcept {
    const std::size_t slot = slot_of(std::bit_cast<std::uint64_t>(handle));
    return slot < slots_.size() && slots_[slot] == nullptr;
  }
  // An object that goes with its context: its handle answers so until it is given out again.
  void orphan(const Object& object);
  template <class Handle>
  bool is_orphan(Handle handle) const noexcept {
    return is_orphan_at(slot_of(std::bit_cast<std::uint64_t>(handle)));
  }
  std::size_t live() const noexcept { return live_; }

 protected:
  Handles(unsigned table, unsigned epoch)
      : base_((std::uint64_t{1} << 46) | (std::uint64_t{table} << 41) |
              (static_cast<std::uint64_t>(epoch & 0x3fff) << 27)) {}
  ~Handles() = default;

  Object* find(std::uint64_t handle) const noexcept {
    const std::size_t slot = slot_of(handle);
    return slot < slots_.size() ? slots_[slot] : nullptr;
  }
  void add(Object& object);
  void add_at(std::uint64_t handle, Object& object);
  void remove(const Object& object, bool reserving);
  const std::vector<Object*>& slots() const noexcept { return slots_; }

 private:
  bool is_orphan_at(std::size_t slot) const noexcept;
  std::size_t slot_of(std::uint64_t handle) const noexcept {
    constexpr std::uint64_t slot_mask = ((std::uint64_t{1} << 21) - 1) << 6;
    if ((handle & ~slot_mask) != base_) {
      return static_cast<std::size_t>(-1);
    }
    return static_cast<std::size_t>((handle & slot_mask) >> 6) - 1;
  }

  std::uint64_t base_;
  std::vector<Object*> slots_;
  std::vector<std::size_t> free_;
  std::set<std::size_t> orphans_;
  std::size_t live_ = 0;
};

// Owns its objects.
template <class T>
class HandleTable : public Handles {
 public:
  HandleTable(unsigned table, unsigned epoch) : Handles(table, epoch) {}
  ~HandleTable() {
    for (Object* object : slots()) {
      delete static_cast<T*>(object);
    }
  }

  T& add(std::unique_ptr<T> object) {
    Handles::add(*object);
    return *object.release();
  }
  template <class Handle>
  T* find(Handle handle) const noexcept {
    return static_cast<T*>(Handles::find(std::bit_cast<std::uint64_t>(handle)));
  }
  std::unique_ptr<T> remove(const T& object) { return removed(object, false); }
  // The handle is stale, but only `add_at` gives it out again.
  std::unique_ptr<T> remove_reserving(const T& object) { return removed(object, true); }
  T& add_at(std::uint64_t handle, std::unique_ptr<T> object) {
    Handles::add_at(handle, *object);
    return *object.release();
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (Object* object : slots()) {
      if (object != nullptr) {
        visit(*static_cast<T*>(object));
      }
    }
  }

 private:
  std::unique_ptr<T> removed(const T& object, bool reserving) {
    T* const own = find(object.handle);
    Handles::remove(object, reserving);
    return std::unique_ptr<T>(own);
  }
};

template <class Handle>
Handle as_handle(const Object& object) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(object.handle);
  } else {
    return static_cast<Handle>(object.handle);
  }
}

}  // namespace software_driver
