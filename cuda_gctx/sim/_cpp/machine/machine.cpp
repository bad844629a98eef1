// The making of a simulated machine.
#include "machine/machine.hpp"

#include <algorithm>
#include <stdexcept>

#include "machine/threads.hpp"

namespace gctx::sim {
namespace {

// A chip never changes and takes longest to make: one of each kind is kept.
std::shared_ptr<const Chip> chip_of(const Profile& profile) {
  static std::map<std::string, std::shared_ptr<const Chip>> chips;
  auto& chip = chips[profile.key];
  if (!chip) {
    chip = std::make_shared<const Chip>(profile);
  }
  return chip;
}

}  // namespace

Machine::Machine(const Spec& wanted, unsigned number)
    : spec(wanted),
      epoch(number),
      clock(host_threads),
      contexts(Kind::context, number),
      streams(Kind::stream, number),
      events(Kind::event, number),
      descriptors(Kind::descriptor, number),
      modules(Kind::module, number),
      functions(Kind::function, number),
      libraries(Kind::library, number),
      kernels(Kind::kernel, number),
      graphs(Kind::graph, number),
      graph_nodes(Kind::graph_node, number),
      graph_execs(Kind::graph_exec, number),
      conditions(Kind::condition, number),
      user_objects(Kind::user_object, number),
      pools(Kind::pool, number),
      arrays(Kind::array, number),
      mipmapped_arrays(Kind::mipmapped_array, number),
      textures(Kind::texture, number),
      surfaces(Kind::surface, number) {
  const Profile* profile = find_profile(spec.profile);
  if (profile == nullptr) {
    throw std::invalid_argument("unknown profile");
  }
  chip = chip_of(*profile);
  faults.context_limit = spec.max_contexts;
  for (int ordinal = 0; ordinal < spec.devices; ++ordinal) {
    Device device;
    device.chip = chip.get();
    device.ordinal = ordinal;
    device.memory = spec.memory_bytes != 0 ? spec.memory_bytes : profile->memory_bytes;
    device.queues = std::make_shared<QueueSet>(static_cast<std::size_t>(spec.connections));
    device.queues->id = next_id();
    device.queues->device = ordinal;
    queue_sets[device.queues->id] = device.queues;
    devices.push_back(std::move(device));
    clock.add_device(*chip);
  }
}

Machine::~Machine() = default;

ThreadState& Machine::thread() {
  const ThreadName name = this_thread();
  if (threads.size() <= name.index) {
    threads.resize(name.index + 1);
  }
  auto& state = threads[name.index];
  if (!state) {
    state = std::make_unique<ThreadState>();
    state->serial = name.serial;
  }
  return *state;
}

void Machine::made(Object& object) {
  object.id = next_id();
  object.order = ++created;
  object.thread = this_thread().serial;
  if (tracer.schedule != nullptr && tracer.thread == object.thread) {
    tracer.schedule(tracer.record, reinterpret_cast<void*>(object.id));
  }
}

std::unique_ptr<Stream> Machine::make_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>();
  made(*stream);
  stream->context = &context;
  stream->device = context.device;
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);  // recorded: clamped without an error
  stream->queues = context.queues;
  stream->connection = context.queues->deal();
  return stream;
}

}  // namespace gctx::sim
