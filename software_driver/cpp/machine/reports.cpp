// Lists live objects, misuse, and the use of device memory.
#include "machine/reports.hpp"

#include <algorithm>
#include <cstdio>

#include "machine/costs.hpp"
#include "machine/json.hpp"

namespace software_driver {
namespace {

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

struct LiveEntry {
  const char* kind;
  const Object* object;
  int device;
  std::uint64_t amount;
};

}  // namespace

std::string ledger_json(const Machine& machine) {
  std::vector<LiveEntry> entries;
  const auto add = [&](const char* kind, const Object& object, int device, std::uint64_t amount) {
    if (!object.hidden) {
      entries.push_back({kind, &object, device, amount});
    }
  };
  for (const Device& device : machine.devices) {
    if (device.retains > 0 && device.primary != nullptr) {
      add("primary context retain", *device.primary, device.ordinal, device.retains);
    }
  }
  machine.contexts.each([&](const Context& context) {
    if (context.kind == ContextKind::created) {
      add("context", context, context.device, 1);
    }
    if (context.is_green()) {
      add("green context", context, context.device, 1);
    }
  });
  machine.streams.each([&](const Stream& stream) { add("stream", stream, stream.device, 1); });
  machine.events.each([&](const Event& event) {
    if (!event.is_gone) {
      add("event", event, event.device, 1);
    }
  });
  machine.modules.each([&](const Module& module) { add("module", module, module.device, 1); });
  machine.libraries.each([&](const Library& library) { add("library", library, -1, 1); });
  machine.graphs.each([&](const Graph& graph) { add("graph", graph, -1, 1); });
  machine.graph_execs.each([&](const GraphExec& exec) { add("executable graph", exec, -1, 1); });
  machine.pools.each([&](const Pool& pool) { add("memory pool", pool, pool.device, 1); });
  machine.memory_handles.each([&](const MemoryHandle& handle) {
    if (handle.references > 0) {
      add("memory handle", handle, handle.properties.location.id, handle.size);
    }
  });
  for (const auto& [address, reserved] : machine.reservations) {
    add("reserved address", *reserved, -1, reserved->range.size());
  }
  for (const auto& [address, allocation] : machine.allocations) {
    if (allocation.freeing) {
      continue;
    }
    add(allocation.mapped != nullptr              ? "mapped memory"
        : allocation.opened > 0                   ? "opened memory"
        : allocation.type == CU_MEMORYTYPE_DEVICE ? "device memory"
        : allocation.registered                   ? "registered host memory"
                                                  : "host memory",
        allocation, allocation.device, allocation.size);
  }
  std::ranges::sort(entries, {}, [](const LiveEntry& entry) { return entry.object->order; });

  JsonWriter json;
  json.begin_object().members("simulated", true);
  json.key("live").array(entries, [&](const LiveEntry& entry) {
    const Object& object = *entry.object;
    json.object("kind", entry.kind, "handle", hex(object.handle), "id", object.id, "order", object.order, "thread",
                object.thread, "device", entry.device, "amount", entry.amount);
  });
  json.key("misuse").array(machine.ledger.notes, [&](const MisuseNote& note) {
    json.object("kind", misuse_names[static_cast<std::size_t>(note.kind)], "function", note.function, "handle",
                hex(note.handle), "thread", note.thread, "order", note.order, "detail", note.detail);
  });
  json.key("absent").begin_object();
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (machine.absent_calls[i] != 0) {
      json.members(absent_info(i).symbol, machine.absent_calls[i]);
    }
  }
  json.end_object();
  std::uint64_t lost = 0;
  for (const Device& device : machine.devices) {
    lost += device.lost;
  }
  json.members("misuse_not_listed", machine.ledger.dropped, "green_contexts_made", machine.ledger.contexts_made,
               "green_contexts_destroyed", machine.ledger.contexts_destroyed, "lost_bytes", lost);
  return json.end_object().text();
}

std::string memory_json(const Machine& machine) {
  JsonWriter json;
  json.begin_object().members("simulated", true);
  json.key("devices").array(machine.devices, [&](const Device& device) {
    json.object("device", device.ordinal, "total", device.memory, "free", device.memory - used_memory(device),
                "allocated", device.allocated, "contexts", device.green_contexts * live_context_bytes, "lost",
                device.lost, "resident", device.resident());
  });
  return json.end_object().text();
}

}  // namespace software_driver
