#include "handles/current.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "handles/context.hpp"
#include "handles/owner_lock.hpp"
#include "handles/runtime.hpp"

namespace gctx {
namespace {

CUcontext current_raw(const Driver& driver) {
  CUcontext current = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &current);
  return current;
}

std::string address_text(const void* address) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%p", address);
  return text.data();
}

// What a thread made current: by a block (pushed), or by set_current. It ends a count in the context's state, which has
// begun in the step that asks whether the context is open: close() on another thread comes before or after, never
// between.
class Entry {
 public:
  Entry(ContextHandle&& counted, CUcontext before, std::uint64_t number,
        std::unique_ptr<const BlockOwner> owner) noexcept
      : context_(std::move(counted)), before_(before), number_(number), owner_(std::move(owner)) {}
  Entry(Entry&& other) noexcept
      : context_(std::move(other.context_)),
        before_(other.before_),
        number_(other.number_),
        owner_(std::move(other.owner_)),
        is_left_(other.is_left()) {}
  Entry& operator=(Entry&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(before_, other.before_);
    std::swap(number_, other.number_);
    std::swap(owner_, other.owner_);
    is_left_.store(other.is_left_.exchange(is_left()));
    return *this;
  }
  ~Entry() { release(); }

  ContextHandle release() noexcept {
    if (context_) {
      context_->state().make_not_current();
    }
    return std::move(context_);
  }

  ContextBox& context() const noexcept { return *context_; }
  const ContextHandle& handle() const noexcept { return context_; }
  CUcontext before() const noexcept { return before_; }
  std::uint64_t number() const noexcept { return number_; }
  const BlockOwner* owner() const noexcept { return owner_.get(); }  // null: the thread itself
  bool is_block() const noexcept { return number_ != 0; }
  bool is_open_block() const noexcept { return is_block() && !is_left(); }
  bool is_left() const noexcept { return is_left_.load(std::memory_order_relaxed); }
  void leave_later() noexcept { is_left_.store(true, std::memory_order_relaxed); }

 private:
  ContextHandle context_;
  CUcontext before_;      // what was current until then
  std::uint64_t number_;  // 0 for set_current
  std::unique_ptr<const BlockOwner> owner_;
  std::atomic<bool> is_left_{false};  // in the wrong order or on the wrong thread: it goes when it is the innermost
};

// Only its own thread adds and takes entries, under the lock, and so reads them without it. Others look at them under
// the lock, mark them as left, and empty the list of a thread that has ended.
class ThreadList {
 public:
  explicit ThreadList(std::uint64_t number) : number_(number), system_id_(::syscall(SYS_gettid)) {}

  std::uint64_t number() const noexcept { return number_; }
  long system_id() const noexcept { return system_id_; }

  // Room for one more, so that adding it cannot fail.
  void reserve() {
    if (entries_.size() == entries_.capacity()) [[unlikely]] {
      const std::lock_guard lock(mutex_);
      entries_.reserve(2 * entries_.size() + 2);
    }
  }

  std::uint64_t add_block(ContextHandle& counted, CUcontext before, std::unique_ptr<const BlockOwner> owner) noexcept {
    const std::lock_guard lock(mutex_);
    entries_.emplace_back(std::move(counted), before, ++last_block_, std::move(owner));
    is_empty_.store(false, std::memory_order_relaxed);
    return last_block_;
  }

  // What set_current does replaces what it did before, if no block was entered in between: the old one comes back.
  Entry add_set(Entry made) noexcept {
    const std::lock_guard lock(mutex_);
    if (!entries_.empty() && !entries_.back().is_block()) {
      std::swap(entries_.back(), made);
    } else {
      entries_.push_back(std::move(made));
      is_empty_.store(false, std::memory_order_relaxed);
    }
    return made;
  }

  // Returns its context, which is not to be let go under the lock.
  ContextHandle take_last() noexcept {
    const std::lock_guard lock(mutex_);
    ContextHandle context = entries_.back().release();
    entries_.pop_back();
    is_empty_.store(entries_.empty(), std::memory_order_relaxed);
    return context;
  }

  std::vector<Entry> take_all() noexcept {
    const std::lock_guard lock(mutex_);
    is_empty_.store(true, std::memory_order_relaxed);
    return std::exchange(entries_, {});
  }

  // For its own thread.
  bool is_new = true;
  std::vector<Entry>& entries() noexcept { return entries_; }
  bool has_left_blocks() const noexcept { return has_left_blocks_.load(std::memory_order_relaxed); }
  void note_left_block() noexcept { has_left_blocks_.store(true, std::memory_order_relaxed); }
  void note_no_left_block() noexcept { has_left_blocks_.store(false, std::memory_order_relaxed); }

  // For others.
  template <typename Look>
  auto look(Look&& look) {
    OwnerLock::Others others(mutex_);
    const std::lock_guard lock(others);
    return look(entries_);
  }
  bool names(const ContextBox& context) {
    return !is_empty_.load(std::memory_order_relaxed) && look([&](const std::vector<Entry>& entries) {
      return std::any_of(entries.begin(), entries.end(),
                         [&](const Entry& entry) { return &entry.context() == &context; });
    });
  }

 private:
  std::uint64_t number_;
  long system_id_;
  OwnerLock mutex_;
  std::vector<Entry> entries_;
  std::atomic<bool> is_empty_{true};  // for others: most threads have made nothing current
  std::uint64_t last_block_ = 0;
  std::atomic<bool> has_left_blocks_{false};
};

struct AllLists {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadList>> lists;
  std::uint64_t last_number = 0;
};

// Never destroyed: threads may end after static destructors have run.
AllLists& all_lists() {
  static auto* const lists = new AllLists;
  return *lists;
}

std::vector<std::shared_ptr<ThreadList>> copy_of_lists() {
  AllLists& all = all_lists();
  const std::lock_guard lock(all.mutex);
  return all.lists;
}

std::shared_ptr<ThreadList> list_of(std::uint64_t number) {
  AllLists& all = all_lists();
  const std::lock_guard lock(all.mutex);
  const auto found =
      std::find_if(all.lists.begin(), all.lists.end(), [&](const auto& list) { return list->number() == number; });
  return found != all.lists.end() ? *found : nullptr;
}

// Found without the function call that other variables of a thread take in a shared library.
[[gnu::tls_model("initial-exec")]] thread_local ThreadList* known_list_here = nullptr;

// Takes the thread's list off the registry when the thread ends.
class Here {
 public:
  Here() {
    AllLists& all = all_lists();
    const std::lock_guard lock(all.mutex);
    list_ = std::make_shared<ThreadList>(++all.last_number);
    all.lists.push_back(list_);
  }
  ~Here() {
    known_list_here = nullptr;
    if (is_forked()) {
      new std::shared_ptr<ThreadList>(std::move(list_));  // lost: its destructor would take locks
      return;
    }
    {
      AllLists& all = all_lists();
      const std::lock_guard lock(all.mutex);
      std::erase(all.lists, list_);
    }
    list_->take_all();
  }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

  ThreadList& list() noexcept { return *list_; }

 private:
  std::shared_ptr<ThreadList> list_;
};

ThreadList& list_here() {
  if (known_list_here == nullptr) [[unlikely]] {
    thread_local Here here;
    known_list_here = &here.list();
  }
  return *known_list_here;
}

// More than any program pushes: inner code that never stops is not waited for.
constexpr int most_contexts = 1000;

// What the driver has answered while a block was left.
struct Left {
  CUresult pop = CUDA_SUCCESS;
  CUcontext popped = nullptr;
  CUresult get = CUDA_SUCCESS;
  CUcontext now = nullptr;
};

// Makes `before` current again where one pop has not done it. What inner code pushed and left is popped (NCCL's
// initialization does that); where inner code popped too much or replaced what it found, `before` is set. Compared with
// what the driver reports until both are equal.
[[gnu::cold, gnu::noinline]] void go_on_restoring(const Driver& driver, CUcontext pushed, CUcontext before, Left left) {
  CUresult failed = CUDA_SUCCESS;
  CUresult answer = left.pop;
  // Nothing there to be popped: inner code has popped it, which is not a failure.
  const auto keep_failure = [&] {
    if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_INVALID_CONTEXT && failed == CUDA_SUCCESS) {
      failed = answer;
    }
  };
  keep_failure();
  bool went_too_far = answer == CUDA_SUCCESS && left.popped == before && left.popped != pushed;
  bool tried_again = false;
  for (int round = 0; round < most_contexts; ++round) {
    if (left.get == CUDA_SUCCESS && left.now == before) {
      if (failed != CUDA_SUCCESS) {
        Error error = driver.error(failed, "cuCtxPopCurrent");
        error.message += "; what was current before the block is current again";
        throw error;
      }
      return;
    }
    if (left.get != CUDA_SUCCESS) {
      failed = failed == CUDA_SUCCESS ? left.get : failed;
      answer = driver.cuCtxSetCurrent(before);
      if (answer != CUDA_SUCCESS) {
        break;
      }
    } else if (went_too_far && left.now != pushed) {
      answer = driver.cuCtxPushCurrent(before);  // inner code had popped what the block pushed
      went_too_far = false;
    } else if (left.now != nullptr && (answer == CUDA_SUCCESS || !tried_again)) {
      tried_again = answer != CUDA_SUCCESS;
      answer = driver.cuCtxPopCurrent(&left.popped);
      keep_failure();
    } else {
      answer = driver.cuCtxSetCurrent(before);
      if (answer != CUDA_SUCCESS) {
        break;
      }
    }
    left.get = driver.cuCtxGetCurrent(&left.now);
  }
  Error error = driver.error(failed != CUDA_SUCCESS ? failed : answer, "cuCtxPopCurrent");
  CUcontext now = nullptr;
  if (driver.cuCtxGetCurrent(&now) != CUDA_SUCCESS) {
    error.message += "; what is current on this thread is not known";
  } else {
    error.message += "; current on this thread is now " +
                     (now != nullptr ? "the context at " + address_text(now) : std::string("nothing"));
    error.message += ", and not what was current before the block";
  }
  throw error;
}

// Pops what a block pushed, and makes what was current before the block current again, whatever ran inside. A pop that
// returns what was pushed does not show that: inner code may have pushed the same once more.
inline void restore(const Driver& driver, CUcontext pushed, CUcontext before) {
  Left left;
  left.pop = driver.cuCtxPopCurrent(&left.popped);
  left.get = driver.cuCtxGetCurrent(&left.now);
  if (left.pop != CUDA_SUCCESS || left.get != CUDA_SUCCESS || left.now != before) [[unlikely]] {
    go_on_restoring(driver, pushed, before, left);
  }
}

// Takes the innermost entry off the list, whatever the driver answers, or its context could never be closed; but it is
// counted until it is popped, or it could be closed and destroyed in between.
ContextHandle leave_last(ThreadList& list) {
  const Entry& entry = list.entries().back();
  const Runtime& runtime = entry.context().runtime();
  if (entry.is_block() && runtime.is_usable()) {  // what was set inside a block goes with the block
    try {
      restore(runtime.driver(), entry.context().handle(), entry.before());
    } catch (...) {
      list.take_last();
      throw;
    }
  }
  return list.take_last();
}

// Whether the innermost block was left out of order. What was set inside it is on top of it.
bool ends_with_left_block(ThreadList& list) {
  const auto& entries = list.entries();
  const auto block = std::find_if(entries.rbegin(), entries.rend(), std::mem_fn(&Entry::is_block));
  return block != entries.rend() && block->is_left() && block->context().runtime().is_usable();
}

// Leaves entries as long as `more` says so; the first error is thrown when all is done.
template <typename More>
void leave_while(ThreadList& list, More&& more) {
  std::optional<Error> error;
  while (more()) {
    try {
      leave_last(list);
    } catch (const Error& failed) {
      if (!error) {
        error = failed;
      }
    }
  }
  if (error) {
    throw Error(*error);
  }
}

void leave_what_was_left(ThreadList& list) {
  if (!list.has_left_blocks()) [[likely]] {
    return;
  }
  list.note_no_left_block();
  leave_while(list, [&] { return ends_with_left_block(list); });
  const auto& entries = list.entries();
  if (std::any_of(entries.begin(), entries.end(), std::mem_fn(&Entry::is_left))) {
    list.note_left_block();
  }
}

std::string name_of_block(const Entry& entry) {
  return "the block of " + entry.context().label() +
         (entry.owner() == nullptr ? "" : " (entered at " + entry.owner()->place + ")");
}

const Entry* innermost_open_block(const std::vector<Entry>& entries) {
  const auto found = std::find_if(entries.rbegin(), entries.rend(), std::mem_fn(&Entry::is_open_block));
  return found != entries.rend() ? &*found : nullptr;
}

// Blocks of two tasks of one thread would each work in the other's context.
void demand_same_task(ThreadList& list, const BlockOwner* owner) {
  if (list.entries().empty() || (list.entries().back().is_open_block() && list.entries().back().owner() == nullptr))
      [[likely]] {
    return;
  }
  const Entry* const inner = innermost_open_block(list.entries());
  if (inner != nullptr && inner->owner() != nullptr && (owner == nullptr || inner->owner()->task != owner->task)) {
    fail_state(
        name_of_block(*inner) +
        " is still open on this thread, and belongs to another task: a block must not contain an await; give the "
        "work of coroutines explicit streams");
  }
}

// Whether the block is on top of all, and nothing has to go but this.
bool is_innermost(ThreadList& list, CurrentToken token) {
  if (token.thread != list.number() || list.has_left_blocks() || list.entries().empty()) {
    return false;
  }
  const Entry& last = list.entries().back();
  return last.number() == token.entry && !last.context().runtime().is_set_aside();
}

// Why the block cannot be left now, as a sentence, after marking it; empty if it can.
std::string mark_if_out_of_order(ThreadList& list, std::vector<Entry>& entries, CurrentToken token, bool is_here) {
  const auto entry = std::find_if(entries.rbegin(), entries.rend(),
                                  [&](const Entry& one) { return one.number() == token.entry && !one.is_left(); });
  if (entry == entries.rend()) {
    return "this block is not open: it has been left already, or its thread has ended";
  }
  const Entry* const inner = innermost_open_block(entries);
  const bool is_set_aside = entry->context().runtime().is_set_aside();
  if (is_here && inner == &*entry && !is_set_aside) [[likely]] {
    return {};
  }
  std::string wrong = name_of_block(*entry);
  if (!is_here) {
    wrong += " was entered on another thread (native id " + std::to_string(list.system_id()) +
             "), and cannot be left on this one";
  } else if (is_set_aside) {
    wrong += " belongs to a driver that is set aside";
  } else {
    wrong += " was left before " + name_of_block(*inner) + ", which was entered inside it";
  }
  entry->leave_later();
  list.note_left_block();
  return wrong + ": it ends when it is the innermost block of its thread, and keeps its context until then";
}

}  // namespace

// ---- scopes of this package

CurrentScope::CurrentScope(const Driver& driver, CUcontext context) : driver_(driver) {
  const CUresult result = enter(context);
  driver.check(result, is_before_known_ ? "cuCtxPushCurrent" : "cuCtxGetCurrent");
}

CurrentScope::CurrentScope(const ContextBox& context) : CurrentScope(context.runtime().driver(), context.handle()) {}

CurrentScope::CurrentScope(const ContextBox& context, std::nothrow_t) noexcept : driver_(context.runtime().driver()) {
  driver_.note(enter(context.handle()), "cuCtxPushCurrent");
}

CUresult CurrentScope::enter(CUcontext context) noexcept {
  CUresult result = driver_.cuCtxGetCurrent(&before_);
  is_before_known_ = result == CUDA_SUCCESS;
  if (is_before_known_ && before_ != context) {
    result = driver_.cuCtxPushCurrent(context);
    is_pushed_ = result == CUDA_SUCCESS;
  }
  is_entered_ = result == CUDA_SUCCESS;
  return result;
}

CurrentScope::~CurrentScope() { driver_.note(pop(), "cuCtxPopCurrent"); }

void CurrentScope::leave() { driver_.check(pop(), "cuCtxPopCurrent"); }

CUresult CurrentScope::pop() noexcept {
  CUcontext popped = nullptr;
  if (!std::exchange(is_pushed_, false)) {
    return CUDA_SUCCESS;
  }
  const CUresult result = driver_.cuCtxPopCurrent(&popped);
  if (result != CUDA_SUCCESS && driver_.cuCtxPopCurrent(&popped) != CUDA_SUCCESS) {
    driver_.note(driver_.cuCtxSetCurrent(before_), "cuCtxSetCurrent");
  }
  return result;
}

// ---- blocks

namespace {

ContextHandle context_of(const std::vector<Entry>& entries, CurrentToken token) {
  const auto entry =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& one) { return one.number() == token.entry; });
  return entry != entries.end() ? entry->handle() : nullptr;
}

// Everything but the usual case.
[[gnu::noinline]] ContextHandle pop_out_of_turn(ThreadList& mine, CurrentToken token) {
  std::string wrong;
  if (token.thread == mine.number()) {
    wrong = mark_if_out_of_order(mine, mine.entries(), token, true);
  } else if (const auto other = list_of(token.thread)) {
    wrong =
        other->look([&](std::vector<Entry>& entries) { return mark_if_out_of_order(*other, entries, token, false); });
  } else {
    wrong = "this block is not open: its thread has ended";
  }
  if (!wrong.empty()) {
    fail_state(std::move(wrong));
  }
  // What was set inside the block, and blocks inside it that were left before, go first.
  ContextHandle context = context_of(mine.entries(), token);
  bool is_done = false;
  leave_while(mine, [&] {
    const bool goes_on = !is_done;
    is_done = is_done || mine.entries().back().number() == token.entry;
    return goes_on || (mine.has_left_blocks() && ends_with_left_block(mine));
  });
  return context;
}

}  // namespace

CurrentToken push_current(ContextHandle& context, const BlockOwner* owner) {
  ContextBox& box = *context;
  box.demand_there();
  const Driver& driver = box.runtime().driver();
  ThreadList& mine = list_here();
  leave_what_was_left(mine);
  demand_same_task(mine, owner);
  auto own = owner != nullptr ? std::make_unique<const BlockOwner>(*owner) : nullptr;
  mine.reserve();
  const CUcontext before = current_raw(driver);
  if (!box.state().make_current()) [[unlikely]] {
    box.fail_closed();
  }
  const CUresult result = driver.cuCtxPushCurrent(box.handle());
  if (result != CUDA_SUCCESS) [[unlikely]] {
    box.state().make_not_current();
    driver.fail(result, "cuCtxPushCurrent");
  }
  const std::uint64_t block = mine.add_block(context, before, std::move(own));
  return {mine.number(), block, std::exchange(mine.is_new, false)};
}

ContextHandle pop_current(CurrentToken token) {
  if (is_forked()) {
    return nullptr;  // its driver is gone, and so is what it made current
  }
  ThreadList& mine = list_here();
  if (is_innermost(mine, token)) [[likely]] {
    return leave_last(mine);
  }
  return pop_out_of_turn(mine, token);
}

namespace {

// Puts a context in the place of what is current and of what this thread has set before. Returns the context of the
// latter, if it has set one.
ContextHandle replace_current(ThreadList& mine, ContextHandle&& context, CUcontext before) {
  ContextBox& box = *context;
  const Driver& driver = box.runtime().driver();
  mine.reserve();
  if (!box.state().make_current()) [[unlikely]] {
    box.fail_closed();
  }
  const CUresult result = driver.cuCtxSetCurrent(box.handle());
  if (result != CUDA_SUCCESS) [[unlikely]] {
    box.state().make_not_current();
    driver.fail(result, "cuCtxSetCurrent");
  }
  return mine.add_set(Entry(std::move(context), before, 0, nullptr)).release();
}

}  // namespace

ContextHandle set_current(const ContextHandle& context) {
  ThreadList& mine = list_here();
  leave_what_was_left(mine);
  context->demand_there();
  ContextHandle previous = current_context(context->runtime());
  replace_current(mine, ContextHandle(context), previous ? previous->handle() : nullptr);
  return previous;
}

// ---- what is forgotten

void forget_current_of(const Runtime& runtime) {
  ThreadList& mine = list_here();
  bool any = false;
  while (!mine.entries().empty() && &mine.entries().back().context().runtime() == &runtime) {
    mine.take_last();
    any = true;
  }
  if (any && runtime.is_usable()) {
    GCTX_CALL(runtime.driver(), cuCtxSetCurrent, nullptr);
  }
}

void forget_replaced_current() {
  ThreadList& mine = list_here();
  leave_what_was_left(mine);
  while (!mine.entries().empty() && !mine.entries().back().is_block()) {
    const ContextBox& top = mine.entries().back().context();
    if (top.runtime().is_usable() && current_raw(top.runtime().driver()) == top.handle()) {
      return;
    }
    mine.take_last();
  }
}

bool is_new_thread() { return std::exchange(list_here().is_new, false); }

void end_this_thread() noexcept {
  if (is_forked()) {
    return;
  }
  try {
    ThreadList& mine = list_here();
    while (!mine.entries().empty()) {
      const ContextHandle context = mine.entries().back().handle();
      const bool is_set = !mine.entries().back().is_block();
      const Runtime& runtime = context->runtime();
      leave_last(mine);
      if (is_set && runtime.is_usable() && context->is_current()) {
        runtime.driver().note(runtime.driver().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
      }
    }
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

CurrentToken take_token(std::vector<CurrentToken>& tokens) {
  if (tokens.empty()) {
    fail_state("this block is not open: it has been left already, or was never entered");
  }
  const std::uint64_t here = list_here().number();
  auto found = std::find_if(tokens.rbegin(), tokens.rend(), [&](CurrentToken one) { return one.thread == here; });
  found = found != tokens.rend() ? found : tokens.rbegin();
  const CurrentToken token = *found;
  tokens.erase(std::next(found).base());
  return token;
}

long thread_of_current(const ContextBox& context) noexcept {
  try {
    for (const auto& list : copy_of_lists()) {
      if (list->names(context)) {
        return list->system_id();
      }
    }
  } catch (const std::bad_alloc&) {  // the message does without it
  }
  return 0;
}

}  // namespace gctx
