#include "handles/current.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "handles/stack.hpp"

namespace gctx {
namespace {

constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
constexpr std::size_t usual_depth = 64;

bool is_green_of_ours(Runtime& runtime, CUcontext handle) {
  const ContextHandle known = contexts_of(runtime).registry.find(handle, [](const ContextBox&) { return true; });
  return known && known->kind() == ContextKind::green;
}

std::string name_of_block(const ContextBox& context) { return "the block of " + context.label(); }

}  // namespace

// The list of a thread, from its innermost entry.
struct ThreadEntries {
  using State = Entry::State;

  const long system_id = ::syscall(SYS_gettid);
  Entry* top = nullptr;
  std::vector<CUcontext> places;       // the driver's stack from the bottom, when it is looked at
  Entry* gone = nullptr;               // blocks that have left the list, for take_left()
  std::vector<ContextHandle> parted;   // of entries that stay for another context, for release()
  CUresult failed_pop = CUDA_SUCCESS;  // of leave_block_at_once()

  ThreadEntries() = default;
  ThreadEntries(const ThreadEntries&) = delete;
  ThreadEntries& operator=(const ThreadEntries&) = delete;
  ~ThreadEntries();

  static ThreadEntries& here();

  Entry* innermost_open_block() const noexcept;
  void demand_task(const void* task) const;
  void add(Entry& entry, CUcontext before, std::size_t place, const void* task) noexcept;
  void release(Entry* first) noexcept;

  // Of entries of one driver.
  static Entry* next_of(Entry* entry, const Runtime& runtime) noexcept;
  CUcontext below(std::size_t at) const noexcept { return at != 0 ? places[at - 1] : nullptr; }
  std::size_t index_of(const Entry& entry) const noexcept;
  void cut(const Entry& block) noexcept;
  template <typename Work>
  void for_each_set(const Runtime& runtime, Work&& work) const;
  std::size_t place_of_next(const Runtime& runtime) const noexcept;
  static bool has_owner(CUcontext handle, const Entry* entry) noexcept;
  Entry* settle(const Runtime& runtime) noexcept;

  void leave_to(Entry* remaining, bool is_end = false);
  static Entry* without_left_blocks(Entry* first) noexcept;
  void leave_what_was_left();
  Entry* take_left() noexcept;

  void demand_room() {  // so that leaving needs no memory
    places.reserve(usual_depth);
    parted.reserve(usual_depth);
  }
  bool enter(Entry& entry, const void* task);
  bool leave_at_once(Entry& entry, const void* task) noexcept;
  bool end_at_once(ContextHandle& context) noexcept;
  void leave(Entry& entry, const void* task);
  ContextHandle set(const ContextHandle& context, const void* task);
  void replace_sets(const ContextHandle& context, std::vector<ContextHandle>& before) noexcept;
  void demand_not_here(const ContextBox& context);
  void forget(const Runtime& runtime);
};

namespace {

// Found without the function call that other variables of a thread take in a shared library.
[[gnu::tls_model("initial-exec")]] thread_local ThreadEntries* known_here = nullptr;

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
    release(std::exchange(top, nullptr));
  }
}

Runtime& Entry::runtime() const noexcept { return context_->runtime(); }

CUcontext Entry::shown() const noexcept { return (set_ ? set_ : context_)->handle(); }

bool Entry::owns(CUcontext handle) const noexcept {
  return context_->handle() == handle || (set_ && set_->handle() == handle);
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

inline void ThreadEntries::add(Entry& entry, CUcontext before, std::size_t place, const void* task) noexcept {
  entry.context_->note_thread(system_id);
  entry.before_ = before;
  entry.place_ = place;
  entry.task_ = task;
  entry.below_ = top;
  entry.thread_.store(system_id, std::memory_order_relaxed);
  entry.state_.store(State::open, std::memory_order_relaxed);
  top = &entry;
}

// After the driver's stack has been put right: what is let go here may be destroyed.
void ThreadEntries::release(Entry* first) noexcept {
  while (first != nullptr) {
    Entry& entry = *std::exchange(first, first->below_);
    if (const ContextHandle set = std::move(entry.set_)) {
      set->state().make_not_current();
    }
    if (entry.block_ == nullptr) {
      const ContextHandle context = std::move(entry.context_);
      delete &entry;
      context->state().make_not_current();
    } else {
      entry.state_.store(State::over);
      entry.below_ = std::exchange(gone, &entry);
      entry.context_->state().make_not_current();
    }
  }
  while (!parted.empty()) {
    const ContextHandle context = std::move(parted.back());
    parted.pop_back();
    context->state().make_not_current();
  }
}

Entry* ThreadEntries::take_left() noexcept {
  Entry* const entry = gone;
  if (entry != nullptr) {
    gone = std::exchange(entry->below_, nullptr);
    entry->state_.store(State::idle);  // not before: whoever enters it now changes what is below it
  }
  return entry;
}

// ---- places

Entry* ThreadEntries::next_of(Entry* entry, const Runtime& runtime) noexcept {
  while (entry != nullptr && &entry->runtime() != &runtime) {
    entry = entry->below_;
  }
  return entry;
}

// Where the place of an entry is, if other code has left it and those below it alone.
std::size_t ThreadEntries::index_of(const Entry& entry) const noexcept {
  const Runtime& runtime = entry.runtime();
  const Entry* first = &entry;
  while (first != nullptr && first->place_ != 0) {
    first = next_of(first->below_, runtime);
  }
  for (std::size_t at = 0; first != nullptr && at < places.size(); ++at) {
    if (places[at] == first->shown() && (first->is_set() || below(at) == first->before_)) {
      return at + entry.place_;
    }
  }
  return nowhere;
}

// Of the next entry. If other code has taken away what there was, it begins anew.
std::size_t ThreadEntries::place_of_next(const Runtime& runtime) const noexcept {
  const Entry* const inner = next_of(top, runtime);
  const std::size_t own = inner != nullptr ? index_of(*inner) : nowhere;
  return own == nowhere ? 0 : places.size() - (own - inner->place_);
}

// Takes away the place of a block and what is above it, so that what was current before is on top.
void ThreadEntries::cut(const Entry& block) noexcept {
  const CUcontext before = block.before_;
  const std::size_t own = index_of(block);
  if (own <= places.size() && below(own) == before) {
    places.resize(own);
    return;
  }
  // Other code has taken it away or replaced it, alone or with what was below it. What is left of it lies above the
  // next entry that is still there, and has not been on top before.
  const Entry* outer = next_of(block.below_, block.runtime());
  while (outer != nullptr && (index_of(*outer) >= places.size() || places[index_of(*outer)] != outer->shown())) {
    outer = next_of(outer->below_, outer->runtime());
  }
  const std::size_t least = outer != nullptr ? index_of(*outer) + 1 : 1;
  for (std::size_t at = places.size(); before != nullptr && at-- > least;) {
    if (below(at) == before) {
      places.resize(at);
      return;
    }
  }
  if (before == nullptr) {
    places.clear();
  } else if (below(places.size()) != before) {
    places.push_back(before);
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

bool ThreadEntries::has_owner(CUcontext handle, const Entry* entry) noexcept {
  while (entry != nullptr && !entry->owns(handle)) {
    entry = entry->below_;
  }
  return entry != nullptr;
}

// The one way by which entries leave, but for those that leave with their own place: off the list, to be released, if
// the driver shows their contexts no more often than the places of the entries below do.
Entry* ThreadEntries::settle(const Runtime& runtime) noexcept {
  const auto is_shown = [&](const Entry& entry, const ContextHandle& context) {
    if (!context || &entry.runtime() != &runtime) {
      return false;
    }
    std::ptrdiff_t by_others = 0;
    for (const Entry* other = entry.below_; other != nullptr; other = other->below_) {
      by_others += static_cast<std::ptrdiff_t>(other->shown() == context->handle());
    }
    return std::count(places.begin(), places.end(), context->handle()) > by_others;
  };
  Entry* left = nullptr;
  for (Entry** link = &top; *link != nullptr && (*link)->is_set() && !(*link)->runtime().is_set_aside();) {
    Entry& entry = **link;
    const bool is_set_shown = is_shown(entry, entry.set_);
    if (is_set_shown || is_shown(entry, entry.context_)) {
      if (entry.set_ && !is_set_shown && parted.size() < parted.capacity()) {
        parted.push_back(std::move(entry.set_));
      }
      link = &entry.below_;
    } else {
      *link = entry.below_;
      entry.below_ = std::exchange(left, &entry);
    }
  }
  return left;
}

// ---- leaving

// Takes what is above `remaining` off the driver's stack: what is set goes with the block under it, and at the end of a
// thread or a driver, all of it goes.
void ThreadEntries::leave_to(Entry* remaining, bool is_end) {
  Runtime* runtime = nullptr;    // no more than one can be called
  const Entry* block = nullptr;  // the outermost one
  for (Entry* entry = top; entry != remaining; entry = entry->below_) {
    if (entry->runtime().is_usable()) {
      runtime = &entry->runtime();
      block = entry->is_set() ? block : entry;
    }
  }
  const CUcontext before = block != nullptr ? block->before_ : nullptr;
  std::optional<ContextStack> stack;
  bool is_known = false;
  bool is_lost = false;  // what was current before
  if (runtime != nullptr) {
    stack.emplace(runtime->driver(), places);
    stack->note(std::exchange(failed_pop, CUDA_SUCCESS), "cuCtxPopCurrent");
    is_known = stack->take_apart();
    if (is_known && block != nullptr) {
      const std::size_t depth = places.size();
      cut(*block);
      // It is pushed again, unless other code may have destroyed it since, or nobody would keep it.
      const bool is_missing = places.size() > depth && !has_owner(before, block->below_);
      if (is_missing && (is_green_of_ours(*runtime, before) || !stack->is_there(before))) {
        places.pop_back();
        is_lost = true;
      }
    }
    if (is_end && is_known) {
      std::erase_if(places, [&](CUcontext handle) { return has_owner(handle, top) && !has_owner(handle, remaining); });
    }
    stack->put_together();
    if (block != nullptr && !is_lost && !is_end && stack->current() != before) {
      stack->set(before);
    }
  }
  const std::string name = is_lost ? name_of_block(*block->context_) : std::string();
  for (Entry* entry = top; entry != remaining; entry = entry->below_) {
    entry->state_.store(entry->is_set() ? entry->state_.load() : State::over);
  }
  if (is_end || runtime == nullptr) {
    Entry** end = &top;
    while (*end != remaining) {
      end = &(*end)->below_;
    }
    *end = nullptr;
    release(std::exchange(top, remaining));
  } else if (is_known) {
    release(settle(*runtime));
  }
  if (is_lost && !is_end) {
    fail_state(name +
               " has been left, but other code has popped what was current before it, which may be destroyed: make "
               "another context current by Device.set_current()");
  }
  if (block != nullptr) {
    stack->check(before);
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

void ThreadEntries::leave_what_was_left() {
  if (Entry* const remaining = without_left_blocks(top); remaining != top) {
    leave_to(remaining);
  }
}

// ---- blocks

bool ThreadEntries::enter(Entry& entry, const void* task) {
  ContextBox& box = *entry.context_;
  box.demand_usable();
  if (!entry.is_idle()) [[unlikely]] {
    return false;
  }
  if (top != nullptr) {
    if (without_left_blocks(top) != top) [[unlikely]] {
      return false;
    }
    demand_task(task);
  }
  demand_room();
  const Driver& driver = box.runtime().driver();
  CUcontext before = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &before);
  std::size_t place = 0;
  if (const Entry* const inner = next_of(top, box.runtime())) {
    place = inner->place_ + 1;
    if (inner->shown() != before) [[unlikely]] {  // other code has pushed something, or taken it away
      ContextStack stack(driver, places);
      stack.look();
      stack.check();
      place = place_of_next(box.runtime());
    }
  }
  if (!box.state().make_current()) [[unlikely]] {
    box.fail_closed();
  }
  const CUresult result = driver.cuCtxPushCurrent(box.handle());
  if (result != CUDA_SUCCESS) [[unlikely]] {
    box.state().make_not_current();
    driver.fail(result, "cuCtxPushCurrent");
  }
  add(entry, before, place, task);
  return true;
}

bool ThreadEntries::leave_at_once(Entry& entry, const void* task) noexcept {
  if (top != &entry || entry.task_ != task || entry.set_ ||
      (entry.below_ != nullptr && without_left_blocks(entry.below_) != entry.below_)) [[unlikely]] {
    return false;
  }
  ContextBox& box = *entry.context_;
  const Runtime& runtime = box.runtime();
  State expected = State::open;
  if (!runtime.is_usable() || !entry.state_.compare_exchange_strong(expected, State::idle)) [[unlikely]] {
    return false;
  }
  const Driver& driver = runtime.driver();
  CUcontext popped = nullptr;
  CUcontext now = nullptr;
  failed_pop = driver.cuCtxPopCurrent(&popped);
  if (failed_pop != CUDA_SUCCESS || popped != box.handle() || driver.cuCtxGetCurrent(&now) != CUDA_SUCCESS ||
      now != entry.before_) [[unlikely]] {
    if (failed_pop == CUDA_SUCCESS) {
      ContextStack(driver, places).push(popped);
    } else if (failed_pop == CUDA_ERROR_INVALID_CONTEXT) {
      failed_pop = CUDA_SUCCESS;  // nothing was there: other code has popped it
    }
    entry.state_.store(State::open);
    return false;
  }
  top = entry.below_;
  box.state().make_not_current();
  return true;
}

bool ThreadEntries::end_at_once(ContextHandle& context) noexcept {
  Entry* const entry = top;
  if (!entry->is_set()) {
    if (!leave_at_once(*entry, entry->task_)) {
      return false;
    }
    entry->state_.store(State::over);
    entry->below_ = std::exchange(gone, entry);
    return true;
  }
  const Runtime& runtime = entry->context_->runtime();
  CUcontext now = nullptr;
  if (entry->below_ != nullptr || entry->set_ || !runtime.is_usable() ||
      runtime.driver().cuCtxGetCurrent(&now) != CUDA_SUCCESS || now != entry->context_->handle() ||
      runtime.driver().cuCtxPopCurrent(&now) != CUDA_SUCCESS) {
    return false;
  }
  context = entry->context_;
  top = nullptr;
  release(entry);
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
    fail_state(name_of_block(*context) + " belongs to a driver that is inactive" + until);
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

// ---- set_current

// Replaces what this thread has set before, also where other code has pushed something on it since.
ContextHandle ThreadEntries::set(const ContextHandle& context, const void* task) {
  leave_what_was_left();
  context->demand_there();
  demand_task(task);
  demand_room();
  Runtime& runtime = context->runtime();
  const Driver& driver = runtime.driver();
  ContextHandle previous = current_context(runtime);
  Entry* const inner = next_of(top, runtime);
  int sets = 0;
  for_each_set(runtime, [&](const ContextHandle&) { ++sets; });
  const bool is_in_place = sets <= 1 && inner != nullptr && previous && inner->shown() == previous->handle();
  auto entry = is_in_place ? nullptr : std::make_unique<Entry>();
  std::vector<ContextHandle> before;
  before.reserve(static_cast<std::size_t>(sets) + 1);
  if (!context->state().make_current()) {
    context->fail_closed();
  }
  const CUresult result = driver.cuCtxSetCurrent(context->handle());
  if (result != CUDA_SUCCESS) {
    context->state().make_not_current();
    driver.fail(result, "cuCtxSetCurrent");
  }
  const auto let_go = [&] {
    for (const ContextHandle& replaced : before) {
      replaced->state().make_not_current();
    }
  };
  if (is_in_place) {
    context->note_thread(system_id);
    ContextHandle& owner = inner->block_ != nullptr ? inner->set_ : inner->context_;
    if (owner) {
      before.push_back(std::move(owner));
    }
    owner = context;
    let_go();
    return previous;
  }
  std::size_t place = 0;
  if (inner != nullptr) {
    ContextStack stack(driver, places);
    Entry* left = nullptr;
    if (stack.take_apart() && !places.empty()) {
      places.pop_back();  // that of the new entry
      left = settle(runtime);
      place = place_of_next(runtime);
      replace_sets(context, before);
      places.push_back(context->handle());
    }
    stack.put_together();
    release(left);
    let_go();
  }
  entry->be_of(nullptr, context);
  add(*entry.release(), nullptr, place, nullptr);
  return previous;
}

// Puts `context` in each place of what is set.
void ThreadEntries::replace_sets(const ContextHandle& context, std::vector<ContextHandle>& before) noexcept {
  const Entry* block = top;
  while (block != nullptr && (block->is_set() || &block->runtime() != &context->runtime())) {
    block = block->below_;
  }
  const std::size_t own = block != nullptr ? index_of(*block) : nowhere;
  for_each_set(context->runtime(), [&](ContextHandle& owner) {
    const bool is_of_block = block != nullptr && &owner == &block->set_;
    const std::size_t least = own >= places.size() ? 0 : is_of_block ? own : own + 1;
    const auto found = std::find(places.begin() + static_cast<std::ptrdiff_t>(least), places.end(), owner->handle());
    if (found != places.end()) {
      *found = context->handle();
      context->state().make_current();
      before.push_back(std::exchange(owner, context));
    }
  });
}

// ---- what is removed

// That a context which has no entry does not lie on the stack of this thread. What other code has replaced is
// forgotten.
void ThreadEntries::demand_not_here(const ContextBox& context) {
  leave_what_was_left();
  ContextStack stack(context.runtime().driver(), places);
  const bool is_whole = stack.look();
  if (!is_whole) {
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

void ThreadEntries::forget(const Runtime& runtime) {
  Entry* remaining = top;
  while (remaining != nullptr && &remaining->runtime() == &runtime) {
    remaining = remaining->below_;
  }
  if (remaining != top) {
    leave_to(remaining, true);
  }
}

// ---- of the calling thread

bool Entry::is_of_this_thread() const noexcept {
  return !is_idle() && thread_.load(std::memory_order_relaxed) == ThreadEntries::here().system_id;
}

ThreadEntries& entries_of_this_thread() { return ThreadEntries::here(); }

bool enter_block(ThreadEntries& here, Entry& entry, const void* task) { return here.enter(entry, task); }

bool leave_block_at_once(ThreadEntries& here, Entry& entry, const void* task) noexcept {
  return here.leave_at_once(entry, task);
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

void leave_what_was_left() { ThreadEntries::here().leave_what_was_left(); }

Entry* take_left() noexcept { return ThreadEntries::here().take_left(); }

void close_context(const ContextHandle& context) {
  if (!context->is_closed()) {
    context->demand_usable();
    ThreadEntries::here().demand_not_here(*context);
    context->close();
  }
}

void demand_not_current(const ContextHandle& context) {
  context->demand_usable();
  ThreadEntries::here().demand_not_here(*context);
  context->demand_not_current();
}

void forget_current_of(const Runtime& runtime) {
  if (!is_forked()) {
    ThreadEntries::here().forget(runtime);
  }
}

std::vector<ContextHandle> end_this_thread_at_once() noexcept {
  std::vector<ContextHandle> contexts;
  try {
    ThreadEntries& here = ThreadEntries::here();
    for (ContextHandle context; !is_forked() && here.top != nullptr && here.end_at_once(context);) {
      if (context) {
        contexts.push_back(std::move(context));
      }
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
    if (ThreadEntries& here = ThreadEntries::here(); here.top != nullptr) {
      here.leave_to(nullptr, true);
    }
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

}  // namespace gctx
