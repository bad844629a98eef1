#include "handles/stack.hpp"

#include <algorithm>
#include <new>
#include <string>

namespace gctx {

template <typename Call>
bool ContextStack::twice(const char* name, Call&& call) noexcept {
  const CUresult answer = call();
  note(answer, name);
  return answer == CUDA_SUCCESS || call() == CUDA_SUCCESS;
}

void ContextStack::note(CUresult failure, const char* call) noexcept {
  if (failed_.result == CUDA_SUCCESS) {
    failed_.result = failure;
    failed_.call = call;
  }
}

bool ContextStack::current(CUcontext& now) noexcept {
  return twice("cuCtxGetCurrent", [&] { return driver_.cuCtxGetCurrent(&now); });
}

bool ContextStack::push(CUcontext context) noexcept {
  return twice("cuCtxPushCurrent", [&] { return driver_.cuCtxPushCurrent(context); });
}

void ContextStack::set(CUcontext context) noexcept {
  twice("cuCtxSetCurrent", [&] { return driver_.cuCtxSetCurrent(context); });
}

bool ContextStack::is_there(CUcontext context) noexcept {
  unsigned long long id = 0;
  return twice("cuCtxGetId", [&] { return driver_.cuCtxGetId(context, &id); });
}

// Of an empty stack nothing is popped: tools that watch a program report that as an error of it.
bool ContextStack::take_apart() noexcept {
  bool is_whole = false;
  places_.clear();
  try {
    for (CUcontext now = nullptr; !is_whole && current(now);) {
      is_whole = now == nullptr;
      if (!is_whole) {
        places_.push_back(now);  // what needs memory comes before the pop
        if (!twice("cuCtxPopCurrent", [&] { return driver_.cuCtxPopCurrent(&now); })) {
          places_.pop_back();
          break;
        }
      }
    }
  } catch (const std::bad_alloc&) {
    is_out_of_memory_ = true;
  }
  std::reverse(places_.begin(), places_.end());
  return is_whole;
}

void ContextStack::put_together() noexcept {
  for (CUcontext context : places_) {
    push(context);
  }
}

bool ContextStack::look() noexcept {
  const bool is_whole = take_apart();
  put_together();
  return is_whole;
}

const FailedCall& ContextStack::failed() const {
  if (is_out_of_memory_) {
    throw std::bad_alloc();
  }
  return failed_;
}

void ContextStack::check(CUcontext wanted) {
  if (failed().result == CUDA_SUCCESS) {
    return;
  }
  Error error = driver_.error(failed_.result, failed_.call);
  CUcontext now = nullptr;
  if (driver_.cuCtxGetCurrent(&now) != CUDA_SUCCESS) {
    error.message += "; what is current on this thread is not known";
  } else if (now == wanted) {
    error.message += "; what was current before the block is current again";
  } else {
    error.message += "; current on this thread is now " +
                     (now != nullptr ? "the context at " + address_text(now) : std::string("nothing")) +
                     ", and not what was current before the block";
  }
  throw error;
}

}  // namespace gctx
