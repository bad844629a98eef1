#include "handles/probe.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "driver/probe_ptx.hpp"
#include "handles/capture.hpp"
#include "handles/device.hpp"
#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

constexpr std::size_t least_memory = 64 * 1024;
constexpr std::size_t most_given_up = 16;  // runs whose kernels have not finished

// One warp, so that it fits wherever other work leaves a little room on an SM.
constexpr unsigned stamp_threads = 32;

CUlaunchAttribute cluster_of(unsigned blocks) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = blocks;
  attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
  return attribute;
}

CUlaunchConfig launch_config(const StreamHandle& stream, unsigned blocks, unsigned threads, unsigned shared_bytes,
                             CUlaunchAttribute* attribute) {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shared_bytes;
  config.hStream = stream->handle();
  config.attrs = attribute;
  config.numAttrs = attribute != nullptr ? 1 : 0;
  return config;
}

// In a destructor, of what was made in a context. It may run at any time, and the calls would end a capture.
template <typename What, typename End>
void end_in(const ContextBox& context, What what, End DriverTable::* end, const char* name) noexcept {
  if (what == What{} || !context.runtime().is_usable() || !context.is_there()) {
    return;
  }
  try {
    const Driver& driver = context.runtime().driver();
    const CurrentScope scope(context);
    const RelaxedThread relaxed(driver);
    driver.note((driver.*end)(what), name);
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
}

bool has_clusters(const ContextBox& context) {
  return device_attribute(context.runtime(), context.device(), CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
}

std::shared_ptr<Probe> probe_of(const ContextHandle& context) {
  return probes_of(context->runtime()).of(context->device());
}

// A number of the driver about a kernel in a context.
template <typename Ask>
unsigned ask_of(const ContextHandle& context, const LaunchShape& shape, Ask&& ask) {
  const CUfunction function = shape.function != nullptr ? shape.function : probe_of(context)->function();
  CurrentScope scope(*context);
  int answer = 0;
  ask(context->runtime().driver(), &answer, function);
  scope.leave();
  return static_cast<unsigned>(answer);
}

}  // namespace

void ProbeMemory::allocate(std::size_t wanted) {
  free();
  const RelaxedThread relaxed(context->runtime().driver());
  CurrentScope scope(*context);
  GCTX_CALL(context->runtime().driver(), cuMemAlloc, &address, wanted);
  bytes = wanted;
  scope.leave();
}

void ProbeMemory::free() noexcept {
  bytes = 0;
  end_in(*context, std::exchange(address, 0), &DriverTable::cuMemFree, "cuMemFree");
}

Probe::Probe(ContextHandle primary) : primary_(std::move(primary)) {
  Runtime& runtime = primary_->runtime();
  const Driver& driver = runtime.driver();
  const int device = primary_->device();
  const RelaxedThread relaxed(driver);
  CurrentScope scope(*primary_);
  try {
    GCTX_CALL(driver, cuLibraryLoadData, &library_, probe_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
    GCTX_CALL(driver, cuLibraryGetKernel, &kernel_, library_, "cuda_gctx_probe");
    // As much as the device offers, so that it can stand in for any kernel.
    const int shared = device_attribute(runtime, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    GCTX_CALL(driver, cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared, kernel_,
              runtime.device(device));
    if (has_clusters(*primary_)) {
      GCTX_CALL(driver, cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel_,
                runtime.device(device));
    }
    scope.leave();
  } catch (...) {
    unload();
    throw;
  }
}

Probe::~Probe() { unload(); }

void Probe::unload() noexcept { end_in(*primary_, library_, &DriverTable::cuLibraryUnload, "cuLibraryUnload"); }

// The driver takes a CUkernel where it takes a CUfunction, and means the one of the current context.
CUfunction Probe::function() const noexcept { return reinterpret_cast<CUfunction>(kernel_); }

void Probe::launch(const StreamHandle& stream, unsigned blocks, unsigned threads, std::uint64_t spin_ns,
                   CUdeviceptr out, unsigned capacity, unsigned cluster) const {
  stream->context()->demand_there();
  const Driver& driver = primary_->runtime().driver();
  CurrentScope scope(*stream->context());
  void* arguments[] = {&out, &capacity, &spin_ns};
  if (cluster == 1) {
    GCTX_CALL(driver, cuLaunchKernel, function(), blocks, 1, 1, threads, 1, 1, 0, stream->handle(), arguments, nullptr);
  } else {
    CUlaunchAttribute attribute = cluster_of(cluster);
    const CUlaunchConfig config = launch_config(stream, blocks, threads, 0, &attribute);
    GCTX_CALL(driver, cuLaunchKernelEx, &config, function(), arguments, nullptr);
  }
  scope.leave();
}

ProbeMemory& Probe::unused_memory(std::size_t bytes) {
  const auto is_done = [](const StreamHandle& stream) {
    try {
      return stream_is_done(stream);
    } catch (const Error&) {
      return false;  // it captures, or its context is lost
    }
  };
  for (ProbeMemory& memory : memories_) {
    if (std::all_of(memory.writers.begin(), memory.writers.end(), is_done)) {
      memory.writers.clear();
    }
  }
  auto unused = std::find_if(memories_.begin(), memories_.end(), [](const auto& one) { return one.writers.empty(); });
  if (unused == memories_.end()) {
    if (memories_.size() == most_given_up) {
      fail_state("the last " + std::to_string(most_given_up) +
                 " abandoned runs of the probe have not finished: other work occupies their SMs or their queues");
    }
    unused = memories_.emplace(memories_.end(), primary_);
  }
  if (bytes > unused->bytes) {
    unused->allocate(std::max(bytes, least_memory));
  }
  return *unused;
}

std::vector<std::vector<ProbeBlock>> Probe::run(const std::vector<StreamHandle>& streams,
                                                const std::vector<unsigned>& blocks, std::uint64_t spin_ns,
                                                std::uint64_t timeout_ns, unsigned cluster) {
  const std::lock_guard lock(mutex_);
  const Driver& driver = primary_->runtime().driver();
  const RelaxedThread relaxed(driver);  // streams of other contexts may capture on this thread
  std::vector<StreamHandle> writers = streams;
  std::vector<std::vector<ProbeBlock>> seen(streams.size());
  std::vector<CUdeviceptr> parts(streams.size());
  std::size_t total = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    streams[i]->context()->demand_there();
    seen[i].resize(blocks[i]);
    parts[i] = total;
    total += blocks[i] * sizeof(ProbeBlock);
  }
  ProbeMemory& memory = unused_memory(total);
  // Asks until all are done or the time is over: a driver's own wait knows no end.
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  const auto wait_for = [&](const std::vector<StreamHandle>& started) {
    for (const StreamHandle& stream : started) {
      while (!stream_is_done(stream)) {
        if (std::chrono::steady_clock::now() > end) {
          fail_state("the probe kernel did not finish within " + std::to_string(timeout_ns / 1'000'000) +
                     " ms: other work occupies the SMs of " + stream->context()->label() + ", or its queue");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  };
  try {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      parts[i] += memory.address;
      CurrentScope scope(*streams[i]->context());
      GCTX_CALL(driver, cuMemsetD8Async, parts[i], 0, blocks[i] * sizeof(ProbeBlock), streams[i]->handle());
      if (memory.writers.empty()) {
        memory.writers.swap(writers);
      }
      scope.leave();
      // Where kernels are loaded at their first launch, that would hold up the others and look like a lack of
      // concurrency.
      launch(streams[i], 1, probe_threads, 0);
    }
    wait_for(streams);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      launch(streams[i], blocks[i], probe_threads, spin_ns, parts[i], blocks[i], cluster);
      // A second kernel behind the first, as in real work: streams that share a hardware queue then show it, because
      // what comes next in the queue has to wait for this one.
      launch(streams[i], 1, probe_threads, 0);
    }
    wait_for(streams);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      CurrentScope scope(*streams[i]->context());
      GCTX_CALL(driver, cuMemcpyDtoHAsync, seen[i].data(), parts[i], blocks[i] * sizeof(ProbeBlock),
                streams[i]->handle());
      scope.leave();
    }
    wait_for(streams);
    memory.writers.clear();
    return seen;
  } catch (...) {
    try {
      wait_for(memory.writers);  // after a failed call, what was launched before it
      memory.writers.clear();
    } catch (const Error&) {  // given up
    }
    throw;
  }
}

std::shared_ptr<Probe> Probes::of(int ordinal) {
  const ContextHandle primary = primary_context(runtime_, ordinal);
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  std::shared_ptr<Probe> gone;  // of a context that has been reset; destroyed after the lock is given back
  const std::lock_guard lock(state.mutex);
  if (!state.probe || state.probe->primary() != primary) {
    gone = std::move(state.probe);
    state.probe = std::make_shared<Probe>(primary);
  }
  return state.probe;
}

void Probes::keep(std::shared_ptr<void> in_use) {
  const std::lock_guard lock(kept_mutex_);
  kept_.push_back(std::move(in_use));
}

void Probes::drop() {
  std::vector<std::shared_ptr<void>> kept;
  {
    const std::lock_guard lock(kept_mutex_);
    kept.swap(kept_);
  }
  for (Device& state : devices_) {
    std::shared_ptr<Probe> dropped;
    const std::lock_guard lock(state.mutex);
    dropped.swap(state.probe);
  }
}

std::vector<std::vector<ProbeBlock>> run_probe(const std::vector<StreamHandle>& streams,
                                               const std::vector<unsigned>& blocks, std::uint64_t spin_ns,
                                               std::uint64_t timeout_ns, unsigned cluster) {
  return probe_of(streams.front()->context())->run(streams, blocks, spin_ns, timeout_ns, cluster);
}

void spin(const StreamHandle& stream, unsigned blocks, std::uint64_t spin_ns) {
  probe_of(stream->context())->launch(stream, blocks, probe_threads, spin_ns);
}

std::shared_ptr<Stamps> make_stamps(const StreamHandle& stream, std::size_t capacity) {
  return std::make_shared<Stamps>(stream, probe_of(stream->context()), capacity);
}

Stamps::Stamps(StreamHandle stream, std::shared_ptr<Probe> probe, std::size_t capacity)
    : stream_(std::move(stream)), probe_(std::move(probe)), memory_(stream_->context()) {
  memory_.allocate(capacity * sizeof(ProbeBlock));
  CurrentScope scope(*stream_->context());
  GCTX_CALL(stream_->driver(), cuMemsetD8Async, memory_.address, 0, memory_.bytes, stream_->handle());
  synchronize_stream(stream_);
  scope.leave();
}

void Stamps::write(const StreamHandle& stream, std::size_t place) const {
  probe_->launch(stream, 1, stamp_threads, 0, address(place), 1);
}

std::vector<ProbeBlock> Stamps::read() const {
  std::vector<ProbeBlock> written(memory_.bytes / sizeof(ProbeBlock));
  CurrentScope scope(*stream_->context());
  GCTX_CALL(stream_->driver(), cuMemcpyDtoHAsync, written.data(), memory_.address, memory_.bytes, stream_->handle());
  synchronize_stream(stream_);
  scope.leave();
  return written;
}

unsigned blocks_per_sm(const ContextHandle& context, const LaunchShape& shape) {
  const CallUse use(*context);
  return ask_of(context, shape, [&](const Driver& driver, int* blocks, CUfunction function) {
    GCTX_CALL(driver, cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, function, static_cast<int>(shape.threads),
              shape.shared_bytes);
  });
}

unsigned max_cluster_size(const StreamHandle& stream, const LaunchShape& shape) {
  const ContextHandle& context = stream->context();
  context->demand_there();
  if (!has_clusters(*context)) {
    return 1;
  }
  return ask_of(context, shape, [&](const Driver& driver, int* size, CUfunction function) {
    const CUlaunchConfig config = launch_config(stream, 1, shape.threads, shape.shared_bytes, nullptr);
    GCTX_CALL(driver, cuOccupancyMaxPotentialClusterSize, size, function, &config);
  });
}

unsigned max_active_clusters(const StreamHandle& stream, const LaunchShape& shape, unsigned cluster_size) {
  stream->demand_live();
  return ask_of(stream->context(), shape, [&](const Driver& driver, int* clusters, CUfunction function) {
    CUlaunchAttribute cluster = cluster_of(cluster_size);
    const CUlaunchConfig config = launch_config(stream, cluster_size, shape.threads, shape.shared_bytes, &cluster);
    GCTX_CALL(driver, cuOccupancyMaxActiveClusters, clusters, function, &config);
  });
}

}  // namespace gctx
