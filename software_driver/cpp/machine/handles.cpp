// How handles are given out, and taken back.
#include "machine/handles.hpp"

namespace software_driver {

void Handles::orphan(const Object& object) { orphans_.insert(slot_of(object.handle)); }

bool Handles::is_orphan_at(std::size_t slot) const noexcept { return orphans_.contains(slot); }

void Handles::add(Object& object) {
  std::size_t slot = slots_.size();
  if (free_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  object.handle = base_ | ((static_cast<std::uint64_t>(slot) + 1) << 6);
  orphans_.erase(slot);
  slots_[slot] = &object;
  ++live_;
}

void Handles::add_at(std::uint64_t handle, Object& object) {
  object.handle = handle;
  slots_[slot_of(handle)] = &object;
  ++live_;
}

void Handles::remove(const Object& object, bool reserving) {
  const std::size_t slot = slot_of(object.handle);
  if (!reserving) {
    free_.push_back(slot);
  }
  slots_[slot] = nullptr;
  --live_;
}

}  // namespace software_driver
