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
// Where other code has left something on a block, the places of all entries are found from the bottom of the stack, a
// block's where its context lies on what was current before it (locate). So what was on the stack before a block is
// there again after it, if other code pushes contexts of its own and pops what it has pushed. Whatever else it does,
// what was current before is current again, or the block says that it is gone. There is one exception: a block that
// finds its own context on top looks no further, so that one place of it stays if other code has pushed it once more.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "handles/context.hpp"

namespace gctx {

struct ThreadEntries;

// A context that a thread made current. That of a block is part of the block, which a language binding keeps alive from
// enter() until it has been left at once, or else until take_left() returns it; that of set_current belongs to
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
  void* task() const noexcept { return const_cast<void*>(task_); }
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

  bool is_open_block() const noexcept {
    return block_ != nullptr && state_.load(std::memory_order_relaxed) == State::open;
  }
  bool is_first_set() const noexcept { return block_ == nullptr && below_ == nullptr; }
  bool is_open_in(const void* task) const noexcept { return is_open_block() && task_ == task; }
  // Of set_current, or as good as that.
  bool is_set() const noexcept { return block_ == nullptr || state_.load(std::memory_order_relaxed) == State::over; }
  bool owns(CUcontext handle) const noexcept;
  CUcontext shown() const noexcept { return (set_ ? set_ : context_)->handle(); }
  Runtime& runtime() const noexcept { return context_->runtime(); }
  std::string name() const;  // of a block, for messages

  void* block_ = nullptr;  // null: of set_current
  std::atomic<State> state_{State::idle};
  std::atomic<long> thread_{0};  // the system's id
  ContextHandle context_;
  ContextHandle set_;           // by set_current in the place of a block
  CUcontext before_ = nullptr;  // of a block: what was current until then
  std::size_t place_ = 0;       // see locate()
  const void* task_ = nullptr;  // what tells tasks of one thread apart
  Entry* below_ = nullptr;
};

// The list of a thread, from its innermost entry. Who has it is that thread.
struct ThreadEntries {
  using State = Entry::State;
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  static constexpr std::size_t usual_depth = 64;

  ThreadEntries();
  ThreadEntries(const ThreadEntries&) = delete;
  ThreadEntries& operator=(const ThreadEntries&) = delete;
  ~ThreadEntries();

  static ThreadEntries& here();

  // Pushes the context of a block; all or nothing. False if the entry is in use, or else if the innermost one was left
  // before its turn or a call failed: leave_what_was_left() comes first, which throws what the driver answered. Refused
  // while a block of another task is open on the thread. `task` stays valid as long as the entry is on the list.
  // has_lock: see ContextState::make_current().
  template <bool has_lock = false>
  [[nodiscard]] bool enter(Entry& entry, const void* task);

  // Pops it. True if that was all there was to do. Calls nothing that takes long.
  template <bool has_lock = false>
  [[nodiscard]] bool leave_at_once(Entry& entry, const void* task) noexcept;

  // The same where other code has changed what is current, or the block is not the innermost one. Makes current what
  // was before the block, whatever ran inside and whichever call fails. Throws if a block that was entered inside is
  // still open, or on another thread; the entry then goes once it is the innermost of its own thread. Throws as well,
  // but has left the block, if it was entered in another task.
  void leave(Entry& entry, const void* task);
  void leave_what_was_left();
  Entry* take_left() noexcept;  // a block that has gone from the list since; null if there is none

  ContextHandle set(const ContextHandle& context, const void* task);  // returns what was current, or null

  // That a context which has no entry does not lie on the driver's stack. What other code has replaced is forgotten.
  void demand_not_here(const ContextBox& context);
  void forget(const Runtime& runtime);  // removes all contexts of that driver
  // Removes all, for a thread whose language ends before it does: in one step for whoever shares a lock with it. Calls
  // nothing that takes long: the caller lets the contexts go, and reports what failed.
  std::vector<ContextHandle> end() noexcept;

  // What follows is of the list itself: see entries.cpp.

  void demand_task(const void* task) const;
  void add(Entry& entry, CUcontext before, const void* task) noexcept;
  void release(Entry* first, const Entry* last = nullptr) noexcept;  // without the last one

  // Of entries of one driver.
  static Entry* next_of(Entry* entry, const Runtime& runtime) noexcept;
  CUcontext below(std::size_t at) const noexcept { return at != 0 ? places[at - 1] : nullptr; }
  bool is_place(const Entry& entry, std::size_t at) const noexcept;
  void locate(const Runtime& runtime) noexcept;
  static std::size_t above(const Entry* entry) noexcept;
  void cut(const Entry& block) noexcept;
  void undo_pop(const Driver& driver, CUcontext popped) noexcept;
  template <typename Work>
  void for_each_set(const Runtime& runtime, Work&& work) const;
  static bool has_owner(CUcontext handle, const Entry* entry) noexcept;
  Entry* settle(const Runtime& runtime) noexcept;

  void leave_to(Entry* remaining, bool is_end = false);
  static Entry* without_left_blocks(Entry* first) noexcept;
  void replace_sets(const ContextHandle& context) noexcept;

  const long system_id;
  Entry* top = nullptr;
  // The driver's stack from the bottom, when it is looked at. With room from the start: leaving needs no memory.
  std::vector<CUcontext> places;
  Entry* gone = nullptr;               // blocks that have left the list, for take_left()
  std::vector<ContextHandle> parted;   // what entries that stay have let go of, for release()
  CUresult failed_pop = CUDA_SUCCESS;  // of leave_at_once()
  FailedCall failed;                   // of enter() and end()
};

// ---- what a block usually takes: it is entered and left in one task, and other code leaves its place alone

inline void ThreadEntries::add(Entry& entry, CUcontext before, const void* task) noexcept {
  entry.context_->note_thread(system_id);
  entry.before_ = before;
  entry.task_ = task;
  entry.below_ = top;
  entry.thread_.store(system_id, std::memory_order_relaxed);
  entry.state_.store(State::open, std::memory_order_relaxed);
  top = &entry;
}

template <bool has_lock>
[[gnu::always_inline]] inline bool ThreadEntries::enter(Entry& entry, const void* task) {
  ContextBox& box = *entry.context_;
  const Runtime& runtime = box.runtime();
  runtime.demand_usable();
  if (!entry.is_idle()) [[unlikely]] {
    return false;
  }
  if (top != nullptr && !top->is_open_in(task) && !top->is_first_set()) [[unlikely]] {
    if (without_left_blocks(top) != top) {
      return false;
    }
    demand_task(task);
  }
  const Driver& driver = runtime.driver();
  CUcontext before = nullptr;
  if (const CUresult result = driver.cuCtxGetCurrent(&before); result != CUDA_SUCCESS) [[unlikely]] {
    failed = {&driver, result, "cuCtxGetCurrent"};
    return false;
  }
  if (!box.state().make_current<has_lock>()) [[unlikely]] {
    box.fail_closed();
  }
  if (const CUresult result = driver.cuCtxPushCurrent(box.handle()); result != CUDA_SUCCESS) [[unlikely]] {
    box.state().make_not_current();
    failed = {&driver, result, "cuCtxPushCurrent"};
    return false;
  }
  add(entry, before, task);
  return true;
}

template <bool has_lock>
[[gnu::always_inline]] inline bool ThreadEntries::leave_at_once(Entry& entry, const void* task) noexcept {
  Entry* const outer = entry.below_;
  ContextBox& box = *entry.context_;
  if (top != &entry || !entry.is_open_in(task) || entry.set_ || !box.runtime().is_usable() ||
      (outer != nullptr && !outer->is_open_block() && !outer->is_first_set() && without_left_blocks(outer) != outer))
      [[unlikely]] {
    return false;
  }
  const Driver& driver = box.runtime().driver();
  CUcontext popped = nullptr;
  failed_pop = driver.cuCtxPopCurrent(&popped);
  if (failed_pop != CUDA_SUCCESS || popped != box.handle()) [[unlikely]] {
    undo_pop(driver, popped);
    return false;
  }
  top = outer;
  // Another thread that has tried to leave it meanwhile was refused, and was told that it ends here.
  entry.state_.store(State::idle, std::memory_order_release);
  box.state().make_not_current<has_lock>();
  return true;
}

// Closes a context that is current nowhere, and not on the driver's stack of this thread. What this thread has set, and
// other code has replaced since, is not current.
void close_context(const ContextHandle& context);
void demand_not_current(const ContextHandle& context);

}  // namespace gctx
