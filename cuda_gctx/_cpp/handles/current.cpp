#include "handles/current.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "handles/stack.hpp"

namespace gctx {
// Two tasks of one thread would each work in the other's context.
void ThreadEntries::demand_task(const void* task) const {
  const Entry* inner = top;
  while (inner != nullptr && !inner->is_open_block()) {
    inner = inner->below_;
  }
  if (inner != nullptr && inner->task_ != task) [[unlikely]] {
    fail_state(inner->name() +
               " is still open on this thread, and belongs to another task (another contextvars.Context): a block must "
               "not contain an await or a switch; give the work of tasks explicit streams");
  }
}

// What set_current has made current since the innermost block was entered, and what it has put in the place of that.
template <typename Work>
void ThreadEntries::for_each_set(const Runtime& runtime, Work&& work) const {
  Entry* entry = top;
  for (; entry != nullptr && entry->is_set() && &entry->runtime() == &runtime; entry = entry->below_) {
    work(entry->set_ ? entry->set_ : entry->context_);
  }
  if (entry != nullptr && entry->set_ && &entry->runtime() == &runtime) {
    work(entry->set_);
  }
}

// Where a list begins when the innermost blocks that were left before their turn are off it, with what was set inside.
Entry* ThreadEntries::without_left_blocks(Entry* first) noexcept {
  Entry* remaining = first;
  for (Entry* entry = first; entry != nullptr; entry = entry->below_) {
    if (!entry->is_set()) {
      if (entry->state_.load() != State::left || entry->context_->runtime().is_set_aside()) {
        break;
      }
      remaining = entry->below_;
    }
  }
  return remaining;
}

// ---- blocks

// Of leave_at_once(): something else was on top.
void ThreadEntries::undo_pop(const Driver& driver, CUcontext popped) noexcept {
  if (failed_pop == CUDA_SUCCESS) {
    ContextStack(driver, places).push(popped);
  } else if (failed_pop == CUDA_ERROR_INVALID_CONTEXT) {
    failed_pop = CUDA_SUCCESS;  // nothing was there: other code has popped it
  }
}

// In a forked child its driver is gone, and so is what it made current.
void ThreadEntries::leave(Entry& entry, const void* task) {
  if (is_forked()) {
    return;
  }
  constexpr const char* until =
      ": it ends when it is the innermost block of its thread, and keeps its context until then";
  State expected = State::open;
  if (!entry.state_.compare_exchange_strong(expected, State::left)) {
    fail_state("this block is not open: it has been left already, or its thread has ended");
  }
  if (const long thread = entry.thread_.load(); thread != system_id) {
    fail_state("this block was entered on another thread (native id " + std::to_string(thread) +
               "), and cannot be left on this one" + until);
  }
  if (entry.runtime().is_set_aside()) {
    fail_state(entry.name() + " belongs to a driver that is inactive" + until);
  }
  for (const Entry* inner = top; inner != &entry; inner = inner->below_) {
    if (inner->is_open_block()) {
      fail_state(entry.name() + " was left before " + inner->name() + ", which was entered inside it" + until);
    }
  }
  const bool is_same_task = entry.task_ == task;
  leave_what_was_left();
  if (!is_same_task) {
    fail_state(entry.name() +
               " was entered in another task (another contextvars.Context) than it was left in, and its work may have "
               "been that of others meanwhile: a block must not contain an await or a switch");
  }
}

// ---- set_current

// Replaces what this thread has set before, also where other code has pushed something on it since.
ContextHandle ThreadEntries::set(const ContextHandle& context, const void* task) {
  leave_what_was_left();
  context->demand_there();
  demand_task(task);
  Runtime& runtime = context->runtime();
  const Driver& driver = runtime.driver();
  ContextHandle previous = current_context(runtime);
  Entry* const inner = next_of(top, runtime);
  std::size_t sets = 0;
  for_each_set(runtime, [&](const ContextHandle&) { ++sets; });
  const bool is_in_place = sets <= 1 && inner != nullptr && previous && inner->shown() == previous->handle();
  auto entry = is_in_place ? nullptr : std::make_unique<Entry>(nullptr, context);
  parted.reserve(usual_depth + sets);
  if (!context->state().make_current()) {
    context->fail_closed();
  }
  const CUresult result = driver.cuCtxSetCurrent(context->handle());
  if (result != CUDA_SUCCESS) {
    context->state().make_not_current();
    driver.fail(result, "cuCtxSetCurrent");
  }
  if (is_in_place) {
    context->note_thread(system_id);
    if (const auto before = std::exchange(inner->block_ != nullptr ? inner->set_ : inner->context_, context)) {
      before->state().make_not_current();
    }
    return previous;
  }
  if (inner != nullptr) {
    ContextStack stack(driver, places);
    Entry* left = nullptr;
    if (stack.take_apart() && !places.empty()) {
      places.pop_back();  // that of the new entry
      left = settle(runtime);
      locate(runtime);
      replace_sets(context);
      places.push_back(context->handle());
    }
    stack.put_together();
    release(left);
  }
  add(*entry.release(), nullptr, nullptr);
  return previous;
}

// Puts `context` in each place of what is set.
void ThreadEntries::replace_sets(const ContextHandle& context) noexcept {
  const Entry* block = top;
  while (block != nullptr && (block->is_set() || &block->runtime() != &context->runtime())) {
    block = block->below_;
  }
  const std::size_t own = block != nullptr ? above(block) : 0;
  for_each_set(context->runtime(), [&](ContextHandle& owner) {
    const bool is_of_block = block != nullptr && &owner == &block->set_;
    const std::size_t least = is_of_block && block->place_ != nowhere ? block->place_ : own;
    const auto found = std::find(places.begin() + static_cast<std::ptrdiff_t>(least), places.end(), owner->handle());
    if (found != places.end() && parted.size() < parted.capacity()) {
      *found = context->handle();
      context->state().make_current();
      parted.push_back(std::exchange(owner, context));
    }
  });
}

// ---- what is removed

void ThreadEntries::demand_not_here(const ContextBox& context) {
  context.demand_usable();
  leave_what_was_left();
  if (!ContextStack(context.runtime().driver(), places).look()) {
    return;
  }
  release(settle(context.runtime()));
  const auto found = std::find(places.begin(), places.end(), context.handle());
  if (found != places.end() && context.handle() != places.back() && !context.is_current_anywhere()) {
    fail(ErrorKind::current, context.label() +
                                 " cannot be closed while it is on this thread's stack of current contexts, where "
                                 "other code has pushed it: that code must pop it first (cuCtxPopCurrent)");
  }
}

void close_context(const ContextHandle& context) {
  if (!context->is_closed()) {
    ThreadEntries::here().demand_not_here(*context);
    context->close();
  }
}

void demand_not_current(const ContextHandle& context) {
  ThreadEntries::here().demand_not_here(*context);
  context->demand_not_current();
}

}  // namespace gctx
