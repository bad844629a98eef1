// What each thread made current through this package, by blocks and by set_current: one list of entries for a thread,
// which nobody else looks into.
//
// Each entry stands for one place on the driver's stack of the thread, and owns what that place shows. The law: the
// driver shows no context of an entry more often than entries own it, but for what other code pushes itself. It holds
// because push, set and pop change both alike, whatever other code has pushed, popped or replaced in between; and where
// they cannot (something else than its own was on top of a block that is left), the whole stack is looked at, and
// an entry goes only if its context is there no more often than the places of the entries below show it (settle). Until
// then it stays, and close() refuses: what a block has left is treated as what set_current has made current.
//
// To find the place of a block, where other code has left something there, an entry knows how many places it is above
// the outermost entry of the thread; that one is where its context first lies on what was current before it. So what
// was on the stack before a block is there again after it, if other code pushes contexts of its own and pops what it
// has pushed. Whatever else it does, what was current before is current again, or the block says that it is gone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "handles/types.hpp"

namespace gctx {

class Driver;
class Runtime;
struct ThreadEntries;

// A context that a thread made current. That of a block is part of the block, which a language binding keeps alive from
// enter_block() until it has been left at once, or else until take_left() returns it; that of set_current belongs to
// the list. A block keeps its handle, so that entering and leaving it copies none; but where it was left late,
// set_current may have put another one there.
class Entry {
 public:
  Entry() = default;
  Entry(void* block, ContextHandle context) noexcept { be_of(block, std::move(context)); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool is_idle() const noexcept { return state_.load(std::memory_order_relaxed) == State::idle; }
  bool is_of_this_thread() const noexcept;
  void* block() const noexcept { return block_; }
  void be_of(void* block, ContextHandle context) noexcept {
    block_ = block;
    context_ = std::move(context);
  }
  ContextHandle& context() noexcept { return context_; }

 private:
  friend struct ThreadEntries;

  // left: the block goes when it is the innermost one of its thread. Other threads change nothing but open to left.
  // over: it is no block any more, but may still be on the driver's stack.
  enum class State : int { idle, open, left, over };

  // Of set_current, or as good as that.
  bool is_set() const noexcept { return block_ == nullptr || state_.load(std::memory_order_relaxed) == State::over; }
  bool owns(CUcontext handle) const noexcept;
  CUcontext shown() const noexcept;
  Runtime& runtime() const noexcept;

  void* block_ = nullptr;  // null: of set_current
  std::atomic<State> state_{State::idle};
  std::atomic<long> thread_{0};  // the system's id
  ContextHandle context_;
  ContextHandle set_;           // by set_current in the place of a block
  CUcontext before_ = nullptr;  // of a block: what was current until then
  std::size_t place_ = 0;       // above that of the outermost entry
  const void* task_ = nullptr;  // what tells tasks of one thread apart
  Entry* below_ = nullptr;
};

// The list of the calling thread, for who looks it up once; a different one for each.
ThreadEntries& entries_of_this_thread();

// Pushes the context of a block; all or nothing. False if the entry is in use, or else if the innermost one was left
// before its turn: leave_what_was_left() comes first. Refused while a block of another task is open on the thread.
// `task` stays valid as long as the entry is on the list.
[[nodiscard]] bool enter_block(ThreadEntries& here, Entry& entry, const void* task);

// Pops it. True if that was all there was to do. Calls nothing that takes long.
[[nodiscard]] bool leave_block_at_once(ThreadEntries& here, Entry& entry, const void* task) noexcept;

// The same where other code has changed what is current, or the block is not the innermost one. Makes current what was
// before the block, whatever ran inside and whichever call fails. Throws if a block that was entered inside is still
// open, or on another thread; the entry then goes once it is the innermost of its own thread. Throws as well, but has
// left the block, if it was entered in another task.
void leave_block(Entry& entry, const void* task);

ContextHandle set_current(const ContextHandle& context, const void* task);  // returns what was current, or null

void leave_what_was_left();
Entry* take_left() noexcept;  // a block that has gone from the list of this thread since; null if there is none

// Closes a context that is current nowhere, and not on the driver's stack of this thread. What this thread has set, and
// other code has replaced since, is not current.
void close_context(const ContextHandle& context);
void demand_not_current(const ContextHandle& context);

void forget_current_of(const Runtime& runtime);  // removes all contexts of that driver from this thread
// Removes all, for a thread whose language ends before it does. At once: but for what that takes long, in one step for
// whoever shares a lock with the thread; the contexts are let go by the caller.
std::vector<ContextHandle> end_this_thread_at_once() noexcept;
void end_this_thread() noexcept;

}  // namespace gctx
