// The life of a simulated machine, and of the one that calls go to at present.
#include "machine/machine.hpp"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace gctx::sim {
namespace {

// A chip never changes and takes longest to make: one of each kind is kept.
std::shared_ptr<const Chip> chip_of(const Profile& profile) {
  static std::map<std::string, std::shared_ptr<const Chip>> chips;
  auto& chip = chips[profile.key];
  if (!chip) chip = std::make_shared<const Chip>(profile);
  return chip;
}

struct ThreadIndex {
  ThreadIndex();
  ~ThreadIndex();
  ThreadName name{};
};

std::atomic<std::uint64_t> thread_count{0};

// Indices of ended threads are used again, so that a program of many short threads does not grow the machine.
struct FreeIndices {
  std::mutex mutex;
  std::vector<std::size_t> free;
  std::size_t next = 0;
};

FreeIndices& free_indices() {
  static auto& indices = *std::make_unique<FreeIndices>().release();
  return indices;
}

ThreadIndex::ThreadIndex() {
  name.serial = ++thread_count;
  FreeIndices& indices = free_indices();
  const std::scoped_lock lock(indices.mutex);
  if (indices.free.empty()) {
    name.index = indices.next++;
  } else {
    name.index = indices.free.back();
    indices.free.pop_back();
  }
}

ThreadIndex::~ThreadIndex() {
  Present& here = present();
  if (here.forked || here.over) return;
  {
    const std::scoped_lock lock(here.mutex);
    if (here.machine) here.machine->forget(name);
    for (const auto& machine : here.aside) {
      if (machine) machine->forget(name);
    }
  }
  FreeIndices& indices = free_indices();
  const std::scoped_lock lock(indices.mutex);
  indices.free.push_back(name.index);
}

std::atomic<std::uint64_t> id_count{0};
unsigned epoch_count = 0;

void before_fork() { present().mutex.lock(); }
void after_fork_in_parent() { present().mutex.unlock(); }
void after_fork_in_child() {
  Present& here = present();
  here.forked = here.machine != nullptr && here.machine->initialized;
  if (here.machine) here.machine->host_threads.abandon();
  for (const auto& machine : here.aside) {
    if (machine) machine->host_threads.abandon();
  }
  here.mutex.unlock();
}

// Calls after the end of the process's main part answer CUDA_ERROR_DEINITIALIZED, as the real driver's do.
struct EndOfProcess {
  // Without the lock of the calls: a thread that is still in one may never return it.
  ~EndOfProcess() { std::atomic_ref(present().over).store(true, std::memory_order_relaxed); }
};

}  // namespace

std::uint64_t next_id() { return ++id_count; }

ThreadName this_thread() {
  thread_local const ThreadIndex index;
  return index.name;
}

Present& present() {
  // Never destroyed: other libraries' destructors may still call at exit.
  static Present& here = []() -> Present& {
    Present& made = *std::make_unique<Present>().release();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  static const EndOfProcess end;
  return here;
}

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
  if (profile == nullptr) throw std::invalid_argument("unknown profile");
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
  if (threads.size() <= name.index) threads.resize(name.index + 1);
  auto& state = threads[name.index];
  if (!state) {
    state = std::make_unique<ThreadState>();
    state->serial = name.serial;
  }
  return *state;
}

void Machine::forget(const ThreadName& name) {
  if (name.index < threads.size()) threads[name.index].reset();
  contexts.each([&](Context& context) {
    const auto found = context.thread_streams.find(name.serial);
    if (found == context.thread_streams.end()) return;
    // What is still to be done goes on; until then others of the context wait for it.
    if (found->second->last && !found->second->last->done) return;
    Capture::leave(*this, *found->second);
    context.thread_streams.erase(found);
  });
}

void Machine::made(Object& object) {
  object.id = next_id();
  object.order = ++created;
  object.thread = this_thread().serial;
  if (tracer.schedule != nullptr && tracer.thread == object.thread) {
    tracer.schedule(tracer.record, reinterpret_cast<void*>(object.id));
  }
}

void configure(Present& here, std::string_view text) {
  const Spec spec = Spec::parse(text);
  here.machine = std::make_shared<Machine>(spec, ++epoch_count);
  here.machine->host_threads.serve(here.machine);
  here.forked = false;
}

}  // namespace gctx::sim
