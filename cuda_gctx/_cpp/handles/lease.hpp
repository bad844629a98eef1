// Contexts that are kept while nobody uses them: who uses their SMs is told apart from who made them, and what must be
// known before new ones are made.
#pragma once

#include <string>
#include <vector>

#include "handles/runtime.hpp"

namespace gctx {

// A place in the list of live contexts for as long as it exists, for contexts that were made without one.
class Claim {
 public:
  // `names` go with `sms`. Claims of one group (0: of none) may share SMs. Throws if it is exclusive and others have
  // them.
  Claim(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms, const std::vector<std::string>& names,
        bool exclusive, std::uint64_t group);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // Live contexts that share SMs with these, or may: sentences, empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

 private:
  void release() noexcept;

  Runtime& runtime_;
  int device_;
  std::vector<std::uint64_t> entries_;
  std::string overlap_report_;
};

// What is capturing on a device, in words; empty if nothing is as far as can be known: the streams made by this package
// and those that wait for the legacy default stream. The driver does not tell of the non-blocking streams of others.
std::string capturing_stream(Runtime& runtime, int device);

struct DeviceMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};
DeviceMemory device_memory(Runtime& runtime, int device);
ContextCounts context_counts(Runtime& runtime, int device);

}  // namespace gctx
