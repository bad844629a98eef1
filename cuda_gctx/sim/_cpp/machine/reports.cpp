// Lists live objects, misuse, and the use of device memory.
#include "machine/reports.hpp"

#include <algorithm>
#include <cstdio>

#include "machine/costs.hpp"
#include "machine/json.hpp"

namespace gctx::sim {
namespace {

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

struct Entry {
  const char* kind;
  std::uint64_t handle;
  std::uint64_t id;
  std::uint64_t order;
  std::uint64_t thread;
  std::uint64_t amount;
  int device;
};

}  // namespace

std::string ledger_json(const Machine& machine) {
  std::vector<Entry> entries;
  const auto add = [&](const char* kind, const Object& object, int device, std::uint64_t amount) {
    if (!object.hidden) {
      entries.push_back({kind, object.handle, object.id, object.order, object.thread, amount, device});
    }
  };
  for (const Device& device : machine.devices) {
    if (device.retains > 0 && device.primary != nullptr) {
      entries.push_back({"primary context retain", device.primary->handle, device.primary->id, device.primary->order,
                         device.primary->thread, device.retains, device.ordinal});
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
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.order < b.order; });

  JsonWriter json;
  json.begin_object();
  json.key("simulated").value(true);
  json.key("live").begin_array();
  for (const Entry& entry : entries) {
    json.begin_object();
    json.key("kind").value(entry.kind);
    json.key("handle").value(hex(entry.handle));
    json.key("id").value(entry.id);
    json.key("order").value(entry.order);
    json.key("thread").value(entry.thread);
    json.key("device").value(entry.device);
    json.key("amount").value(entry.amount);
    json.end_object();
  }
  json.end_array();
  json.key("misuse").begin_array();
  for (const MisuseNote& note : machine.ledger.notes) {
    json.begin_object();
    json.key("kind").value(name(note.kind));
    json.key("function").value(note.function);
    json.key("handle").value(hex(note.handle));
    json.key("thread").value(note.thread);
    json.key("order").value(note.order);
    json.key("detail").value(note.detail);
    json.end_object();
  }
  json.end_array();
  json.key("absent").begin_object();
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (machine.absent_calls[i] != 0) {
      json.key(absent_info(i).symbol).value(machine.absent_calls[i]);
    }
  }
  json.end_object();
  const auto add_counts = [&](const char* key, const Unknown::Counts& counts) {
    json.key(key).begin_object();
    for (const auto& [kernel, count] : counts) {
      json.key(kernel).value(count);
    }
    json.end_object();
  };
  add_counts("unknown_results", machine.unknown.results());
  add_counts("unknown_times", machine.unknown.times());
  std::uint64_t lost = 0;
  for (const Device& device : machine.devices) {
    lost += device.lost;
  }
  json.key("misuse_not_listed").value(machine.ledger.dropped);
  json.key("green_contexts_made").value(machine.ledger.contexts_made);
  json.key("green_contexts_destroyed").value(machine.ledger.contexts_destroyed);
  json.key("lost_bytes").value(lost);
  json.end_object();
  return json.text();
}

std::string memory_json(const Machine& machine) {
  JsonWriter json;
  json.begin_object();
  json.key("simulated").value(true);
  json.key("devices").begin_array();
  for (const Device& device : machine.devices) {
    json.begin_object();
    json.key("device").value(device.ordinal);
    json.key("total").value(device.memory);
    json.key("free").value(device.memory - used_memory(device));
    json.key("allocated").value(device.allocated);
    json.key("contexts").value(device.green_contexts * live_context_bytes);
    json.key("lost").value(device.lost);
    json.key("resident").value(device.resident());
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.text();
}

}  // namespace gctx::sim
