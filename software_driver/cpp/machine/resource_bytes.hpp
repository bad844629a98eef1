// CUdevResource as the simulated driver writes it: which SMs it means is stored in its hidden bytes, with a checksum,
// so that the same call gives the same bytes and an edited resource is refused.
#pragma once

#include <optional>

#include "machine/machine.hpp"

namespace software_driver {

// Splits take what a query returned, and neither groups nor remainders (recorded).
enum class Origin : std::uint8_t { device = 1, context, group, remainder };

struct SmMeaning {
  int device = 0;
  Origin origin = Origin::device;
  unsigned flags = 0;  // of a structured split
  unsigned locality_domain = 0;
  Traits traits;
  std::uint32_t split = 0;  // the call that made it, as a number derived from its input
  // Which query it goes back to: 0 for the device's, else a number derived from what that context holds. Pieces that go
  // back to different ones make no descriptor (recorded).
  std::uint32_t source = 0;
  SmSet sms;
};

struct SmFields {
  unsigned count = 0;
  unsigned min_partition = 0;
  unsigned alignment = 0;
  unsigned flags = 0;
  unsigned locality_domain = 0;
};

// Writes the fields that the simulated version has, and no others: what is newer keeps what the caller left there.
void write_sm(const Machine& machine, const SmMeaning& meaning, const SmFields& fields, CUdevResource& out);
void write_invalid(CUdevResource& out);
// Null if the hidden bytes are not what this machine wrote.
std::optional<SmMeaning> read_sm(const Machine& machine, const CUdevResource& resource);

void write_workqueue_config(int device, const Workqueue& workqueue, CUdevResource& out);
void write_workqueue(const Machine& machine, const QueueSet& queues, CUdevResource& out);
std::shared_ptr<QueueSet> read_workqueue(const Machine& machine, const CUdevResource& resource);

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed);

}  // namespace software_driver
