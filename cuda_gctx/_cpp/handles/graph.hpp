// Graphs that were captured on a stream, or by others, and their executable form. Both keep the context in which their
// kernels run: a graph that is launched after its context is gone ends the process (seen on an H200 with driver 13.0).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "handles/child.hpp"
#include "handles/types.hpp"

namespace gctx {

class GraphBox;
class GraphExecBox;
using GraphHandle = std::shared_ptr<GraphBox>;
using GraphExecHandle = std::shared_ptr<GraphExecBox>;

// Launches one behind the other on the device, on whichever streams: those of the executable graphs of one capture,
// which work on the same memory.
class LaunchOrder {
 public:
  void launch(const GraphExecBox& exec, const StreamHandle& stream);

 private:
  std::mutex mutex_;
  EventHandle end_;                // of the last launch; made at the first one
  std::weak_ptr<StreamBox> last_;  // where that was
  bool is_recorded_ = false;
};

class GraphBox : public ContextChild<CUgraph> {
 public:
  static constexpr const char* word = "graph";  // in messages

  // `order`: of the capture that it is a copy of.
  explicit GraphBox(ContextUse use, bool owned = true, std::shared_ptr<LaunchOrder> order = nullptr)
      : ContextChild(std::move(use)),
        owned_(owned),
        order_(order != nullptr ? std::move(order) : std::make_shared<LaunchOrder>()) {}
  ~GraphBox() {
    if (owned_) {
      destroy(handle(), &DriverTable::cuGraphDestroy, "cuGraphDestroy");
    }
  }

  const std::shared_ptr<LaunchOrder>& order() const noexcept { return order_; }
  // The driver does not lock graphs.
  std::mutex& mutex() noexcept { return mutex_; }
  std::size_t node_count();

 private:
  const bool owned_;
  std::shared_ptr<LaunchOrder> order_;
  std::mutex mutex_;
};

class GraphExecBox : public ContextChild<CUgraphExec> {
 public:
  static constexpr const char* word = "executable graph";  // in messages

  // `order`: null if its launches wait for no others.
  explicit GraphExecBox(ContextUse use, std::shared_ptr<LaunchOrder> order = nullptr) noexcept
      : ContextChild(std::move(use)), order_(std::move(order)) {}
  ~GraphExecBox() { destroy(handle(), &DriverTable::cuGraphExecDestroy, "cuGraphExecDestroy"); }

  // It was made of a copy of a graph, which it keeps, and what the graph works on with it.
  void keep(GraphHandle original, GraphHandle copy) noexcept {
    original_ = std::move(original);
    copy_ = std::move(copy);
  }
  const std::shared_ptr<LaunchOrder>& order() const noexcept { return order_; }
  const GraphHandle& copy() const noexcept { return copy_; }  // null unless it was moved

 private:
  std::shared_ptr<LaunchOrder> order_;
  GraphHandle original_;
  GraphHandle copy_;
};

void begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode);
// Throws if the capture was invalidated; it has ended then as well.
GraphHandle end_capture(const StreamHandle& stream);
// A graph of others, which is not destroyed here. Its context is that of its first kernel, or else of the device that
// is current.
GraphHandle adopt_graph(Runtime& runtime, CUgraph handle);
// ordered: its launches wait for those of other executable graphs of the capture.
GraphExecHandle instantiate(const GraphHandle& graph, bool ordered = true);
void instantiate_into(GraphExecBox& exec, const GraphBox& graph);
// On a stream of the context in which its kernels run; others are refused.
void upload(const GraphExecHandle& exec, const StreamHandle& stream);
void launch(const GraphExecHandle& exec, const StreamHandle& stream);

}  // namespace gctx
