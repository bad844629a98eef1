// The list of a thread, the places of its entries on the driver's stack, and the one way by which entries go.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/current.hpp"
#include "handles/runtime.hpp"
#include "handles/stack.hpp"

namespace gctx {
namespace {

// Found without the function call that other variables of a thread take in a shared library.
[[gnu::tls_model("initial-exec")]] thread_local ThreadEntries* known_here = nullptr;

bool is_green_of_ours(Runtime& runtime, CUcontext handle) {
  const ContextHandle known = ContextBox::registry.find(runtime, handle, [](const ContextBox&) { return true; });
  return known && known->kind() == ContextKind::green;
}

}  // namespace

ThreadEntries::ThreadEntries() : system_id(::syscall(SYS_gettid)) {
  places.reserve(usual_depth);
  parted.reserve(usual_depth);
}

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

bool Entry::owns(CUcontext handle) const noexcept {
  return context_->handle() == handle || (set_ && set_->handle() == handle);
}

std::string Entry::name() const { return "the block of " + context_->label(); }

bool Entry::is_of_this_thread() const noexcept {
  return !is_idle() && thread_.load(std::memory_order_relaxed) == ThreadEntries::here().system_id;
}

// After the driver's stack has been put right: what is let go here may be destroyed.
void ThreadEntries::release(Entry* first, const Entry* last) noexcept {
  while (first != last) {
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

bool ThreadEntries::is_place(const Entry& entry, std::size_t at) const noexcept {
  return places[at] == entry.shown() && (entry.is_set() || below(at) == entry.before_);
}

// Finds the places of all entries of a driver: nowhere is what other code has taken away or replaced.
void ThreadEntries::locate(const Runtime& runtime) noexcept {
  const auto turn_round = [this] {
    Entry* entry = std::exchange(top, nullptr);
    while (entry != nullptr) {
      std::swap(entry->below_, top);
      std::swap(entry, top);
    }
  };
  turn_round();
  std::size_t least = 0;
  for (Entry* entry = next_of(top, runtime); entry != nullptr; entry = next_of(entry->below_, runtime)) {
    std::size_t most = places.size();
    for (const Entry* inner = entry->below_; entry->is_set() && inner != nullptr; inner = inner->below_) {
      // What was set lies below the blocks that were entered since.
      std::size_t at = inner->is_set() ? least : places.size();
      while (at > least && !is_place(*inner, at - 1)) {
        --at;
      }
      most = at > least ? std::min(most, at - 1) : most;
    }
    std::size_t at = least;
    while (at < most && !is_place(*entry, at)) {
      ++at;
    }
    entry->place_ = at < most ? at : nowhere;
    least = at < most ? at + 1 : least;
  }
  turn_round();
}

// The place above an entry, or above the next one below that is still there.
std::size_t ThreadEntries::above(const Entry* entry) noexcept {
  while (entry != nullptr && entry->place_ == nowhere) {
    entry = next_of(entry->below_, entry->runtime());
  }
  return entry != nullptr ? entry->place_ + 1 : 0;
}

// Takes away the place of a block and what is above it, so that what was current before is on top.
void ThreadEntries::cut(const Entry& block) noexcept {
  if (block.place_ != nowhere) {
    places.resize(block.place_);
    return;
  }
  // Other code has taken it away or replaced it, alone or with what was below it. What is left of it lies above the
  // next entry that is still there, and has not been on top before.
  const CUcontext before = block.before_;
  const std::size_t least = std::max<std::size_t>(above(&block), 1);
  for (std::size_t at = places.size(); before != nullptr && at-- > least;) {
    if (below(at) == before) {
      places.resize(at);
      return;
    }
  }
  // It is put back, but no entry's context twice: nobody would own that.
  const auto found = std::find(places.rbegin(), places.rend(), before);
  if (before == nullptr || (found != places.rend() && has_owner(before, block.below_))) {
    places.resize(static_cast<std::size_t>(places.rend() - found));
  } else if (below(places.size()) != before) {
    places.push_back(before);
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
      locate(*runtime);
      cut(*block);
      // It is pushed again, unless other code may have destroyed it since, or nobody would keep it.
      const bool is_missing = places.size() > depth && !has_owner(before, block->below_);
      if (is_missing && (is_end || is_green_of_ours(*runtime, before) || !stack->is_there(before))) {
        places.pop_back();
        is_lost = true;
      }
    }
    if (is_end && is_known) {
      std::erase_if(places, [&](CUcontext handle) { return has_owner(handle, top) && !has_owner(handle, remaining); });
    }
    stack->put_together();
    CUcontext now = nullptr;
    if (block != nullptr && !is_lost && !is_end && !(stack->current(now) && now == before)) {
      stack->set(before);
    }
  }
  const std::string name = is_lost ? block->name() : std::string();
  for (Entry* entry = top; entry != remaining; entry = entry->below_) {
    entry->state_.store(entry->is_set() ? entry->state_.load() : State::over);
  }
  if (is_end || runtime == nullptr) {
    release(std::exchange(top, remaining), remaining);
  } else if (is_known) {
    release(settle(*runtime));
  }
  if (is_lost && !is_end) {
    fail_state(name +
               " has been left, but other code has popped what was current before it, which may be destroyed: make "
               "another context current by Device.set_current()");
  }
  if (block != nullptr && is_end) {
    failed = stack->failed();
  } else if (block != nullptr) {
    stack->check(before);
  }
}

void ThreadEntries::leave_what_was_left() {
  std::exchange(failed, {}).check();
  if (Entry* const remaining = without_left_blocks(top); remaining != top) {
    leave_to(remaining);
  }
}

// ---- what ends

void ThreadEntries::forget(const Runtime& runtime) {
  Entry* remaining = top;
  while (remaining != nullptr && &remaining->runtime() == &runtime) {
    remaining = remaining->below_;
  }
  if (remaining != top && !is_forked()) {
    leave_to(remaining, true);
    std::exchange(failed, {}).check();
  }
}

std::vector<ContextHandle> ThreadEntries::end() noexcept {
  std::vector<ContextHandle> contexts;
  if (is_forked() || top == nullptr) {
    return contexts;
  }
  try {
    for (const Entry* entry = top; entry != nullptr; entry = entry->below_) {
      contexts.insert(contexts.end(), {entry->context_, entry->set_});
    }
  } catch (const std::bad_alloc&) {  // they go before the others
  }
  try {
    leave_to(nullptr, true);
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
  return contexts;
}

}  // namespace gctx
