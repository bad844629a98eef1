// What each thread made current through this package, by blocks and by set_current: one list of entries for a thread,
// which nobody else looks into. An entry counts in the state of its context, and owns it, until the driver shows it no
// more. So close() can refuse while a thread uses a context, and a block takes off its own entry and no other.
#pragma once

#include <cuda.h>

#include <atomic>
#include <vector>

#include "handles/types.hpp"

namespace gctx {

class Driver;
class Runtime;
struct ThreadEntries;

// A context that a thread made current. That of a block is part of the block, which a language binding keeps alive from
// enter_block() until take_left() returns it; that of set_current belongs to the list.
class Entry {
 public:
  Entry() = default;
  explicit Entry(void* block) noexcept : block_(block) {}
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool is_idle() const noexcept { return state_.load(std::memory_order_relaxed) == State::idle; }
  bool is_of_this_thread() const noexcept;
  void* block() const noexcept { return block_; }
  void set_block(void* block) noexcept { block_ = block; }

 private:
  friend struct ThreadEntries;

  // left: it goes when it is the innermost entry of its thread. Other threads change nothing but open to left.
  enum class State : int { idle, open, left };

  void* block_ = nullptr;  // null: of set_current
  std::atomic<State> state_{State::idle};
  std::atomic<long> thread_{0};  // the system's id
  ContextHandle context_;
  CUcontext before_ = nullptr;  // what was current until then
  const void* task_ = nullptr;  // what tells tasks of one thread apart
  Entry* below_ = nullptr;
};

// Pushes a context; all or nothing. Refused while a block of another task is open on the thread. `task` stays valid as
// long as the entry is on the list.
void enter_block(Entry& entry, const ContextHandle& context, const void* task);

// Pops it. True if that was all there was to do; `context` then is what the entry owned. Calls nothing that takes long.
bool leave_block_at_once(Entry& entry, const void* task, ContextHandle& context) noexcept;

// The same where other code has changed what is current, or the block is not the innermost one. Makes current what was
// before the block, whatever ran inside and whichever call fails. Throws if a block that was entered inside is still
// open, or on another thread; the entry then goes once it is the innermost of its own thread. Throws as well, but has
// left the block, if it was entered in another task.
void leave_block(Entry& entry, const void* task);

ContextHandle set_current(const ContextHandle& context, const void* task);  // returns what was current, or null

bool has_left_block() noexcept;  // whether the innermost entry is one that was left before its turn
void leave_what_was_left();      // removes those
Entry* take_left() noexcept;     // a block that has gone from the list of this thread since; null if there is none

// Closes a context that is current nowhere. What this thread has set, and other code has replaced since, is not
// current.
void close_context(const ContextHandle& context);
void demand_not_current(const ContextHandle& context);

void forget_current_of(const Runtime& runtime);  // removes all contexts of that driver from this thread
// Removes all, for a thread whose language ends before it does. At once: but for what that takes long, in one step for
// whoever shares a lock with the thread; the contexts are let go by the caller.
std::vector<ContextHandle> end_this_thread_at_once() noexcept;
void end_this_thread() noexcept;
const void* this_thread() noexcept;  // a different one for each

}  // namespace gctx
