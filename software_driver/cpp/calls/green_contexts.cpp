// Green contexts: their making, and what is left of them when they are destroyed.
#include <algorithm>

#include "calls/contexts.hpp"
#include "calls/primary_contexts.hpp"
#include "calls/queueing.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

// The queues of a new context: another context's, its own, or the device's. How many balanced contexts a device has
// queues for is not known, so each gets its own.
std::shared_ptr<QueueSet> queues_for(Machine& machine, Device& device, const Holding& part) {
  if (part.queues) {
    return part.queues;
  }
  if (part.workqueue.scope != CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED) {
    return device.queues;
  }
  const auto limit = static_cast<std::size_t>(machine.spec.connections);
  auto own = std::make_shared<QueueSet>(std::clamp<std::size_t>(part.workqueue.limit, 1, limit));
  own->id = next_id();
  own->device = device.ordinal;
  machine.queue_sets[own->id] = own;
  return own;
}

// A context may lie on the stack of a thread below the one that is current: it would be current again after a pop.
void note_where_it_is_current(Call& c, const Context& context) {
  for (const auto& [number, thread] : c.machine.threads) {
    const auto& stack = thread.stack;
    const auto is_it = [&](const CurrentContext& entry) { return entry.id == context.id; };
    if (std::none_of(stack.begin(), stack.end(), is_it)) {
      continue;
    }
    const bool is_here = &thread == &c.thread;
    const char* const how = is_it(stack.back()) ? "is current" : "lies below the current one on the stack";
    c.note(is_here ? Misuse::wrong_order : Misuse::wrong_thread, context.handle,
           std::string("the green context is destroyed while it ") + how +
               (is_here               ? ""
                : is_it(stack.back()) ? " to another thread"
                                      : " of another thread"));
  }
}

// Recorded: the primary context waits for what it waited for before, and for nothing else (hides_from_primary). Whether
// the work is over by now is not asked here: nobody has waited for it.
void note_work(Call& c, const Context& context) {
  if (!std::ranges::all_of(outstanding_of(c.machine, context),
                           [](const WorkPtr& work) { return work->done || work->is_mark(); })) {
    c.note(Misuse::wrong_order, context.handle,
           "the green context is destroyed while it has work to do, and the primary context may miss graphs");
  }
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuGreenCtxCreate, Call& c, CUgreenCtx* out, CUdevResourceDesc handle, Device& device, unsigned) {
  Machine& machine = c.machine;
  // Recorded: no descriptor at all is accepted. That all SMs are meant is assumed.
  Holding part = handle == nullptr
                     ? whole_device(c, device)
                     : static_cast<Holding&>(need(machine.descriptors.find(handle), CUDA_ERROR_INVALID_VALUE));
  refuse_if(part.device != device.ordinal, CUDA_ERROR_INVALID_DEVICE);
  const unsigned limit = machine.faults.context_limit;
  refuse_if((limit != 0 && machine.green_contexts >= limit) || !has_room(device, live_context_bytes),
            CUDA_ERROR_OUT_OF_MEMORY);
  const Context& primary = activate_primary(c, device);
  part.queues = queues_for(machine, device, part);
  if (part.workqueue.limit == 0) {
    part.workqueue.limit = static_cast<unsigned>(machine.spec.connections);
  }
  Context& context = machine.contexts.add(make_context(c, ContextKind::green, part, device.primary_flags));
  context.root_id = primary.id;
  show_context(context);
  ++device.green_contexts;
  ++machine.green_contexts;
  ++machine.ledger.contexts_made;
  give(out, context);
}

SOFTWARE_DRIVER_CALL(cuGreenCtxDestroy, Call& c, Context& context) {
  note_work(c, context);
  note_where_it_is_current(c, context);
  Device& device = c.machine.device(context.device);
  detach_children(c, context);
  const std::uint64_t queues = context.queues.use_count() == 1 ? context.queues->id : 0;
  c.machine.contexts.remove(context);
  c.machine.queue_sets.erase(queues);
  --c.machine.green_contexts;
  --device.green_contexts;
  device.lost += lost_context_bytes;
  ++c.machine.ledger.contexts_destroyed;
  return deactivate_primary_if_unused(c, device);
}

SOFTWARE_DRIVER_GET(cuCtxFromGreenCtx, as_handle<CUcontext>, const Context)

SOFTWARE_DRIVER_CALL(cuGreenCtxGetId, Call& c, CUgreenCtx handle, unsigned long long* id) {
  const Context& context = handle == nullptr ? current_context(c) : find_green(c, handle);
  refuse_if(!context.is_green(), CUDA_ERROR_INVALID_CONTEXT);
  *id = context.id;
}
