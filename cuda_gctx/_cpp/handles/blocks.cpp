#include "handles/blocks.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace gctx {
namespace {

// Makes a driver call that must not fail in the middle once more: a single failure then changes nothing.
template <typename Call>
CUresult twice(Call&& call) noexcept {
  const CUresult result = call();
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT ? result : call();
}

// A context of other code can be destroyed, and its address used again.
bool is_gone(const Driver& driver, CUcontext context, unsigned long long known_id) noexcept {
  unsigned long long id = known_id;
  const CUresult result = twice([&] { return driver.cuCtxGetId(context, &id); });
  return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED || id != known_id;
}

// Returns the id of the context that is current as a block begins. That of the primary context below, which most blocks
// find, is known without a call.
std::uint64_t id_of(const Driver& driver, CUcontext current, const DriverContextHandle& primary) {
  if (current == nullptr) {
    return 0;
  }
  if (primary && primary->handle() == current) {
    return primary->id();
  }
  unsigned long long id = 0;
  GCTX_CALL(driver, cuCtxGetId, current, &id);
  return id;
}

// Found without the function call that other variables of a thread take in a shared library.
[[gnu::tls_model("initial-exec")]] thread_local ThreadBlocks* known_here = nullptr;

}  // namespace

ThreadBlocks::ThreadBlocks() : system_id_(::syscall(SYS_gettid)) {}

ThreadBlocks& ThreadBlocks::here() {
  if (known_here == nullptr) [[unlikely]] {
    thread_local ThreadBlocks blocks;
    known_here = &blocks;
  }
  return *known_here;
}

// Two tasks of one thread would each work in the other's context.
void ThreadBlocks::demand_task(const void* task) const {
  if (!open_.empty() && open_.back()->task_ != task) [[unlikely]] {
    fail_state(open_.back()->name() +
               " is open on this thread and belongs to another task (another contextvars.Context), such as the code "
               "around asyncio.run(): tasks of one thread would work in each other's contexts. Leave the block first, "
               "or give the work of tasks explicit streams");
  }
}

// Returns a block that can be put on the list without an allocation. Most threads enter one block after another.
BlockHandle ThreadBlocks::unused_block() {
  open_.reserve(open_.size() + 1);
  if (spare_ && spare_.use_count() == 1) [[likely]] {
    return std::move(spare_);
  }
  return std::make_shared<Block>(system_id_);
}

BlockHandle ThreadBlocks::enter(ContextHandle context, const void* task) {
  context->demand_live();
  context->demand_there();
  demand_task(task);
  const Driver& driver = context->runtime().driver();
  CUcontext before = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &before);
  const std::uint64_t before_id = id_of(driver, before, context->in_driver().primary);
  BlockHandle block = unused_block();
  if (!context->lease().make_current()) [[unlikely]] {
    context->fail_closed();
  }
  const CUresult result = driver.cuCtxPushCurrent(context->handle());
  if (result != CUDA_SUCCESS) [[unlikely]] {
    context->lease().make_not_current();
    driver.fail(result, "cuCtxPushCurrent");
  }
  context->note_thread(system_id_);
  block->context_ = std::move(context);
  block->before_ = before;
  block->before_id_ = before_id;
  block->task_ = task;
  block->state_.store(Block::State::open, std::memory_order_relaxed);
  open_.push_back(block);
  return block;
}

void ThreadBlocks::leave(const BlockHandle& block, const void* task) {
  if (is_forked()) {
    return;  // the driver of the parent is gone, and so is what it made current
  }
  constexpr const char* until =
      ": it ends when it is the innermost block of its thread, and keeps its context until then";
  Block::State expected = Block::State::open;
  if (!block->state_.compare_exchange_strong(expected, Block::State::left)) {
    fail_state("this block is not open: it has been left already, or its thread has ended");
  }
  if (block->thread_ != system_id_) {
    fail_state("this block was entered on another thread (native id " + std::to_string(block->thread_) +
               "), and cannot be left on this one" + until);
  }
  if (block->context_->runtime().is_set_aside()) {
    fail_state(block->name() + " belongs to a driver that is inactive" + until);
  }
  // Inner blocks that were left on another thread end with this one.
  const auto innermost = std::find_if(open_.rbegin(), open_.rend(), [&](const BlockHandle& other) {
    return other == block || other->state_.load() == Block::State::open;
  });
  if (*innermost != block) {
    fail_state(block->name() + " was left before " + (*innermost)->name() + ", which was entered inside it" + until);
  }
  const bool is_same_task = block->task_ == task;
  const std::string name = is_same_task ? std::string() : block->name();
  end_left();
  if (!is_same_task) {
    fail_state(name +
               " was entered in another task (another contextvars.Context) than it was left in, and its work may have "
               "been that of others meanwhile: a block must not contain an await or a switch");
  }
}

// Ends the innermost blocks that were left. The error of the last one is thrown after all have ended.
void ThreadBlocks::end_left() {
  std::exception_ptr failure;
  while (!open_.empty() && open_.back()->state_.load() == Block::State::left &&
         !open_.back()->context_->runtime().is_set_aside()) {
    try {
      end_last();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void ThreadBlocks::end_last() {
  spare_ = std::move(open_.back());
  open_.pop_back();
  Block* const block = spare_.get();
  block->state_.store(Block::State::over, std::memory_order_relaxed);
  const ContextHandle context = std::move(block->context_);
  const ContextBox& box = *context;
  if (!box.runtime().is_usable()) {
    box.lease().make_not_current();
    return;
  }
  const Driver& driver = box.runtime().driver();
  CUcontext now = nullptr;
  CUresult result = CUDA_SUCCESS;
  do {
    now = nullptr;
    result = twice([&] { return driver.cuCtxPopCurrent(&now); });
  } while (result == CUDA_SUCCESS && now != box.handle());
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    result = CUDA_SUCCESS;  // the stack is empty: other code has taken the context off
  }
  bool is_lost = false;
  if (result == CUDA_SUCCESS) {
    now = nullptr;
    result = twice([&] { return driver.cuCtxGetCurrent(&now); });
  }
  if (result == CUDA_SUCCESS && now != block->before_) [[unlikely]] {
    is_lost = block->before_ != nullptr && is_gone(driver, block->before_, block->before_id_);
    const CUcontext wanted = is_lost ? nullptr : block->before_;
    while (result == CUDA_SUCCESS && wanted == nullptr && now != nullptr) {
      result = twice([&] { return driver.cuCtxPopCurrent(&now); });
      result = result == CUDA_SUCCESS ? twice([&] { return driver.cuCtxGetCurrent(&now); }) : result;
    }
    if (result == CUDA_SUCCESS && wanted != nullptr) {
      result = twice([&] { return driver.cuCtxSetCurrent(wanted); });
    }
  }
  box.lease().make_not_current();
  if (is_lost) {
    fail_state("the block of " + box.label() +
               " has been left, but the context that was current before it is gone, and nothing is current now: make "
               "another context current by Device.set_current()");
  }
  driver.check(result, "the end of a block (cuCtxPopCurrent, cuCtxGetCurrent or cuCtxSetCurrent)");
}

// ---- set_current

ContextHandle& ThreadBlocks::set_of(const Runtime& runtime) {
  for (ContextHandle& context : set_) {
    if (!context || &context->runtime() == &runtime) {
      return context;
    }
  }
  return set_.emplace_back();
}

ContextHandle ThreadBlocks::set(const ContextHandle& context) {
  context->demand_there();
  if (!open_.empty()) {
    fail_state(open_.back()->name() +
               " is open on this thread, and its end would undo set_current(): use 'with context.current()' inside a "
               "block, or leave the block first");
  }
  Runtime& runtime = context->runtime();
  ContextHandle previous = current_context(runtime);
  ContextHandle& known = set_of(runtime);
  if (!context->lease().make_current()) {
    context->fail_closed();
  }
  const CUresult result = runtime.driver().cuCtxSetCurrent(context->handle());
  if (result != CUDA_SUCCESS) {
    context->lease().make_not_current();
    runtime.driver().fail(result, "cuCtxSetCurrent");
  }
  context->note_thread(system_id_);
  if (const ContextHandle before = std::exchange(known, context)) {
    before->lease().make_not_current();
  }
  return previous;
}

void ThreadBlocks::forget_replaced(const Runtime& runtime) noexcept {
  CUcontext now = nullptr;
  if (open_.empty() && !set_.empty() && runtime.driver().cuCtxGetCurrent(&now) == CUDA_SUCCESS) {
    ContextHandle& known = set_of(runtime);
    if (known && known->handle() != now) {
      const ContextHandle context = std::move(known);
      context->lease().make_not_current();
    }
  }
}

// ---- ends

void ThreadBlocks::forget(const Runtime& runtime) {
  if (is_forked()) {
    return;
  }
  // Blocks of one driver lie together: a driver that is set aside is entered by no later block.
  while (!open_.empty() && &open_.back()->context_->runtime() == &runtime) {
    try {
      end_last();
    } catch (const std::exception& error) {
      note_failure(error.what());
    }
  }
  for (ContextHandle& known : set_) {
    if (known && &known->runtime() == &runtime) {
      const ContextHandle context = std::move(known);
      CUcontext now = nullptr;
      const Driver& driver = runtime.driver();
      if (runtime.is_usable() && driver.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == context->handle()) {
        driver.note(driver.cuCtxPopCurrent(&now), "cuCtxPopCurrent");
      }
      context->lease().make_not_current();
    }
  }
  std::erase(set_, nullptr);
}

void ThreadBlocks::end() noexcept {
  known_here = known_here == this ? nullptr : known_here;
  while (!open_.empty() && !is_forked()) {
    forget(open_.back()->context_->runtime());
  }
  std::erase(set_, nullptr);
  while (!set_.empty() && !is_forked()) {
    forget(set_.back()->runtime());
  }
}

}  // namespace gctx
