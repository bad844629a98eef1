#include "handles/context_streams.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "handles/capture.hpp"

namespace gctx {

void StreamEvents::destroy(const Driver& driver) noexcept {
  for (ReusableEvent<CUevent>* reusable : {&waited_for, &shown}) {
    if (const CUevent event = ReusableEvent<CUevent>::Use(*reusable).release(); event != nullptr) {
      driver.note(driver.cuEventDestroy(event), "cuEventDestroy");
    }
  }
}

void ContextStreams::add(StreamLink& stream) noexcept {
  const std::lock_guard lock(mutex_);
  stream.next_ = first_;
  if (first_ != nullptr) {
    first_->previous_ = &stream;
  }
  first_ = &stream;
}

void ContextStreams::remove(StreamLink& stream) noexcept {
  const std::lock_guard lock(mutex_);
  (stream.previous_ != nullptr ? stream.previous_->next_ : first_) = stream.next_;
  if (stream.next_ != nullptr) {
    stream.next_->previous_ = stream.previous_;
  }
}

bool ContextStreams::has_capture(const Driver& driver) {
  const auto captures = [&](CUstream stream) { return is_capturing(driver, stream); };
  // Under the lock, because a stream takes itself off the list before it is destroyed.
  const std::lock_guard lock(mutex_);
  for (const StreamLink* stream = first_; stream != nullptr; stream = stream->next_) {
    if (stream->may_capture() && captures(stream->handle())) {
      return true;
    }
  }
  return std::any_of(own_.begin(), own_.end(), [&](const OwnStream& one) { return captures(one.handle); });
}

CUstream ContextStreams::any() noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(own_.begin(), own_.end(), [](const OwnStream& one) { return one.lent_as == 0; });
  return found != own_.end() ? found->handle : nullptr;
}

std::shared_ptr<StreamEvents> ContextStreams::events_of(CUstream stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(own_.begin(), own_.end(), [&](const OwnStream& one) { return one.handle == stream; });
  return found != own_.end() ? found->events : nullptr;
}

void ContextStreams::keep_spare(CUstream stream, StreamKind kind, bool is_free) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    own_.push_back({stream, kind, std::nullopt, is_free, nullptr});
  } catch (const std::bad_alloc&) {  // leaks: a framework may use it
  }
}

CUstream ContextStreams::take_spare(const Driver& driver, StreamKind kind) {
  int asked = 0;
  const std::lock_guard lock(mutex_);
  if (own_.empty()) {
    return nullptr;
  }
  const RelaxedThread relaxed(driver);
  auto next = own_.begin();
  for (std::size_t left = own_.size(); left != 0 && asked != most_asked; --left) {
    const auto spare = next++;
    if (spare->lent_as || !spare->is_free || spare->kind != kind) {
      continue;
    }
    if (!is_capturing(driver, spare->handle) && driver.cuStreamQuery(spare->handle) == CUDA_SUCCESS) {
      const CUstream handle = spare->handle;
      own_.erase(spare);
      return handle;
    }
    ++asked;
    own_.splice(own_.end(), own_, spare);  // behind those that have not been asked
  }
  return nullptr;
}

void ContextStreams::free_spares() noexcept {
  const std::lock_guard lock(mutex_);
  for (OwnStream& stream : own_) {
    stream.is_free = true;
  }
}

bool ContextStreams::has_own() noexcept {
  const std::lock_guard lock(mutex_);
  return !own_.empty() || ReusableEvent<CUevent>::Use(waited_for).is_made();
}

void ContextStreams::destroy_own(const Driver& driver) noexcept {
  std::list<OwnStream> own;
  {
    const std::lock_guard lock(mutex_);
    own.swap(own_);
  }
  if (const CUevent event = ReusableEvent<CUevent>::Use(waited_for).release(); event != nullptr) {
    driver.note(driver.cuEventDestroy(event), "cuEventDestroy");
  }
  for (const OwnStream& stream : own) {
    if (stream.events) {
      stream.events->destroy(driver);
    }
    driver.note(driver.cuStreamDestroy(stream.handle), "cuStreamDestroy");
  }
}

}  // namespace gctx
