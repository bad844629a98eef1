// Every effect that was queued before a wait has happened after it, whatever has become of its stream:
// work that is queued at random, on streams and partitions that come and go, against all that can wait for it.
//   sim_order_test [--seed N] [--steps N | --seconds N]
#include <cuda.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/check.hpp"
#include "tests/sim_library.hpp"

namespace {

using software_driver::test::symbol;

#define OK(name, ...) CHECK(CALL(name, __VA_ARGS__) == CUDA_SUCCESS)

constexpr std::size_t cells = 4096;
constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry work() { ret; }
)";

// A fill, a copy or a write of one word, behind a kernel that takes long.
struct Effect {
  std::size_t cell;
  int device;
  int context;  // 0: the device's primary one; others: partitions, by numbers that are not used again
  int stream;   // a number of this kind too
};

struct OwnStream {
  CUstream handle;
  int device;
  int context;
  int number;
};

struct Partition {
  CUgreenCtx handle;
  int number;
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    software_driver::test::configure("h200@13.0,devices=2,memory=70368744177664");  // each partition loses some
    const softwareDriverKernelCost cost{2'000'000, 0, -1, 0, 0, 0, 0};
    symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")("work", nullptr, nullptr, &cost, nullptr, 0);
    OK(cuInit, 0);
    for (int device = 0; device < 2; ++device) {
      OK(cuDevicePrimaryCtxRetain, &primary_[index(device)], device);
    }
    OK(cuCtxSetCurrent, primary_[0]);
    CUlibrary library = nullptr;
    OK(cuLibraryLoadData, &library, program, nullptr, nullptr, 0, nullptr, nullptr, 0);
    OK(cuLibraryGetKernel, &kernel_, library, "work");
    void* memory = nullptr;
    OK(cuMemAllocHost_v2, &memory, (cells + 1) * sizeof(std::uint32_t));
    cells_ = static_cast<volatile std::uint32_t*>(memory);
    cells_[cells] = 1;
    auto count = static_cast<unsigned>(groups_.size());
    CUdevResource all{};
    OK(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    OK(cuDevSmResourceSplitByCount, groups_.data(), &count, &all, nullptr, 0, 16);
  }

  void step() {
    switch (pick(14)) {
      case 0:
        return add_stream();
      case 1:
        return drop_stream();
      case 2:
        return add_partition();
      case 3:
        return drop_partition();
      case 4:
        return wait_for_stream();
      case 5:
        return wait_for_context();
      case 6:
        return wait_for_event_of_context();
      case 7:
        return free_memory();
      case 8:
        return wait_for_value();
      case 9:
        return wait_for_event_of_stream();
      default:
        return queue();
    }
  }

 private:
  static std::size_t index(int device) { return static_cast<std::size_t>(device); }
  std::size_t pick(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  void enter(int device) { OK(cuCtxSetCurrent, primary_[index(device)]); }

  CUdeviceptr address(std::size_t cell) const { return reinterpret_cast<CUdeviceptr>(cells_ + cell); }

  void add_stream() {
    const auto where = pick(3);
    CUstream made = nullptr;
    if (where < 2 || partitions_.empty()) {
      const int device = static_cast<int>(where % 2);
      enter(device);
      OK(cuStreamCreate, &made, pick(2) == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
      streams_.push_back({made, device, 0, ++made_});
    } else {
      const Partition& partition = partitions_[pick(partitions_.size())];
      OK(cuGreenCtxStreamCreate, &made, partition.handle, CU_STREAM_NON_BLOCKING, 0);
      streams_.push_back({made, 0, partition.number, ++made_});
    }
  }

  void drop_stream() {
    if (streams_.empty()) {
      return;
    }
    const std::size_t which = pick(streams_.size());
    OK(cuStreamDestroy_v2, streams_[which].handle);
    streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void add_partition() {
    if (partitions_.size() == groups_.size()) {
      return;
    }
    CUdevResourceDesc descriptor = nullptr;
    OK(cuDevResourceGenerateDesc, &descriptor, &groups_[partitions_.size()], 1);
    CUgreenCtx made = nullptr;
    OK(cuGreenCtxCreate, &made, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    partitions_.push_back({made, ++made_});
  }

  void drop_partition() {
    if (partitions_.empty()) {
      return;
    }
    const Partition gone = partitions_.back();
    for (const OwnStream& stream : streams_) {
      if (stream.context == gone.number) {
        OK(cuStreamDestroy_v2, stream.handle);
      }
    }
    std::erase_if(streams_, [&](const OwnStream& stream) { return stream.context == gone.number; });
    OK(cuGreenCtxDestroy, gone.handle);
    partitions_.pop_back();
  }

  void queue() {
    if (streams_.empty() || pending_.size() == 200) {
      return;
    }
    const OwnStream& stream = streams_[pick(streams_.size())];
    enter(stream.device);
    const std::size_t cell = next_++ % cells;
    cells_[cell] = 0;
    if (pick(2) == 0) {
      OK(cuLaunchKernel, reinterpret_cast<CUfunction>(kernel_), 1, 1, 1, 32, 1, 1, 0, stream.handle, nullptr, nullptr);
    }
    switch (pick(3)) {
      case 0:
        OK(cuMemsetD32Async, address(cell), 1, 1, stream.handle);
        break;
      case 1:
        OK(cuMemcpyAsync, address(cell), address(cells), sizeof(std::uint32_t), stream.handle);
        break;
      default:
        OK(cuStreamWriteValue32_v2, stream.handle, address(cell), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    pending_.push_back({cell, stream.device, stream.context, stream.number});
  }

  // All of them are there; what was waited for is forgotten.
  void expect(const char* wait, const std::function<bool(const Effect&)>& is_over) {
    std::erase_if(pending_, [&](const Effect& effect) {
      if (!is_over(effect)) {
        return false;
      }
      if (cells_[effect.cell] != 1) {
        software_driver::test::fail(__FILE__, __LINE__, wait);
      }
      return true;
    });
  }

  void wait_for_stream() {
    if (streams_.empty()) {
      return;
    }
    const OwnStream& stream = streams_[pick(streams_.size())];
    OK(cuStreamSynchronize, stream.handle);
    expect("cuStreamSynchronize", [&](const Effect& effect) { return effect.stream == stream.number; });
  }

  void wait_for_context() {
    if (partitions_.empty() || pick(2) == 0) {
      const int device = static_cast<int>(pick(2));
      enter(device);
      OK(cuCtxSynchronize, );
      // That of device 0 waits for the partitions too.
      expect("cuCtxSynchronize of a device", [&](const Effect& effect) { return effect.device == device; });
      return;
    }
    const Partition& partition = partitions_[pick(partitions_.size())];
    CUcontext context = nullptr;
    OK(cuCtxFromGreenCtx, &context, partition.handle);
    OK(cuCtxSetCurrent, context);
    OK(cuCtxSynchronize, );
    expect("cuCtxSynchronize of a partition", [&](const Effect& effect) { return effect.context == partition.number; });
  }

  // On the device: a stream waits until an effect has left its value.
  void wait_for_value() {
    if (pending_.empty()) {
      return;
    }
    const std::size_t cell = pending_[pick(pending_.size())].cell;
    const CUstream waiting = other_stream();
    OK(cuStreamWaitValue32_v2, waiting, address(cell), 1, CU_STREAM_WAIT_VALUE_EQ);
    OK(cuStreamSynchronize, waiting);
    expect("cuStreamWaitValue32", [&](const Effect& effect) { return effect.cell == cell; });
    OK(cuStreamDestroy_v2, waiting);
  }

  void wait_for_event_of_stream() {
    const auto found = std::ranges::find(streams_, 0, &OwnStream::context);
    if (found == streams_.end()) {
      return;
    }
    CUevent event = nullptr;
    enter(found->device);
    OK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord, event, found->handle);
    const CUstream waiting = other_stream();
    OK(cuStreamWaitEvent, waiting, event, CU_EVENT_WAIT_DEFAULT);
    OK(cuStreamSynchronize, waiting);
    expect("cuStreamWaitEvent", [&](const Effect& effect) { return effect.stream == found->number; });
    OK(cuStreamDestroy_v2, waiting);
    OK(cuEventDestroy_v2, event);
  }

  // Of the primary context of some device, for one wait.
  CUstream other_stream() {
    CUstream made = nullptr;
    enter(static_cast<int>(pick(2)));
    OK(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
    return made;
  }

  void wait_for_event_of_context() {
    CUevent event = nullptr;
    enter(0);
    OK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    if (partitions_.empty() || pick(2) == 0) {
      OK(cuCtxRecordEvent, primary_[0], event);
      OK(cuEventSynchronize, event);
      expect("cuCtxRecordEvent", [](const Effect& effect) { return effect.device == 0; });
    } else {
      const Partition& partition = partitions_[pick(partitions_.size())];
      OK(cuGreenCtxRecordEvent, partition.handle, event);
      OK(cuEventSynchronize, event);
      expect("cuGreenCtxRecordEvent", [&](const Effect& effect) { return effect.context == partition.number; });
    }
    OK(cuEventDestroy_v2, event);
  }

  void free_memory() {
    const int device = static_cast<int>(pick(2));
    CUdeviceptr memory = 0;
    enter(device);
    OK(cuMemAlloc_v2, &memory, 64);
    OK(cuMemFree_v2, memory);
    expect("cuMemFree", [&](const Effect& effect) { return effect.device == device; });
  }

  std::mt19937_64 random_;
  std::array<CUcontext, 2> primary_{};
  std::array<CUdevResource, 4> groups_{};
  CUkernel kernel_ = nullptr;
  volatile std::uint32_t* cells_ = nullptr;  // and a word of the value that effects leave
  std::vector<OwnStream> streams_;
  std::vector<Partition> partitions_;
  std::vector<Effect> pending_;
  std::size_t next_ = 0;
  int made_ = 0;
};

std::uint64_t argument(int count_of, char** values, const char* name, std::uint64_t otherwise) {
  for (int i = 1; i + 1 < count_of; ++i) {
    if (std::string(values[i]) == name) {
      return std::strtoull(values[i + 1], nullptr, 10);
    }
  }
  return otherwise;
}

}  // namespace

int main(int count_of, char** values) {
  if (!software_driver::test::open_library()) {
    return 2;
  }
  const std::uint64_t seed = argument(count_of, values, "--seed", 1);
  std::printf("sim_order_test: seed %llu\n", static_cast<unsigned long long>(seed));
  World world(seed);
  const std::chrono::seconds seconds(argument(count_of, values, "--seconds", 0));
  const auto end = std::chrono::steady_clock::now() + seconds;
  const std::uint64_t wanted = argument(count_of, values, "--steps", seconds.count() == 0 ? 20'000 : UINT64_MAX);
  std::uint64_t steps = 0;
  while (software_driver::test::failures == 0 && steps < wanted &&
         (seconds.count() == 0 || std::chrono::steady_clock::now() < end)) {
    world.step();
    ++steps;
  }
  std::printf("sim_order_test: %llu steps\n", static_cast<unsigned long long>(steps));
  return software_driver::test::summary("sim_order_test");
}
