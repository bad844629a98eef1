// Work on streams, and waiting for it.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// The legacy default stream waits for the blocking streams of its context, which it cannot while one is capturing: that
// capture is invalidated.
void may_queue(const Stream& stream);
// Queues work behind what is on the stream, or adds it to the graph that the stream is capturing.
void enqueue(Call& call, Stream& stream, GraphNode node);
// The work of a node, ordered behind nothing yet. `context`: where a kernel runs.
WorkPtr work_of(Call& call, const GraphNode& node, const Context* context, int device);
// `seen`: by the primary context, where work can hide from it.
WorkPtr submit(Call& call, Stream& stream, const GraphNode& node, Seen seen = Seen::by_all);
// Puts work onto a stream, which is ordered already.
void put(Call& call, Stream& stream, const WorkPtr& work);
// Carries out work until it is done.
void finish(Call& call, const std::vector<WorkPtr>& works);
// Fails the call where done work has a failure that no call has reported before.
void report_failures(Call& call, const std::vector<WorkPtr>& works);
// Does both, as calls do that wait for results.
void wait_for(Call& call, const WorkPtr& work);
void wait_for(Call& call, const std::vector<WorkPtr>& works);

// The same, which profilers see. stream: 0 where the program names none.
void synchronize(Call& call, std::uint64_t context, std::uint64_t stream, const std::vector<WorkPtr>& works);
// What was queued on a context and is not done; a primary context answers for its green contexts too, as the header of
// cuCtxSynchronize says.
std::vector<WorkPtr> outstanding_of(Machine& machine, const Context& context);
// Whether waits of the primary context miss graphs that are launched on streams of this one, and events without timing
// and blocking, until other work stands behind them. Recorded (`graph_waits`) with 13.0; assumed of older drivers.
bool hides_from_primary(const Call& call, const Context& context);
// Waits for everything that was queued on a device.
void wait_for_device(Call& call, int device);

}  // namespace software_driver
