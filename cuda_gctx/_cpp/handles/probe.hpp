// A kernel that records where and when its blocks ran, and the driver's answers about how much of a kernel fits in a
// context.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/probe_ptx.hpp"
#include "handles/runtime.hpp"
#include "handles/types.hpp"

namespace gctx {

// Memory of a device, which is freed unless its context is gone.
struct ProbeMemory {
  explicit ProbeMemory(ContextHandle primary) noexcept : context(std::move(primary)) {}
  ~ProbeMemory() { free(); }
  ProbeMemory(const ProbeMemory&) = delete;
  ProbeMemory& operator=(const ProbeMemory&) = delete;
  void allocate(std::size_t wanted);  // in place of what there was
  void free() noexcept;

  const ContextHandle context;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  std::vector<StreamHandle> writers;  // whose kernels may still write there, if a run was given up
};

// The probe on one device: the loaded kernel and memory for what it writes. Both are kept, because freeing device
// memory waits for all work of the device, however long that takes. A run that is given up leaves its memory to its
// kernels, and a later run that finds them finished takes it.
class Probe {
 public:
  explicit Probe(ContextHandle primary);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  CUfunction function() const noexcept;
  const ContextHandle& primary() const noexcept { return primary_; }

  // Runs `blocks[i]` blocks on `streams[i]`, on all streams at once, each block busy for `spin_ns`, in thread-block
  // clusters of `cluster`. Waits for `timeout_ns` at most and throws after that.
  std::vector<std::vector<ProbeBlock>> run(const std::vector<StreamHandle>& streams,
                                           const std::vector<unsigned>& blocks, std::uint64_t spin_ns,
                                           std::uint64_t timeout_ns, unsigned cluster = 1);

  // Starts `blocks` blocks of so many threads on a stream, each busy for `spin_ns`. The first `capacity` of them write
  // a ProbeBlock each to `out`, in device memory.
  void launch(const StreamHandle& stream, unsigned blocks, unsigned threads, std::uint64_t spin_ns, CUdeviceptr out = 0,
              unsigned capacity = 0, unsigned cluster = 1) const;

 private:
  void unload() noexcept;
  ProbeMemory& unused_memory(std::size_t bytes);

  ContextHandle primary_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  std::mutex mutex_;  // one run at a time
  std::list<ProbeMemory> memories_;
};

// The same with the probe of the streams' device.
std::vector<std::vector<ProbeBlock>> run_probe(const std::vector<StreamHandle>& streams,
                                               const std::vector<unsigned>& blocks, std::uint64_t spin_ns,
                                               std::uint64_t timeout_ns, unsigned cluster);
void spin(const StreamHandle& stream, unsigned blocks, std::uint64_t spin_ns);

// The probe of each device, loaded at first use.
class Probes {
 public:
  static constexpr Runtime::Place place = Runtime::Place::probes;
  explicit Probes(Runtime& runtime) : runtime_(runtime), devices_(static_cast<std::size_t>(runtime.device_count())) {}
  std::shared_ptr<Probe> of(int ordinal);
  // What kernels that were not waited for may still use, until the driver is closed.
  void keep(std::shared_ptr<void> in_use);
  void drop();

 private:
  struct Device {
    std::mutex mutex;
    std::shared_ptr<Probe> probe;
  };
  Runtime& runtime_;
  std::vector<Device> devices_;
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<void>> kept_;
};

inline Probes& probes_of(Runtime& runtime) { return runtime.part<Probes>(); }

// Places in device memory that streams write to in their order: where and when they got there. All zero before that.
class Stamps {
 public:
  static constexpr const char* word = "place for stamps";  // in messages

  // `stream` is for its own use, one of the primary context.
  Stamps(StreamHandle stream, std::shared_ptr<Probe> probe, std::size_t capacity);

  CUdeviceptr address(std::size_t place) const noexcept { return memory_.address + place * sizeof(ProbeBlock); }
  void write(const StreamHandle& stream, std::size_t place) const;
  std::vector<ProbeBlock> read() const;

 private:
  StreamHandle stream_;
  std::shared_ptr<Probe> probe_;
  ProbeMemory memory_;
};

std::shared_ptr<Stamps> make_stamps(const StreamHandle& stream, std::size_t capacity);

// So many threads that two blocks fill an SM at most, and every SM gets some.
inline constexpr unsigned probe_threads = 1024;

// How a kernel would be launched. Without a function the probe stands in for it: a kernel that needs few registers and
// no static shared memory.
struct LaunchShape {
  CUfunction function = nullptr;  // or a CUkernel
  unsigned threads = 0;
  unsigned shared_bytes = 0;  // dynamic, per block
};

unsigned blocks_per_sm(const ContextHandle& context, const LaunchShape& shape);
unsigned max_cluster_size(const StreamHandle& stream, const LaunchShape& shape);  // 1 where there are no clusters
unsigned max_active_clusters(const StreamHandle& stream, const LaunchShape& shape, unsigned cluster_size);

}  // namespace gctx
