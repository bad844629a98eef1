// Graphs that were captured on a stream, and their executable form. Both keep the context of that stream: a graph that
// is launched after its context is gone ends the process (seen on an H200 with driver 13.0).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "handles/context.hpp"
#include "handles/types.hpp"

namespace gctx {

class GraphBox {
 public:
  static constexpr const char* word = "graph";  // in messages

  explicit GraphBox(ContextUse use) noexcept : use_(std::move(use)) {}
  ~GraphBox();
  GraphBox(const GraphBox&) = delete;
  GraphBox& operator=(const GraphBox&) = delete;

  void take(CUgraph handle) noexcept { handle_ = handle; }
  const ContextUse& use() const noexcept { return use_; }
  const ContextHandle& context() const noexcept { return use_.context(); }
  CUgraph handle() const noexcept { return handle_; }
  std::size_t node_count() const;

 private:
  ContextUse use_;
  CUgraph handle_ = nullptr;
};

class GraphExecBox {
 public:
  static constexpr const char* word = "executable graph";  // in messages

  explicit GraphExecBox(ContextUse use) noexcept : use_(std::move(use)) {}
  ~GraphExecBox();
  GraphExecBox(const GraphExecBox&) = delete;
  GraphExecBox& operator=(const GraphExecBox&) = delete;

  void take(CUgraphExec handle) noexcept { handle_ = handle; }
  const ContextHandle& context() const noexcept { return use_.context(); }
  CUgraphExec handle() const noexcept { return handle_; }

 private:
  ContextUse use_;
  CUgraphExec handle_ = nullptr;
};

using GraphHandle = std::shared_ptr<GraphBox>;
using GraphExecHandle = std::shared_ptr<GraphExecBox>;

void begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode);
// Throws if the capture was invalidated; it has ended then as well.
GraphHandle end_capture(const StreamHandle& stream);
GraphExecHandle instantiate(const GraphHandle& graph);
// On a stream of the context in which the graph was captured; others are refused.
void upload(const GraphExecHandle& exec, const StreamHandle& stream);
void launch(const GraphExecHandle& exec, const StreamHandle& stream);

}  // namespace gctx
