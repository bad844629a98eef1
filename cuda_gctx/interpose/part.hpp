// The part of each device that the process has: a green context in the place of the primary context.
#pragma once

#include <cuda.h>

#include <atomic>
#include <mutex>

namespace gctx::interpose {

struct Part {
  std::mutex mutex;
  // The context of the part. Null before the first use of the device, and after a reset.
  std::atomic<CUcontext> context{nullptr};
  std::atomic<CUcontext> primary{nullptr};
  std::atomic<CUgreenCtx> green{nullptr};
  std::atomic<unsigned> sm_count{0};  // 0: not known yet
  unsigned device_sm_count = 0;
  CUdevResource resource{};
  CUdevice device = 0;
};

// Returns whether the environment names a part. If not, the library only forwards.
bool has_part();

// The name of the part, if there is one.
const char* part_name();

// The part whose context this is, or null.
Part* part_of(CUcontext context);

// The part whose context is current on this thread, or null.
Part* current_part();

// The context in which calls for a given context run: that of a part for a primary context, else the context itself.
CUcontext inside(CUcontext context);

// The primary context of a part, for calls that cover all contexts of the device. Other contexts are themselves.
CUcontext outside(CUcontext context);

// The part of a device with its context, which this call creates if necessary. Null, and `result`, if that fails.
Part* open_part(CUdevice device, CUresult& result);

// The SMs that the part of a device has or will have. Creates no context. 0 if the layout does not fit.
unsigned part_sm_count(CUdevice device);

// The part of a device if it is open, or null.
Part* opened_part(CUdevice device);

// Ends the part of a device for a reset. The next use of the device opens it again.
void close_part(CUdevice device);

// Notes a context that the program created itself: in a part, or with all SMs of the device (null).
void add_foreign(CUcontext context, const Part* around);
// Notes its end.
void drop_foreign(CUcontext context);
bool is_foreign(CUcontext context);
// The part in which the program created a context, or null.
const Part* part_around(CUcontext context);

// The contexts in which the program has worked: those of parts, and those that it created itself.
unsigned long context_count();

}  // namespace gctx::interpose
