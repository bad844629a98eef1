// Captures of streams into graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "machine/objects.hpp"

namespace software_driver {

// A capture from its begin to its end. Events that were recorded in it may outlive it: they find it over, and what it
// pointed to is then not there any more.
class Capture {
 public:
  enum class State { active, invalidated, over };

  // A capture makes its own graph, or adds to one of the program.
  enum class Into { own_graph, given_graph };

  Capture(Graph& graph, Into into, Stream& origin, CUstreamCaptureMode mode, std::uint64_t thread);

  const std::uint64_t id = next_id();
  const Into into;
  const CUstreamCaptureMode mode;
  const std::uint64_t thread;
  State state() const noexcept { return state_; }
  bool is_active() const noexcept { return state_ == State::active; }
  // Until it is over.
  Graph& graph() const noexcept { return *graph_; }
  Stream& origin() const noexcept { return *origin_; }

  void invalidate() noexcept;
  // A stream takes part in one capture at a time, from here until it leaves or the capture is over.
  static void join(const std::shared_ptr<Capture>& capture, Stream& stream);
  // Another than the one that it began on.
  void leave(Stream& stream);
  // It is over: all streams go back to normal, and the graph is the caller's.
  Graph& end();

 private:
  State state_ = State::active;
  Graph* graph_;
  Stream* origin_;
  std::set<Stream*> streams_;
};

}  // namespace software_driver
