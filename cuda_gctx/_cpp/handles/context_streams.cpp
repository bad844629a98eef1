#include "handles/context_streams.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "handles/capture.hpp"

namespace gctx {

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
  if (!may_capture()) [[likely]] {
    return false;
  }
  const auto captures = [&](CUstream stream) { return is_capturing(driver, stream); };
  // Under the lock, because a stream takes itself off the list before it is destroyed.
  const std::lock_guard lock(mutex_);
  for (const StreamLink* stream = first_; stream != nullptr; stream = stream->next_) {
    if (stream->may_capture() && captures(stream->handle())) {
      return true;
    }
  }
  return std::any_of(
             lent_.begin(), lent_.end(),
             [&](const auto& level) { return std::any_of(level.second.begin(), level.second.end(), captures); }) ||
         std::any_of(spare_.begin(), spare_.end(), [&](const SpareStream& spare) { return captures(spare.handle); });
}

void ContextStreams::fail_too_many(std::size_t number) {
  fail_value("a context lends " + std::to_string(most_lent) + " streams of each priority, and not number " +
             std::to_string(number + 1) + ": create more with create_stream()");
}

CUstream ContextStreams::any() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [priority, streams] : lent_) {
    if (!streams.empty()) {
      return streams.front();
    }
  }
  return nullptr;
}

void ContextStreams::keep_spare(CUstream stream, StreamKind kind) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    spare_.push_back({stream, kind});
  } catch (const std::bad_alloc&) {  // lost rather than destroyed under a framework
  }
}

CUstream ContextStreams::take_spare(const Driver& driver, StreamKind kind) {
  int asked = 0;
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) {
    return nullptr;
  }
  const RelaxedThread relaxed(driver);
  auto next = spare_.begin();
  for (std::size_t left = spare_.size(); left != 0 && asked != most_asked; --left) {
    const auto spare = next++;
    if (spare->kind != kind) {
      continue;
    }
    if (!is_capturing(driver, spare->handle) && driver.cuStreamQuery(spare->handle) == CUDA_SUCCESS) {
      const CUstream handle = spare->handle;
      spare_.erase(spare);
      return handle;
    }
    ++asked;
    spare_.splice(spare_.end(), spare_, spare);  // behind those that have not been asked
  }
  return nullptr;
}

bool ContextStreams::has_own() noexcept {
  const std::lock_guard lock(mutex_);
  return !lent_.empty() || !spare_.empty() || KeptEvent<CUevent>::Use(waited_for).is_made();
}

void ContextStreams::destroy_own(const Driver& driver) noexcept {
  std::map<int, std::vector<CUstream>> lent;
  std::list<SpareStream> spare;
  {
    const std::lock_guard lock(mutex_);
    lent.swap(lent_);
    spare.swap(spare_);
  }
  if (const CUevent event = KeptEvent<CUevent>::Use(waited_for).release(); event != nullptr) {
    driver.note(driver.cuEventDestroy(event), "cuEventDestroy");
  }
  for (const SpareStream& stream : spare) {
    driver.note(driver.cuStreamDestroy(stream.handle), "cuStreamDestroy");
  }
  for (const auto& [priority, streams] : lent) {
    for (const CUstream stream : streams) {
      driver.note(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
  }
}

}  // namespace gctx
