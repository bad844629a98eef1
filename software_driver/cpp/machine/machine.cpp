// The making of a simulated machine.
#include "machine/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include "machine/cards.hpp"
#include "machine/threads.hpp"

namespace software_driver {
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

// The memory of the host, or the part of it that its container may use.
std::uint64_t host_memory() {
  std::uint64_t limit = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/sys/fs/cgroup/memory.max", "r"),
                                                             &std::fclose);
  std::uint64_t own = 0;
  if (file && std::fscanf(file.get(), "%" SCNu64, &own) == 1) {  // "max" where there is no limit
    limit = std::min(limit, own);
  }
  return limit;
}

}  // namespace

Machine::Machine(const Spec& wanted, unsigned number)
    : spec(wanted), epoch(number), resident_limit(spec.resident_bytes != 0 ? spec.resident_bytes : host_memory() / 2) {
  const Profile& profile = *find_profile(spec.profile);
  chip = chip_of(profile);
  faults.context_limit = spec.max_contexts;
  clock.set_patience(std::chrono::milliseconds(spec.patience_ms));
  spec.memory_bytes = spec.memory_bytes != 0 ? spec.memory_bytes : profile.memory_bytes;
  for (const int card : visible_cards(profile, spec.devices, spec.visible)) {
    Device device;
    device.chip = chip.get();
    device.ordinal = static_cast<int>(devices.size());
    device.card = card;
    device.memory = spec.memory_bytes;
    device.queues = std::make_shared<QueueSet>(static_cast<std::size_t>(spec.connections));
    device.queues->id = next_id();
    device.queues->device = device.ordinal;
    queue_sets[device.queues->id] = device.queues;
    devices.push_back(std::move(device));
    clock.add_device(*chip);
  }
}

Machine::~Machine() = default;

Storage Device::take(std::uint64_t size) {
  constexpr std::uint64_t most = std::uint64_t{1} << 42;
  constexpr std::uint64_t least = std::uint64_t{1} << 30;
  // Twice as many addresses as memory, so that none is missing where it is in pieces; fewer where the host has a limit.
  for (std::uint64_t size_of_all = std::clamp(2 * memory, least, most); !arena; size_of_all /= 2) {
    try {
      arena = std::make_shared<Arena>(size_of_all / granularity * granularity);
    } catch (const std::bad_alloc&) {
      if (size_of_all <= least) {
        throw;
      }
    }
  }
  return arena->take(size);
}

std::uint64_t Device::resident() const {
  std::uint64_t bytes = arena ? arena->file().resident() : 0;
  for (const auto& one : shareable) {
    const auto file = one.lock();
    bytes += file ? file->resident() : 0;
  }
  return bytes;
}

ThreadState& Machine::thread() {
  const std::uint64_t number = this_thread();
  const auto [found, is_new] = threads.try_emplace(number);
  ThreadState& state = found->second;
  if (is_new) {
    state.serial = number;
    state.time.caller = this_caller();
    clock.times().add(state.time);
  }
  return state;
}

void Machine::made(Object& object) {
  object.id = next_id();
  object.order = ++created;
  object.thread = this_thread();
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

}  // namespace software_driver
