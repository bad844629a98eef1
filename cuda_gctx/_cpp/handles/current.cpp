// Which contexts a thread made current through this package. The driver keeps a stack per thread but tells only its top, and
// only to that thread; what is remembered here lets close() refuse while another thread still uses the context.
#include "handles/runtime.hpp"

namespace gctx {
namespace {

struct Entry {
  ContextUse use;
  CUcontext before;  // what was current until then
  bool pushed;       // else set
};

struct ThreadStack {
  std::vector<Entry> entries;

  ~ThreadStack() {
    while (!entries.empty()) {
      drop_last();
    }
  }

  void add(ContextUse use, CUcontext before, bool pushed) {
    use.context()->count_current(1);
    entries.push_back({std::move(use), before, pushed});
  }

  void drop_last() {
    entries.back().use.context()->count_current(-1);
    entries.pop_back();
  }
};

thread_local ThreadStack stack;

CUcontext current_raw(const Driver& driver) {
  CUcontext current = nullptr;
  GCTX_CALL(driver, cuCtxGetCurrent, &current);
  return current;
}

}  // namespace

CurrentScope::CurrentScope(const Driver& driver, CUcontext context) : driver_(driver) {
  if (current_raw(driver) != context) {
    GCTX_CALL(driver, cuCtxPushCurrent, context);
    pushed_ = true;
  }
}

CurrentScope::CurrentScope(const ContextBox& context) : CurrentScope(context.runtime().driver(), context.handle()) {}

CurrentScope::~CurrentScope() {
  if (pushed_) {
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
}

void push_current(const ContextHandle& context) {
  const Driver& driver = context->runtime().driver();
  ContextUse use(context);
  stack.entries.reserve(stack.entries.size() + 1);
  const CUcontext before = current_raw(driver);
  GCTX_CALL(driver, cuCtxPushCurrent, context->handle());
  stack.add(std::move(use), before, true);
}

void pop_current() {
  // Entries above were set inside the block, on top of what the block pushed: they replaced it and go with it.
  while (!stack.entries.empty() && !stack.entries.back().pushed) {
    stack.drop_last();
  }
  if (stack.entries.empty()) {
    fail_state("nothing to leave: the context was made current on another thread");
  }
  const CUcontext mine = stack.entries.back().use.context()->handle();
  const CUcontext before = stack.entries.back().before;
  const Driver& driver = stack.entries.back().use.context()->runtime().driver();
  const bool usable = stack.entries.back().use.context()->runtime().is_usable();
  if (usable) {
    CUcontext popped = nullptr;
    GCTX_CALL(driver, cuCtxPopCurrent, &popped);
    // Someone else pushed or set a context and left it there (NCCL's initialisation does): go back all the same.
    if (popped != mine && current_raw(driver) != before) {
      GCTX_CALL(driver, cuCtxSetCurrent, before);
    }
  }
  stack.drop_last();
}

ContextHandle set_current(Runtime& runtime, const ContextHandle& context) {
  const Driver& driver = runtime.driver();
  ContextHandle previous = current_context(runtime);
  ContextUse use(context);
  stack.entries.reserve(stack.entries.size() + 1);
  GCTX_CALL(driver, cuCtxSetCurrent, context->handle());
  if (!stack.entries.empty() && !stack.entries.back().pushed) {
    stack.drop_last();
  }
  stack.add(std::move(use), previous ? previous->handle() : nullptr, false);
  return previous;
}

void forget_replaced_current() {
  while (!stack.entries.empty() && !stack.entries.back().pushed) {
    const ContextBox& top = *stack.entries.back().use.context();
    if (top.runtime().is_usable() && current_raw(top.runtime().driver()) == top.handle()) {
      return;
    }
    stack.drop_last();
  }
}

}  // namespace gctx
