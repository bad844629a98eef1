// The states of a capture.
#include "machine/capture.hpp"

namespace software_driver {
namespace {

void release(Stream& stream) {
  stream.capture.reset();
  stream.capture_tail.clear();
}

}  // namespace

Capture::Capture(Graph& graph, Into where, Stream& origin, CUstreamCaptureMode of_mode, std::uint64_t of_thread)
    : into(where), mode(of_mode), thread(of_thread), graph_(&graph), origin_(&origin) {
  graph.capture = this;
}

void Capture::invalidate() noexcept {
  if (state_ == State::active) {
    state_ = State::invalidated;
  }
}

void Capture::join(const std::shared_ptr<Capture>& capture, Stream& stream) {
  stream.capture = capture;
  capture->streams_.insert(&stream);
}

void Capture::leave(Stream& stream) {
  streams_.erase(&stream);
  release(stream);
}

Graph& Capture::end() {
  state_ = State::over;
  // The streams hold it: it stays until the last has let go.
  const std::shared_ptr<Capture> keep = origin_->capture;
  for (Stream* stream : std::exchange(streams_, {})) {
    release(*stream);
  }
  origin_ = nullptr;
  Graph& graph = *std::exchange(graph_, nullptr);
  graph.capture = nullptr;
  return graph;
}

}  // namespace software_driver
