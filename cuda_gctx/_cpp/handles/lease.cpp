#include "handles/lease.hpp"

namespace gctx {

Claim::Claim(Runtime& runtime, int device, const std::vector<SmResourcePtr>& sms, const std::vector<std::string>& names,
             bool exclusive, std::uint64_t group)
    : runtime_(runtime), device_(device) {
  entries_.reserve(sms.size());
  try {
    for (std::size_t i = 0; i < sms.size(); ++i) {
      std::string report;
      entries_.push_back(runtime.enlist(device, sms[i], names[i], exclusive, group, report));
      overlap_report_ += (overlap_report_.empty() || report.empty() ? "" : "; ") + report;
    }
  } catch (...) {
    release();
    throw;
  }
}

Claim::~Claim() { release(); }

void Claim::release() noexcept {
  for (const std::uint64_t entry : entries_) {
    runtime_.delist(device_, entry);
  }
}

std::string capturing_stream(Runtime& runtime, int device) {
  for (const StreamHandle& stream : runtime.streams().all()) {
    // The stream of somebody else may be gone by now, and asking about it would be a use after free. Those that
    // contexts keep come below, whether there is a box for them or not.
    if (stream->is_owned() && stream->context()->device() == device && stream_is_capturing(*stream)) {
      return "a stream of " + stream->context()->label();
    }
  }
  for (const ContextHandle& context : runtime.contexts().all()) {
    if (context->device() == device && context->keeps_capture()) {
      return "a stream of " + context->label();
    }
  }
  const auto legacy = std::make_shared<StreamBox>(ContextUse(runtime.primary(device)), false);
  legacy->take(CU_STREAM_LEGACY);
  return stream_is_capturing(*legacy) ? "a blocking stream of the primary context" : "";
}

DeviceMemory device_memory(Runtime& runtime, int device) {
  const CurrentScope scope(*runtime.primary(device));
  DeviceMemory memory;
  GCTX_CALL(runtime.driver(), cuMemGetInfo, &memory.free, &memory.total);
  return memory;
}

ContextCounts context_counts(Runtime& runtime, int device) { return runtime.context_counts(device); }

}  // namespace gctx
