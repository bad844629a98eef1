// The states of a capture.
#include "machine/machine.hpp"

namespace gctx::sim {
namespace {

void release(Stream& stream) {
  stream.capture.reset();
  stream.capture_tail.clear();
}

}  // namespace

Capture::Capture(Graph& graph, Into into, Stream& origin, CUstreamCaptureMode mode, std::uint64_t thread)
    : id_(next_id()), graph_(&graph), into_(into), origin_(&origin), mode_(mode), thread_(thread) {
  graph.capture = this;
}

void Capture::invalidate() noexcept {
  if (state_ == State::active) state_ = State::invalidated;
}

void Capture::join(const std::shared_ptr<Capture>& capture, Stream& stream) {
  stream.capture = capture;
  capture->streams_.insert(&stream);
}

void Capture::leave(Machine& machine, Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  if (&stream == capture->origin_) {
    capture->end(machine, false);
    return;
  }
  capture->streams_.erase(&stream);
  release(stream);
}

Graph* Capture::end(Machine& machine, bool keep_graph) {
  state_ = State::over;
  // The streams hold it: it stays until the last has let go.
  std::shared_ptr<Capture> keep = origin_->capture;
  for (Stream* stream : std::exchange(streams_, {})) release(*stream);
  origin_ = nullptr;
  Graph* graph = std::exchange(graph_, nullptr);
  graph->capture = nullptr;
  // A graph of the program keeps what was captured into it.
  if (into_ == Into::given_graph) return keep_graph ? graph : nullptr;
  if (keep_graph) {
    graph->hidden = false;
    return graph;
  }
  drop(machine, *graph);
  return nullptr;
}

}  // namespace gctx::sim
