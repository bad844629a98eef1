// Which contexts and devices have a stream that captures a graph: what would invalidate the capture is refused.
#pragma once

#include <cstddef>
#include <shared_mutex>
#include <string>
#include <vector>

#include "handles/context.hpp"

namespace gctx {

// Keeps captures that begin through this package apart from calls that would disturb them, on all threads: a call asks
// for captures and acts with one pass, and a capture begins without any. Captures that other code begins pass by.
class CaptureGate {
 public:
  static constexpr Runtime::Place place = Runtime::Place::capture_gate;
  explicit CaptureGate(const Runtime& runtime) : devices_(static_cast<std::size_t>(runtime.device_count())) {}

  class Pass {
   public:
    Pass(Runtime& runtime, int device) : lock_(runtime.part<CaptureGate>().of(device)) {}
    explicit Pass(const ContextBox& context) : Pass(context.runtime(), context.device()) {}

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };
  class Begin {
   public:
    explicit Begin(const ContextBox& context) : lock_(context.runtime().part<CaptureGate>().of(context.device())) {}

   private:
    std::unique_lock<std::shared_mutex> lock_;
  };

 private:
  std::shared_mutex& of(int device) noexcept { return devices_[static_cast<std::size_t>(device)]; }
  std::vector<std::shared_mutex> devices_;
};

bool has_capture(const ContextBox& context);  // of its streams; false if the context is gone
bool any_has_capture(const std::vector<ContextHandle>& contexts);
// Inside a pass. `what` the caller is about to do to the whole context.
void demand_no_capture(const ContextBox& context, const char* what);

// What is capturing on a device, in words; empty if nothing is as far as can be known: the streams made by this package
// and those that wait for the legacy default stream. The driver does not report the non-blocking streams of others.
std::string capturing_stream(Runtime& runtime, int device);

// Contexts cannot be made meanwhile. Inside a pass.
void demand_no_capture_on(Runtime& runtime, int device);

}  // namespace gctx
