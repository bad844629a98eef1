#include "handles/current.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "handles/stack.hpp"

namespace gctx {

// The list of a thread, from its innermost entry.
struct ThreadEntries {
  using State = Entry::State;

  const long system_id = ::syscall(SYS_gettid);
  Entry* top = nullptr;
  Entry* gone = nullptr;               // blocks that have left the list, for take_left()
  CUresult failed_pop = CUDA_SUCCESS;  // of leave_block_at_once()

  ThreadEntries() = default;
  ThreadEntries(const ThreadEntries&) = delete;
  ThreadEntries& operator=(const ThreadEntries&) = delete;
  ~ThreadEntries();

  static ThreadEntries& here();

  Entry* innermost_open_block() const noexcept;
  void demand_task(const void* task) const;
  void add(Entry& entry, ContextHandle context, CUcontext before, const void* task) noexcept;
  void leave_to(Entry* remaining);
  void release(Entry* first, const Entry* end) noexcept;
  static Entry* without_left_blocks(Entry* first) noexcept;
  static bool is_set_of(const Entry* entry, const Runtime& runtime) noexcept;
  void take_off(Entry& entry) noexcept;

  void enter(Entry& entry, const ContextHandle& context, const void* task);
  bool leave_at_once(Entry& entry, const void* task, ContextHandle& context) noexcept;
  bool end_at_once(ContextHandle& context) noexcept;
  void leave(Entry& entry, const void* task);
  ContextHandle set(const ContextHandle& context, const void* task);
  void leave_what_was_left();
  Entry* take_left() noexcept;
  void forget_replaced();
  void forget(const Runtime& runtime);
};

namespace {

// Found without the function call that other variables of a thread take in a shared library.
[[gnu::tls_model("initial-exec")]] thread_local ThreadEntries* known_here = nullptr;

// An entry of set_current when the next one comes: it is replaced, or gets the new context in its place.
struct SetBefore {
  Entry* entry;
  ContextHandle context;
  bool is_replaced;
};

std::string name_of_block(const ContextBox& context) { return "the block of " + context.label(); }

}  // namespace

ThreadEntries& ThreadEntries::here() {
  if (known_here == nullptr) [[unlikely]] {
    thread_local ThreadEntries entries;
    known_here = &entries;
  }
  return *known_here;
}

// The driver's stack ends with the thread.
ThreadEntries::~ThreadEntries() {
  known_here = nullptr;
  if (!is_forked()) {
    release(std::exchange(top, nullptr), nullptr);
  }
}

Entry* ThreadEntries::innermost_open_block() const noexcept {
  Entry* entry = top;
  while (entry != nullptr && (entry->block_ == nullptr || entry->state_.load() != State::open)) {
    entry = entry->below_;
  }
  return entry;
}

// Two tasks of one thread would each work in the other's context.
void ThreadEntries::demand_task(const void* task) const {
  const Entry* const inner = innermost_open_block();
  if (inner != nullptr && inner->task_ != task) [[unlikely]] {
    fail_state(name_of_block(*inner->context_) +
               " is still open on this thread, and belongs to another task (another contextvars.Context): a block must "
               "not contain an await or a switch; give the work of tasks explicit streams");
  }
}

void ThreadEntries::add(Entry& entry, ContextHandle context, CUcontext before, const void* task) noexcept {
  context->note_thread(system_id);
  entry.context_ = std::move(context);
  entry.before_ = before;
  entry.task_ = task;
  entry.below_ = top;
  entry.thread_.store(system_id, std::memory_order_relaxed);
  entry.state_.store(State::open, std::memory_order_relaxed);
  top = &entry;
}

// The one way by which entries leave. What is above `remaining` is taken off the list and off the driver's stack; only
// then their counts end, and their contexts are let go.
void ThreadEntries::leave_to(Entry* remaining) {
  Entry* const first = top;
  std::unique_ptr<Error> failed;
  const Entry* set = nullptr;  // by set_current, with no block under it that takes it along
  for (const Entry* entry = first; entry != remaining; entry = entry->below_) {
    const Runtime& runtime = entry->context_->runtime();
    if (!runtime.is_usable()) {
      continue;
    }
    ContextStack stack(runtime.driver());
    if (entry->block_ == nullptr) {
      set = set != nullptr ? set : entry;
      continue;
    }
    stack.note(std::exchange(failed_pop, CUDA_SUCCESS), "cuCtxPopCurrent");
    // Its own context is above what was before it, or one that was set there since.
    const Entry* const last = set != nullptr ? set : entry;
    std::size_t places = 1;
    for (const Entry* other = last; other != entry && other->below_ != entry; other = other->below_) {
      ++places;
    }
    stack.restore(entry->before_, places, [&](CUcontext found) {
      const Entry* ours = last;
      while (ours != entry && ours->context_->handle() != found) {
        ours = ours->below_;
      }
      return ours->context_->handle() == found;
    });
    set = nullptr;
    try {
      stack.check(entry->before_);
    } catch (const Error& error) {
      failed = failed ? std::move(failed) : std::make_unique<Error>(error);
    }
  }
  if (set != nullptr) {
    const Runtime& runtime = set->context_->runtime();
    ContextStack(runtime.driver()).replace(0, nullptr, [&](bool) -> CUcontext {
      const Entry* const asked = set;
      set = asked != remaining && is_set_of(asked, runtime) ? asked->below_ : set;
      return asked != remaining && is_set_of(asked, runtime) ? asked->context_->handle() : nullptr;
    });
  }
  top = remaining;
  release(first, remaining);
  if (failed) {
    throw Error(*failed);
  }
}

void ThreadEntries::release(Entry* first, const Entry* end) noexcept {
  while (first != end) {
    Entry* const entry = std::exchange(first, first->below_);
    const ContextHandle context = std::move(entry->context_);
    context->state().make_not_current();
    entry->state_.store(State::idle);
    if (entry->block_ == nullptr) {
      delete entry;
    } else {
      entry->below_ = std::exchange(gone, entry);
    }
  }
}

Entry* ThreadEntries::take_left() noexcept {
  Entry* const entry = gone;
  if (entry != nullptr) {
    gone = std::exchange(entry->below_, nullptr);
  }
  return entry;
}

// ---- blocks

void ThreadEntries::enter(Entry& entry, const ContextHandle& context, const void* task) {
  ContextBox& box = *context;
  box.demand_usable();
  leave_what_was_left();
  demand_task(task);
  const Driver& driver = box.runtime().driver();
  CUcontext before = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &before);
  if (!box.state().make_current()) [[unlikely]] {
    box.fail_closed();
  }
  const CUresult result = driver.cuCtxPushCurrent(box.handle());
  if (result != CUDA_SUCCESS) [[unlikely]] {
    box.state().make_not_current();
    driver.fail(result, "cuCtxPushCurrent");
  }
  add(entry, context, before, task);
}

bool ThreadEntries::leave_at_once(Entry& entry, const void* task, ContextHandle& context) noexcept {
  if (top != &entry || entry.task_ != task || without_left_blocks(entry.below_) != entry.below_) {
    return false;
  }
  const Runtime& runtime = entry.context_->runtime();
  State expected = State::open;
  if (!runtime.is_usable() || !entry.state_.compare_exchange_strong(expected, State::idle)) {
    return false;
  }
  const Driver& driver = runtime.driver();
  CUcontext popped = nullptr;
  CUcontext now = nullptr;
  failed_pop = driver.cuCtxPopCurrent(&popped);
  if (failed_pop != CUDA_SUCCESS || popped != entry.context_->handle() ||
      driver.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now != entry.before_) [[unlikely]] {
    if (failed_pop == CUDA_SUCCESS) {
      ContextStack(driver).put_back(popped);
    } else if (failed_pop == CUDA_ERROR_INVALID_CONTEXT) {
      failed_pop = CUDA_SUCCESS;  // nothing was there: other code has popped it
    }
    entry.state_.store(State::open);
    return false;
  }
  top = entry.below_;
  entry.context_->state().make_not_current();
  context = std::move(entry.context_);
  return true;
}

bool ThreadEntries::end_at_once(ContextHandle& context) noexcept {
  Entry* const entry = top;
  if (entry->block_ != nullptr) {
    if (!leave_at_once(*entry, entry->task_, context)) {
      return false;
    }
    entry->below_ = std::exchange(gone, entry);
    return true;
  }
  const Runtime& runtime = entry->context_->runtime();
  CUcontext now = nullptr;
  if (entry->below_ != nullptr || !runtime.is_usable() || runtime.driver().cuCtxGetCurrent(&now) != CUDA_SUCCESS ||
      now != entry->context_->handle() || runtime.driver().cuCtxPopCurrent(&now) != CUDA_SUCCESS) {
    return false;
  }
  context = entry->context_;
  top = nullptr;
  release(entry, nullptr);
  return true;
}

void ThreadEntries::leave(Entry& entry, const void* task) {
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
  const ContextHandle context = entry.context_;
  if (context->runtime().is_set_aside()) {
    fail_state(name_of_block(*context) + " belongs to a driver that is set aside" + until);
  }
  for (const Entry* inner = top; inner != &entry; inner = inner->below_) {
    if (inner->block_ != nullptr && inner->state_.load() == State::open) {
      fail_state(name_of_block(*context) + " was left before " + name_of_block(*inner->context_) +
                 ", which was entered inside it" + until);
    }
  }
  const bool is_same_task = entry.task_ == task;
  leave_what_was_left();
  if (!is_same_task) {
    fail_state(name_of_block(*context) +
               " was entered in another task (another contextvars.Context) than it was left in, and its work may have "
               "been that of others meanwhile: a block must not contain an await or a switch");
  }
}

// Where a list begins when the innermost blocks that were left before their turn are off it, with what was set inside.
Entry* ThreadEntries::without_left_blocks(Entry* first) noexcept {
  Entry* remaining = first;
  for (Entry* entry = first; entry != nullptr; entry = entry->below_) {
    if (entry->block_ != nullptr) {
      if (entry->state_.load() != State::left || entry->context_->runtime().is_set_aside()) {
        break;
      }
      remaining = entry->below_;
    }
  }
  return remaining;
}

void ThreadEntries::leave_what_was_left() {
  if (Entry* const remaining = without_left_blocks(top); remaining != top) {
    leave_to(remaining);
  }
}

// ---- set_current

ContextHandle ThreadEntries::set(const ContextHandle& context, const void* task) {
  leave_what_was_left();
  context->demand_there();
  demand_task(task);
  Runtime& runtime = context->runtime();
  const Driver& driver = runtime.driver();
  ContextHandle previous = current_context(runtime);
  // What this thread has set before is replaced, also where other code has pushed something on it since. Then there is
  // one more place on the driver's stack, and each has its entry.
  auto entry = std::make_unique<Entry>();
  std::vector<SetBefore> before;
  for (Entry* set = top; is_set_of(set, runtime); set = set->below_) {
    before.push_back({set, nullptr, set == top && set->context_ == previous});
  }
  if (!context->state().make_current()) {
    context->fail_closed();
  }
  const CUresult result = driver.cuCtxSetCurrent(context->handle());
  if (result != CUDA_SUCCESS) {
    context->state().make_not_current();
    driver.fail(result, "cuCtxSetCurrent");
  }
  const std::size_t first = !before.empty() && before[0].is_replaced ? 1 : 0;
  bool is_known = true;
  if (before.size() > first) {
    ContextStack stack(driver);
    std::size_t asked = first;
    stack.replace(1, context->handle(), [&](bool is_found) -> CUcontext {
      if (asked != first) {
        before[asked - 1].is_replaced = !is_found;  // it is not there: the entry goes
      }
      return asked < before.size() ? before[asked++].entry->context_->handle() : nullptr;
    });
    is_known = !stack.has_failed();
  }
  for (std::size_t i = 0; i < before.size() && (is_known || i < first); ++i) {
    if (before[i].is_replaced) {
      take_off(*before[i].entry);
    } else {
      context->state().make_current();
      before[i].context = std::exchange(before[i].entry->context_, context);
      before[i].context->state().make_not_current();
    }
  }
  add(*entry.release(), context, nullptr, nullptr);
  for (const SetBefore& set : before) {
    if (set.is_replaced && (is_known || &set - before.data() < static_cast<std::ptrdiff_t>(first))) {
      release(set.entry, nullptr);
    }
  }
  return previous;
}

bool ThreadEntries::is_set_of(const Entry* entry, const Runtime& runtime) noexcept {
  return entry != nullptr && entry->block_ == nullptr && &entry->context_->runtime() == &runtime;
}

void ThreadEntries::take_off(Entry& entry) noexcept {
  Entry** link = &top;
  while (*link != &entry) {
    link = &(*link)->below_;
  }
  *link = std::exchange(entry.below_, nullptr);
}

// ---- what is removed

void ThreadEntries::forget_replaced() {
  leave_what_was_left();
  while (top != nullptr && top->block_ == nullptr && !top->context_->runtime().is_set_aside()) {
    if (const Runtime& runtime = top->context_->runtime(); runtime.is_usable()) {
      ContextStack stack(runtime.driver());
      const CUcontext handle = top->context_->handle();
      if (stack.current() == handle || stack.has(handle) || stack.has_failed()) {
        return;
      }
    }
    leave_to(top->below_);
  }
}

void ThreadEntries::forget(const Runtime& runtime) {
  Entry* remaining = top;
  while (remaining != nullptr && &remaining->context_->runtime() == &runtime) {
    remaining = remaining->below_;
  }
  leave_to(remaining);
}

// ---- of the calling thread

bool Entry::is_of_this_thread() const noexcept {
  return !is_idle() && thread_.load(std::memory_order_relaxed) == ThreadEntries::here().system_id;
}

void enter_block(Entry& entry, const ContextHandle& context, const void* task) {
  ThreadEntries::here().enter(entry, context, task);
}

bool leave_block_at_once(Entry& entry, const void* task, ContextHandle& context) noexcept {
  return ThreadEntries::here().leave_at_once(entry, task, context);
}

// In a forked child its driver is gone, and so is what it made current.
void leave_block(Entry& entry, const void* task) {
  if (!is_forked()) {
    ThreadEntries::here().leave(entry, task);
  }
}

ContextHandle set_current(const ContextHandle& context, const void* task) {
  return ThreadEntries::here().set(context, task);
}

bool has_left_block() noexcept {
  const ThreadEntries& here = ThreadEntries::here();
  return ThreadEntries::without_left_blocks(here.top) != here.top;
}

void leave_what_was_left() { ThreadEntries::here().leave_what_was_left(); }

Entry* take_left() noexcept { return ThreadEntries::here().take_left(); }

void close_context(const ContextHandle& context) {
  if (!context->is_closed()) {
    context->demand_usable();
    ThreadEntries::here().forget_replaced();
    context->close();
  }
}

void demand_not_current(const ContextHandle& context) {
  context->demand_usable();
  ThreadEntries::here().forget_replaced();
  context->demand_not_current();
}

void forget_current_of(const Runtime& runtime) { ThreadEntries::here().forget(runtime); }

std::vector<ContextHandle> end_this_thread_at_once() noexcept {
  std::vector<ContextHandle> contexts;
  try {
    ThreadEntries& here = ThreadEntries::here();
    for (ContextHandle context; !is_forked() && here.top != nullptr && here.end_at_once(context);) {
      contexts.push_back(std::move(context));
    }
  } catch (const std::bad_alloc&) {  // end_this_thread() goes on
  }
  return contexts;
}

void end_this_thread() noexcept {
  if (is_forked()) {
    return;
  }
  try {
    ThreadEntries::here().leave_to(nullptr);
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

const void* this_thread() noexcept { return &ThreadEntries::here(); }

}  // namespace gctx
