#include "verification.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver/probe_ptx.hpp"
#include "part.hpp"
#include "per_process.hpp"
#include "real_driver.hpp"
#include "reports.hpp"

namespace gctx::interpose {
namespace {

constexpr unsigned blocks_of_an_sm = 4;
constexpr unsigned threads = 32;
constexpr unsigned long long spin_ns = 20'000;

struct PartProbe {
  CUdeviceptr memory = 0;
  std::set<std::uint64_t> sms;  // SM ids of all probes in the part
  unsigned long streams = 0;
};

struct Probes {
  std::mutex mutex;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  std::unordered_map<const Part*, PartProbe> parts;
};
const PerProcess<Probes> all_probes;
Probes& probes() { return *all_probes; }

std::atomic<unsigned long> generation{0};  // counts the ends of streams

// Calls that wait would end a capture of another stream.
class Relaxed {
 public:
  Relaxed() { real.cuThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;
  ~Relaxed() { real.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// The context in which work of a stream runs, or null.
CUcontext context_of(CUstream stream) {
  CUcontext context = nullptr;
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    return real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
  }
  CUgreenCtx green = nullptr;
  if (real.cuStreamGetGreenCtx(stream, &green) == CUDA_SUCCESS && green != nullptr) {
    return real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS ? context : nullptr;
  }
  return real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

// Runs the probe in a stream of a part, or of a context inside of it, and adds the SM ids that it saw.
CUresult run_probe(const Part& part, CUstream stream, Probes& all, PartProbe& probe) {
  unsigned blocks = blocks_of_an_sm * part.device_sm_count;
  std::vector<ProbeBlock> seen(blocks);
  const std::size_t bytes = blocks * sizeof(ProbeBlock);
  CUresult result = CUDA_SUCCESS;
  if (all.kernel == nullptr) {
    result = real.cuLibraryLoadData(&all.library, probe_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (result == CUDA_SUCCESS) {
      result = real.cuLibraryGetKernel(&all.kernel, all.library, "cuda_gctx_probe");
    }
  }
  if (result == CUDA_SUCCESS && probe.memory == 0) {
    result = real.cuMemAlloc_v2(&probe.memory, bytes);
  }
  if (result == CUDA_SUCCESS) {
    result = real.cuMemsetD8Async(probe.memory, 0, bytes, stream);
  }
  if (result == CUDA_SUCCESS) {
    auto spin = spin_ns;
    void* arguments[] = {&probe.memory, &blocks, &spin};
    result = real.cuLaunchKernel(reinterpret_cast<CUfunction>(all.kernel), blocks, 1, 1, threads, 1, 1, 0, stream,
                                 arguments, nullptr);
  }
  if (result == CUDA_SUCCESS) {
    result = real.cuMemcpyDtoHAsync_v2(seen.data(), probe.memory, bytes, stream);
  }
  if (result == CUDA_SUCCESS) {
    result = real.cuStreamSynchronize(stream);
  }
  for (const ProbeBlock& block : seen) {
    if (result == CUDA_SUCCESS && block.end_ns != 0) {
      probe.sms.insert(block.sm);
    }
  }
  return result;
}

}  // namespace

bool verifies() {
  static const bool is_set = [] {
    const char* const value = std::getenv("CUDA_GCTX_VERIFY");
    return has_part() && value != nullptr && *value == '1';
  }();
  return is_set;
}

void verify_stream(CUstream stream) {
  thread_local std::set<std::pair<CUstream, CUcontext>> verified;  // without a context: of any but the NULL stream
  thread_local unsigned long known_generation = 0;
  if (const unsigned long now = generation.load(std::memory_order_acquire); known_generation != now) {
    verified.clear();
    known_generation = now;
  }
  const bool is_null = stream == nullptr || stream == CU_STREAM_LEGACY;
  if (!is_null && verified.count({stream, nullptr}) != 0) {
    return;
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!is_null &&
      (real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)) {
    return;
  }
  const CUcontext context = context_of(stream);
  if (context == nullptr || !verified.emplace(stream, is_null ? context : nullptr).second) {
    return;
  }
  const Part* part = part_of(context);
  if (part == nullptr && (part = part_around(context)) == nullptr) {
    // Other contexts of the program are reported where it creates them.
    if (!is_foreign(context)) {
      report("\"event\": \"escape\", \"what\": \"work in a context outside of the partition\"");
    }
    return;
  }
  Probes& all = probes();
  const std::lock_guard lock(all.mutex);
  PartProbe& probe = all.parts[part];
  const Relaxed relaxed;
  CUcontext popped = nullptr;
  if (real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
    return;
  }
  const CUresult result = run_probe(*part, stream, all, probe);
  real.cuCtxPopCurrent_v2(&popped);
  if (result != CUDA_SUCCESS) {
    report("\"event\": \"escape\", \"what\": \"a stream could not be verified: the driver answered %d\"",
           static_cast<int>(result));
    return;
  }
  ++probe.streams;
  const std::size_t count = probe.sms.size();
  report("\"event\": \"verified\", \"device\": %d, \"streams\": %lu, \"sms\": %zu", part->device, probe.streams, count);
  if (count > part->sm_count.load()) {
    report("\"event\": \"escape\", \"what\": \"work ran on %zu SMs, and the partition has %u\"", count,
           part->sm_count.load());
  }
}

void forget_verified_streams() { generation.fetch_add(1, std::memory_order_release); }

void forget_probe(const Part& part) {
  forget_verified_streams();
  const std::lock_guard lock(probes().mutex);
  probes().parts.erase(&part);
}

}  // namespace gctx::interpose
