// Graphs that were captured on a stream, or by other code, and their executable form. An executable graph is a use of
// the leases of all contexts in which its kernels run: a launch after such a context is gone ends the process (seen on
// an H200 with driver 13.0).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handles/child.hpp"
#include "handles/reusable_event.hpp"
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
  void launch(GraphExecBox& exec, const StreamHandle& stream);

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
  explicit GraphBox(ContextHandle context, bool owned = true, std::shared_ptr<LaunchOrder> order = nullptr)
      : ContextChild(std::move(context)),
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

  // `order`: null if its launches wait for no others. `graph`: what it is made of, which it keeps.
  GraphExecBox(ContextUse use, GraphHandle graph, std::shared_ptr<LaunchOrder> order) noexcept
      : ContextChild(std::move(use)), graph_(std::move(graph)), order_(std::move(order)) {}
  ~GraphExecBox() { destroy(handle(), &DriverTable::cuGraphExecDestroy, "cuGraphExecDestroy"); }

  void keep_original(GraphHandle original) noexcept { original_ = std::move(original); }  // of a moved graph
  void add_use(ContextUse use) { others_.push_back(std::move(use)); }
  // All contexts in which its kernels run, its own first.
  std::vector<ContextHandle> contexts() const;

  const std::shared_ptr<LaunchOrder>& order() const noexcept { return order_; }
  const GraphHandle& graph() const noexcept { return graph_; }
  // Launches it, and puts the launch into the order of the work of its contexts: see launch().
  void launch_on(const StreamHandle& stream);

 private:
  std::vector<ContextUse> others_;
  GraphHandle graph_;
  GraphHandle original_;
  std::shared_ptr<LaunchOrder> order_;
  ReusableEvent<EventHandle> joined_;
};

// Returns the driver's number of the capture.
std::uint64_t begin_capture(const StreamHandle& stream, CUstreamCaptureMode mode);
// Throws if the capture was invalidated; it has ended then as well.
GraphHandle end_capture(const StreamHandle& stream);
// Ends a capture that nobody can end any more, and destroys its graph. Returns false, and changes nothing, if the
// stream does not take part in this capture now.
bool abandon_capture(const StreamHandle& stream, std::uint64_t id);
// Adopts a graph of other code, which is not destroyed here. Its context is that of its first kernel, or else of the
// device that is current.
GraphHandle adopt_graph(Runtime& runtime, CUgraph handle);
// ordered: its launches wait for those of other executable graphs of the capture.
GraphExecHandle instantiate(const GraphHandle& graph, bool ordered = true);
void instantiate_into(GraphExecBox& exec, const GraphBox& graph);
// On any stream of the device. The kernels run in their own contexts. A launch on a stream of another context waits for
// what these contexts wait for, and counts as their work.
void upload(const GraphExecHandle& exec, const StreamHandle& stream);
void launch(const GraphExecHandle& exec, const StreamHandle& stream);

}  // namespace gctx
