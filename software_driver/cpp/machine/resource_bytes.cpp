// Writes and reads the hidden part of CUdevResource.
#include "machine/resource_bytes.hpp"

#include <cstring>

namespace software_driver {
namespace {

constexpr std::uint8_t magic = 0x53;

struct Hidden {
  std::uint8_t magic;
  std::uint8_t bond;
  std::uint8_t alignment;
  std::uint8_t locality_domain;
  std::uint16_t device;
  std::uint8_t origin;
  std::uint8_t flags;
  std::uint32_t split;
  std::uint32_t source;
  SmSet sms;
  std::uint64_t checksum;
};
static_assert(sizeof(Hidden) <= sizeof(CUdevResource::_internal_padding));
static_assert(sizeof(CUdevResource) == 144);

struct HiddenWorkqueue {
  std::uint64_t queues;
  std::uint64_t checksum;
};
static_assert(sizeof(HiddenWorkqueue) <= sizeof(CUdevWorkqueueResource));

// Over the count of SMs as well: a resource whose count was edited is refused (recorded).
std::uint64_t checksum(const Machine& machine, const Hidden& hidden, unsigned count) {
  return hash_bytes(&hidden, offsetof(Hidden, checksum), (std::uint64_t{machine.epoch} << 32) | count);
}

}  // namespace

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ (seed * 0x9e3779b97f4a7c15);
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < size; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

void write_sm(const Machine& machine, const SmMeaning& meaning, const SmFields& fields, CUdevResource& out) {
  Hidden hidden{};
  hidden.magic = magic;
  hidden.bond = static_cast<std::uint8_t>(meaning.traits.bond);
  hidden.alignment = static_cast<std::uint8_t>(meaning.traits.alignment);
  hidden.locality_domain = static_cast<std::uint8_t>(meaning.locality_domain);
  hidden.device = static_cast<std::uint16_t>(meaning.device);
  hidden.origin = static_cast<std::uint8_t>(meaning.origin);
  hidden.flags = static_cast<std::uint8_t>(meaning.flags);
  hidden.split = meaning.split;
  hidden.source = meaning.source;
  hidden.sms = meaning.sms;
  hidden.checksum = checksum(machine, hidden, fields.count);
  out.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memset(out._internal_padding, 0, sizeof out._internal_padding);
  std::memcpy(out._internal_padding, &hidden, sizeof hidden);
  out.sm.smCount = fields.count;
  out.sm.minSmPartitionSize = fields.min_partition;
  out.sm.smCoscheduledAlignment = fields.alignment;
  if (machine.version() >= 13010) {
    out.sm.flags = fields.flags;
    out.nextResource = nullptr;
  }
  if (machine.version() >= 13040) {
    out.sm.localityDomainId = fields.locality_domain;
  }
}

void write_invalid(CUdevResource& out) {
  std::memset(out._internal_padding, 0, sizeof out._internal_padding);
  std::memset(&out._oversize, 0, sizeof out._oversize);
  out.type = CU_DEV_RESOURCE_TYPE_INVALID;
}

std::optional<SmMeaning> read_sm(const Machine& machine, const CUdevResource& resource) {
  Hidden hidden{};
  std::memcpy(static_cast<void*>(&hidden), resource._internal_padding, sizeof hidden);
  if (hidden.magic != magic || hidden.checksum != checksum(machine, hidden, resource.sm.smCount)) {
    return std::nullopt;
  }
  SmMeaning meaning;
  meaning.device = hidden.device;
  meaning.origin = static_cast<Origin>(hidden.origin);
  meaning.flags = hidden.flags;
  meaning.locality_domain = hidden.locality_domain;
  meaning.traits = {hidden.alignment, static_cast<Bond>(hidden.bond)};
  meaning.split = hidden.split;
  meaning.source = hidden.source;
  meaning.sms = hidden.sms;
  return meaning;
}

void write_workqueue_config(int device, const Workqueue& workqueue, CUdevResource& out) {
  std::memset(&out, 0, sizeof out);
  out.type = CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
  out.wqConfig.device = device;
  out.wqConfig.wqConcurrencyLimit = workqueue.limit;
  out.wqConfig.sharingScope = workqueue.scope;
}

void write_workqueue(const Machine& machine, const QueueSet& queues, CUdevResource& out) {
  std::memset(&out, 0, sizeof out);
  out.type = CU_DEV_RESOURCE_TYPE_WORKQUEUE;
  const HiddenWorkqueue hidden{queues.id, hash_bytes(&queues.id, sizeof queues.id, machine.epoch)};
  std::memcpy(out.wq.reserved, &hidden, sizeof hidden);
}

std::shared_ptr<QueueSet> read_workqueue(const Machine& machine, const CUdevResource& resource) {
  HiddenWorkqueue hidden{};
  std::memcpy(&hidden, resource.wq.reserved, sizeof hidden);
  if (hidden.checksum != hash_bytes(&hidden.queues, sizeof hidden.queues, machine.epoch)) {
    return nullptr;
  }
  const auto found = machine.queue_sets.find(hidden.queues);
  return found == machine.queue_sets.end() ? nullptr : found->second.lock();
}

}  // namespace software_driver
