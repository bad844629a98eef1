// Handle -> box, one registry for each kind of box. It serves all drivers, so that nothing of it is left of one that is
// closed. Looking up and entering are one step each under a lock, and no driver is called under it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/process.hpp"
#include "handles/runtime.hpp"

namespace gctx {

template <typename Box, typename Raw>
class Registry;

// A box that can be entered in a registry: the link is part of it, so that entering it allocates nothing.
template <typename Box, typename Raw>
class Registered : public std::enable_shared_from_this<Box> {
 public:
  static Registry<Box, Raw> registry;

 private:
  friend class Registry<Box, Raw>;
  Box* next_registered_ = nullptr;
};

// An entry is distinguished from a newer object at the same address by asking the box (`is_same`), so that recycled
// addresses neither resurrect nor erase the wrong object.
template <typename Box, typename Raw>
class Registry {
 public:
  // The box of a handle of a driver; else `made`, which is registered unless it is null.
  template <typename IsSame>
  std::shared_ptr<Box> find(const Runtime& runtime, Raw raw, IsSame&& is_same, std::shared_ptr<Box> made = nullptr) {
    for (;;) {
      std::shared_ptr<Box> found;  // outlives the lock: its destructor may come back here
      {
        const std::lock_guard lock(mutex_);
        // A box that is listed has its memory: it takes itself off the list, under the lock, before it goes.
        for (Box* box = bucket(raw); box != nullptr && !found; box = next(*box)) {
          found = box->handle() == raw && &box->runtime() == &runtime ? box->weak_from_this().lock() : nullptr;
        }
        if (!found) {
          if (made) {
            enter(*made);
          }
          return made;
        }
      }
      if (is_same(*found)) {
        return found;
      }
      drop(*found);  // what it stood for is gone, and the address has another owner
    }
  }

  // Found before one that somebody has entered for the same object meanwhile.
  void put(Box& box) noexcept {
    const std::lock_guard lock(mutex_);
    enter(box);
  }

  std::vector<std::shared_ptr<Box>> all(const Runtime& runtime) const {
    std::vector<std::shared_ptr<Box>> found;
    const std::lock_guard lock(mutex_);
    for (Box* box : buckets_) {
      for (; box != nullptr; box = next(*box)) {
        if (&box->runtime() == &runtime) {
          found.emplace_back();  // what needs memory comes before what may be the last handle
          if (!(found.back() = box->weak_from_this().lock())) {
            found.pop_back();
          }
        }
      }
    }
    return found;
  }

  // Called by a dying box, or for one that lives on without its object. Twice does nothing.
  void drop(Box& box) noexcept {
    if (is_forked()) {
      return;
    }
    const std::lock_guard lock(mutex_);
    Box** link = &bucket(box.handle());
    while (*link != nullptr && *link != &box) {
      link = &next(**link);
    }
    if (*link != nullptr) {
      *link = std::exchange(next(box), nullptr);
    }
  }

 private:
  static Box*& next(Box& box) noexcept { return static_cast<Registered<Box, Raw>&>(box).next_registered_; }

  Box*& bucket(Raw raw) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    return buckets_[(address >> 4 ^ address >> 16) % buckets_.size()];
  }

  void enter(Box& box) noexcept { next(box) = std::exchange(bucket(box.handle()), &box); }

  mutable std::mutex mutex_;
  std::array<Box*, 1024> buckets_{};  // with more boxes, the chains get longer
};

template <typename Box, typename Raw>
constinit Registry<Box, Raw> Registered<Box, Raw>::registry{};

}  // namespace gctx
