// Handle -> box, one registry for each kind of box of a driver. Looking up and entering are one step each under a lock,
// and no driver is called under it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/process.hpp"
#include "handles/runtime.hpp"

namespace gctx {

// A box that can be entered in a registry: the link is part of it, so that entering it allocates nothing.
template <typename Box>
class Registered : public std::enable_shared_from_this<Box> {
 private:
  template <typename Any>
  friend class Registry;
  Box* next_registered_ = nullptr;
  bool is_registered_ = false;
};

// An entry is distinguished from a newer object at the same address by asking the box (`is_same`), so that recycled
// addresses neither resurrect nor erase the wrong object.
template <typename Box>
class Registry {
 public:
  using Raw = decltype(std::declval<const Box&>().handle());
  static constexpr Runtime::Place place = Box::place;
  explicit Registry(const Runtime& /*runtime*/) : buckets_(64, nullptr) {}

  template <typename IsSame>
  std::shared_ptr<Box> find(Raw raw, IsSame&& is_same) {
    while (std::shared_ptr<Box> found = first(raw)) {
      if (is_same(*found)) {
        return found;
      }
      drop(*found);  // what it stood for is gone, and the address has another owner
    }
    return nullptr;
  }

  // Instead of one that somebody has entered for the same object meanwhile.
  void put(Box& box) noexcept {
    const std::lock_guard lock(mutex_);
    for (Box* other = buckets_[bucket(box)]; other != nullptr; other = next(*other)) {
      if (other->handle() == box.handle()) {
        leave(*other);
        break;
      }
    }
    enter(box);
  }

  // Registers `made` unless another thread was quicker; returns the box that is registered.
  template <typename IsSame>
  std::shared_ptr<Box> settle(std::shared_ptr<Box> made, IsSame&& is_same) {
    for (;;) {
      std::shared_ptr<Box> found;  // outlives the lock: its destructor may come back here
      {
        const std::lock_guard lock(mutex_);
        found = first_locked(made->handle());
        if (!found) {
          enter(*made);
          return made;
        }
      }
      if (is_same(*found)) {
        return found;
      }
      drop(*found);
    }
  }

  std::vector<std::shared_ptr<Box>> all() const {
    std::vector<std::shared_ptr<Box>> found;
    const std::lock_guard lock(mutex_);
    found.reserve(count_);
    for (Box* box : buckets_) {
      for (; box != nullptr; box = next(*box)) {
        if (auto alive = box->weak_from_this().lock()) {
          found.push_back(std::move(alive));
        }
      }
    }
    return found;
  }

  // Called by a dying box, or for one that lives on without its object.
  void drop(Box& box) noexcept {
    if (is_forked()) {
      return;
    }
    const std::lock_guard lock(mutex_);
    if (static_cast<Link&>(box).is_registered_) {
      leave(box);
    }
  }

 private:
  using Link = Registered<Box>;

  void leave(Box& box) noexcept {
    Link& link = box;
    Box** at = &buckets_[bucket(box)];
    while (*at != &box) {
      at = &static_cast<Link&>(**at).next_registered_;
    }
    *at = link.next_registered_;
    link.next_registered_ = nullptr;
    link.is_registered_ = false;
    --count_;
  }

  static Box* next(const Box& box) noexcept { return static_cast<const Link&>(box).next_registered_; }

  std::size_t bucket(Raw raw) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    return (address >> 4 ^ address >> 16) & (buckets_.size() - 1);
  }
  std::size_t bucket(const Box& box) const noexcept { return bucket(box.handle()); }

  std::shared_ptr<Box> first(Raw raw) const {
    const std::lock_guard lock(mutex_);
    return first_locked(raw);
  }

  // A box that is listed has its memory: it takes itself off the list, under the lock, before it goes.
  std::shared_ptr<Box> first_locked(Raw raw) const {
    for (Box* box = buckets_[bucket(raw)]; box != nullptr; box = next(*box)) {
      if (box->handle() == raw) {
        if (auto alive = box->weak_from_this().lock()) {
          return alive;
        }
      }
    }
    return nullptr;
  }

  void enter(Box& box) noexcept {
    if (count_ >= buckets_.size()) {
      grow();
    }
    Link& link = box;
    Box*& first = buckets_[bucket(box)];
    link.next_registered_ = first;
    link.is_registered_ = true;
    first = &box;
    ++count_;
  }

  void grow() noexcept {
    try {
      std::vector<Box*> old(buckets_.size() * 4, nullptr);
      old.swap(buckets_);
      for (Box* box : old) {
        while (box != nullptr) {
          Link& link = *box;
          Box* const after = link.next_registered_;
          Box*& first = buckets_[bucket(*box)];
          link.next_registered_ = first;
          first = box;
          box = after;
        }
      }
    } catch (const std::bad_alloc&) {  // the chains get longer, that is all
    }
  }

  mutable std::mutex mutex_;
  std::vector<Box*> buckets_;
  std::size_t count_ = 0;
};

template <typename Box>
Registry<Box>& registry_of(Runtime& runtime) {
  return runtime.part<Registry<Box>>();
}

}  // namespace gctx
