// Which contexts a thread made current through this package. The driver keeps a stack per thread but tells only its
// top, and only to that thread; what is remembered here lets close() refuse while another thread still uses the
// context.
#include "handles/runtime.hpp"

namespace gctx {
namespace {

struct Entry {
  ContextBox* context;
  ContextHandle owner;  // for what was set; what is pushed is kept by whoever pushed it
  CUcontext before;     // what was current until then
  bool pushed() const { return owner == nullptr; }
};

// Counted first, asked afterwards: close() on another thread then either sees the count, or is seen.
void count_or_refuse(ContextBox& context) {
  context.count_current(1);
  try {
    context.demand_open();
  } catch (...) {
    context.count_current(-1);
    throw;
  }
}

// Takes back at its end what was counted when the context became current.
class CountedUse {
 public:
  explicit CountedUse(ContextBox& context) : context_(context) {}
  ~CountedUse() { context_.count_current(-1); }
  CountedUse(const CountedUse&) = delete;
  CountedUse& operator=(const CountedUse&) = delete;

 private:
  ContextBox& context_;
};

struct ThreadStack {
  std::vector<Entry> entries;

  ~ThreadStack() {
    while (!entries.empty()) {
      drop_last();
    }
  }

  void drop_last() {
    entries.back().context->count_current(-1);
    entries.pop_back();
  }
};

thread_local ThreadStack stack;

CUcontext current_raw(const Driver& driver) {
  CUcontext current = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &current);
  return current;
}

// Takes off what a block pushed, and goes back to what was current before even if someone else pushed, popped or set
// contexts in between and left it so (NCCL's initialisation does).
void restore(const Driver& driver, CUcontext pushed, CUcontext before) {
  CUcontext popped = nullptr;
  CUresult result = driver.cuCtxPopCurrent(&popped);
  if (result == CUDA_SUCCESS && popped != pushed && before != pushed && current_raw(driver) == pushed) {
    result = driver.cuCtxPopCurrent(&popped);
  }
  if ((result != CUDA_SUCCESS || popped != pushed) && current_raw(driver) != before) {
    GCTX_CALL(driver, cuCtxSetCurrent, before);
  }
}

}  // namespace

CurrentScope::CurrentScope(const Driver& driver, CUcontext context) : driver_(driver), before_(current_raw(driver)) {
  if (before_ != context) {
    GCTX_CALL(driver, cuCtxPushCurrent, context);
    pushed_ = true;
  }
}

CurrentScope::CurrentScope(const ContextBox& context) : CurrentScope(context.runtime().driver(), context.handle()) {}

CurrentScope::~CurrentScope() {
  CUcontext popped = nullptr;
  if (pushed_ && driver_.cuCtxPopCurrent(&popped) != CUDA_SUCCESS) {
    driver_.cuCtxSetCurrent(before_);
  }
}

void push_current(ContextBox& context) {
  const Driver& driver = context.runtime().driver();
  count_or_refuse(context);
  try {
    auto& entries = stack.entries;
    entries.push_back({&context, nullptr, current_raw(driver)});
    const CUresult result = driver.cuCtxPushCurrent(context.handle());
    if (result != CUDA_SUCCESS) [[unlikely]] {
      entries.pop_back();
      driver.fail(result, "cuCtxPushCurrent");
    }
  } catch (...) {
    context.count_current(-1);
    throw;
  }
}

void pop_current() {
  ThreadStack& mine = stack;
  // Entries above were set inside the block, on top of what the block pushed: they replaced it and go with it.
  while (!mine.entries.empty() && !mine.entries.back().pushed()) {
    mine.drop_last();
  }
  if (mine.entries.empty()) {
    fail_state("nothing to leave: the context was made current on another thread");
  }
  // Off the list whatever the driver answers, or the context could never be closed; but counted until it is popped, or
  // it could be closed and destroyed in between.
  const Entry entry = std::move(mine.entries.back());
  mine.entries.pop_back();
  const CountedUse counted(*entry.context);
  const Runtime& runtime = entry.context->runtime();
  if (runtime.is_usable()) {
    restore(runtime.driver(), entry.context->handle(), entry.before);
  }
}

ContextHandle set_current(Runtime& runtime, const ContextHandle& context) {
  ContextHandle previous = current_context(runtime);
  ThreadStack& mine = stack;
  mine.entries.reserve(mine.entries.size() + 1);
  count_or_refuse(*context);
  const CUresult result = runtime.driver().cuCtxSetCurrent(context->handle());
  if (result != CUDA_SUCCESS) {
    context->count_current(-1);
    runtime.driver().fail(result, "cuCtxSetCurrent");
  }
  if (!mine.entries.empty() && !mine.entries.back().pushed()) {
    mine.drop_last();
  }
  mine.entries.push_back({context.get(), context, previous ? previous->handle() : nullptr});
  return previous;
}

void forget_current_of(const Runtime& runtime) {
  ThreadStack& mine = stack;
  bool any = false;
  while (!mine.entries.empty() && &mine.entries.back().context->runtime() == &runtime) {
    mine.drop_last();
    any = true;
  }
  if (any && runtime.is_usable()) {
    GCTX_CALL(runtime.driver(), cuCtxSetCurrent, nullptr);
  }
}

void forget_replaced_current() {
  ThreadStack& mine = stack;
  while (!mine.entries.empty() && !mine.entries.back().pushed()) {
    const ContextBox& top = *mine.entries.back().context;
    if (top.runtime().is_usable() && current_raw(top.runtime().driver()) == top.handle()) {
      return;
    }
    mine.drop_last();
  }
}

}  // namespace gctx
