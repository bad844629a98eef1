#include "handles/stack.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>

namespace gctx {
namespace {

std::string address_text(const void* address) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%p", address);
  return text.data();
}

}  // namespace

template <typename Call>
bool ContextStack::twice(const char* name, Call&& call) noexcept {
  const CUresult answer = call();
  note(answer, name);
  return answer == CUDA_SUCCESS || call() == CUDA_SUCCESS;
}

void ContextStack::note(CUresult failure, const char* call) noexcept {
  if (failure_ == CUDA_SUCCESS) {
    failure_ = failure;
    failed_call_ = call;
  }
}

CUcontext ContextStack::current() noexcept {
  CUcontext now = nullptr;
  twice("cuCtxGetCurrent", [&] { return driver_.cuCtxGetCurrent(&now); });
  return now;
}

bool ContextStack::pop(CUcontext& popped) noexcept {
  return twice("cuCtxPopCurrent",
               [&] {
                 const CUresult answer = driver_.cuCtxPopCurrent(&popped);
                 const bool is_empty = answer == CUDA_ERROR_INVALID_CONTEXT;
                 popped = is_empty ? nullptr : popped;
                 return is_empty ? CUDA_SUCCESS : answer;
               }) &&
         popped != nullptr;
}

bool ContextStack::push(CUcontext context) noexcept {
  return twice("cuCtxPushCurrent", [&] { return driver_.cuCtxPushCurrent(context); });
}

void ContextStack::set(CUcontext context) noexcept {
  twice("cuCtxSetCurrent", [&] { return driver_.cuCtxSetCurrent(context); });
}

void ContextStack::take_apart() noexcept {
  for (CUcontext popped = nullptr; depth_ < all_.size() && pop(popped);) {
    all_[depth_++] = popped;
  }
}

void ContextStack::put_together(std::size_t first) noexcept {
  for (std::size_t i = std::exchange(depth_, 0); i > first; --i) {
    if (all_[i - 1] != nullptr) {
      push(all_[i - 1]);
    }
  }
}

void ContextStack::demand_current(CUcontext context) noexcept {
  if (current() != context) {
    set(context);
  }
}

bool ContextStack::has(CUcontext wanted) noexcept {
  take_apart();
  const auto end = all_.begin() + static_cast<std::ptrdiff_t>(depth_);
  const bool is_found = std::find(all_.begin(), end, wanted) != end;
  put_together(0);
  return is_found;
}

// It was popped, or replaced, alone or with what was before it: which is current again, without what lies on it.
void ContextStack::restore_without_ours(CUcontext before) noexcept {
  const auto end = all_.begin() + static_cast<std::ptrdiff_t>(depth_);
  const auto found = std::find(all_.begin(), end, before);
  const bool is_there = found != end;
  put_together(before == nullptr ? depth_ : is_there ? static_cast<std::size_t>(found - all_.begin()) : 0);
  if (before != nullptr && !is_there) {
    push(before);
  }
  demand_current(before);
}

void ContextStack::check(CUcontext before) {
  if (failure_ == CUDA_SUCCESS) {
    return;
  }
  Error error = driver_.error(failure_, failed_call_);
  CUcontext now = nullptr;
  if (driver_.cuCtxGetCurrent(&now) != CUDA_SUCCESS) {
    error.message += "; what is current on this thread is not known";
  } else if (now == before) {
    error.message += "; what was current before the block is current again";
  } else {
    error.message += "; current on this thread is now " +
                     (now != nullptr ? "the context at " + address_text(now) : std::string("nothing")) +
                     ", and not what was current before the block";
  }
  throw error;
}

}  // namespace gctx
