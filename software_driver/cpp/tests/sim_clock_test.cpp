// Kernels that get in each other's way, on the software driver: whatever has to give way, each block runs once.
//   sim_clock_test [--seed N] [--launches N]
#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/check.hpp"
#include "tests/sim_library.hpp"

namespace {

using software_driver::test::symbol;

#define OK(name, ...) CHECK(CALL(name, __VA_ARGS__) == CUDA_SUCCESS)

constexpr unsigned sm_count = 132;
constexpr unsigned partition_sms = 24;
constexpr std::uint64_t block_ns = 100'000;
constexpr unsigned blocks_in_clusters = 9'600;  // whole clusters of every size that is tried
constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry work() { ret; }
)";

std::uint64_t now() { return symbol<decltype(softwareDriverTime)>("softwareDriverTime")(); }
void pass(std::uint64_t ns) { symbol<decltype(softwareDriverAdvance)>("softwareDriverAdvance")(ns); }

// A machine with a kernel whose blocks cost what a test says, and with some partitions.
class Bench {
 public:
  Bench() {
    CUcontext context = nullptr;
    CUlibrary library = nullptr;
    CUdevResource all{};
    CUdevResource rest{};
    std::array<CUdevResource, 4> groups{};
    auto count = static_cast<unsigned>(groups.size());
    software_driver::test::configure("h200@13.0");
    OK(cuInit, 0);
    OK(cuDevicePrimaryCtxRetain, &context, 0);
    OK(cuCtxSetCurrent, context);
    OK(cuLibraryLoadData, &library, program, nullptr, nullptr, 0, nullptr, nullptr, 0);
    OK(cuLibraryGetKernel, &kernel_, library, "work");
    OK(cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, max_shared, kernel_, 0);
    OK(cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel_, 0);
    OK(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    OK(cuDevSmResourceSplitByCount, groups.data(), &count, &all, &rest, 0, partition_sms);
    for (CUdevResource& group : groups) {
      CUdevResourceDesc descriptor = nullptr;
      OK(cuDevResourceGenerateDesc, &descriptor, &group, 1);
      OK(cuGreenCtxCreate, &partitions.emplace_back(), descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    }
  }

  static constexpr int max_shared = 200'000;
  std::vector<CUgreenCtx> partitions;

  static CUstream stream(int priority) {
    CUstream made = nullptr;
    OK(cuStreamCreateWithPriority, &made, CU_STREAM_NON_BLOCKING, priority);
    return made;
  }

  static CUstream stream(CUgreenCtx partition, int priority) {
    CUstream made = nullptr;
    OK(cuGreenCtxStreamCreate, &made, partition, CU_STREAM_NON_BLOCKING, priority);
    return made;
  }

  struct Launch {
    unsigned blocks = 1;
    unsigned cluster = 1;
    unsigned threads = 1024;
    unsigned shared_bytes = 0;
    softwareDriverKernelCost cost{block_ns, 0, -1, 0, 0, 0, 0};
    unsigned rows = 1;
  };

  CUresult launch(CUstream stream, const Launch& wanted) const {
    symbol<decltype(softwareDriverKernel)>("softwareDriverKernel")("work", nullptr, nullptr, &wanted.cost, nullptr, 0);
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {wanted.cluster, 1, 1};
    const CUlaunchConfig config{wanted.blocks,
                                wanted.rows,
                                1,
                                wanted.threads,
                                1,
                                1,
                                wanted.shared_bytes,
                                stream,
                                &attribute,
                                wanted.cluster > 1 ? 1U : 0U};
    return CALL(cuLaunchKernelEx, &config, reinterpret_cast<CUfunction>(kernel_), nullptr, nullptr);
  }

 private:
  CUkernel kernel_ = nullptr;
};

// Kernels that run next to a grid of clusters: short ones of higher priority in one partition, one after the other, and
// one that slows down a second partition until after the end of the clusters.
struct Others {
  unsigned short_ones = 0;
  bool slow_one = false;
};

// How long a grid of clusters takes on the whole device.
std::uint64_t time_of_clusters(unsigned cluster, Others others) {
  const Bench bench;
  const CUstream low = Bench::stream(0);
  const CUstream high = Bench::stream(bench.partitions[0], -5);
  const CUstream slow = Bench::stream(bench.partitions[1], -5);
  const std::uint64_t before = now();
  if (others.slow_one) {
    // Eight small blocks leave room for one of the clusters' on each SM, with a ninth of the throughput.
    const Bench::Launch eight{.blocks = 8 * partition_sms, .threads = 128, .cost = {1'000'000'000, 0, 1, 0, 0, 0, 0}};
    CHECK(bench.launch(slow, eight) == CUDA_SUCCESS);
  }
  CHECK(bench.launch(low, {.blocks = blocks_in_clusters, .cluster = cluster}) == CUDA_SUCCESS);
  for (unsigned i = 0; i < others.short_ones; ++i) {
    pass(500'000 + 30'000 * i);
    CHECK(bench.launch(high, {.blocks = 1}) == CUDA_SUCCESS);
    OK(cuStreamSynchronize, high);
  }
  OK(cuStreamSynchronize, low);
  return now() - before;
}

// Where somebody else wants a part of the SMs that clusters run on, their blocks give way, and run later.
void clusters_give_way_and_lose_no_block() {
  constexpr std::uint64_t least = std::uint64_t{blocks_in_clusters} * block_ns / sm_count;
  for (const unsigned cluster : {2, 3, 4, 8, 16}) {
    for (const unsigned short_ones : {0, 1, 2, 5}) {
      const std::uint64_t time = time_of_clusters(cluster, {short_ones});
      CHECK(time >= least && time < least * 3 / 2);
    }
  }
}

// Clusters that began early may end long after the last one has begun.
void clusters_that_are_slowed_down_end() {
  constexpr std::uint64_t most = std::uint64_t{blocks_in_clusters} * block_ns / (sm_count - partition_sms) * 2;
  for (const unsigned cluster : {2, 3, 4, 8}) {
    for (const unsigned short_ones : {0, 1, 2, 5}) {
      CHECK(time_of_clusters(cluster, {short_ones, true}) < most);
    }
  }
}

// A program may launch as many blocks as a grid has. To carry them out one by one, or one place on an SM at a time,
// would take longer than the limit of this test. Sanitizers make a launch ten times as slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t launches_of_all = 6;
#else
constexpr std::uint64_t launches_of_all = 60;
#endif
void a_launch_costs_the_same_however_many_blocks_it_has() {
  constexpr Bench::Launch all{.blocks = 0x7fffffff, .threads = 32, .cost = {10, 0, 0, 0, 0, 0, 0}, .rows = 65535};
  constexpr std::uint64_t places = std::uint64_t{sm_count} * 32;
  constexpr std::uint64_t least = (std::uint64_t{all.blocks} * all.rows + places - 1) / places * all.cost.block_ns;
  const Bench bench;
  const CUstream stream = Bench::stream(0);
  const std::uint64_t before = now();
  for (std::uint64_t launches = 1; launches <= launches_of_all; ++launches) {
    CHECK(bench.launch(stream, all) == CUDA_SUCCESS);
    OK(cuStreamSynchronize, stream);
    CHECK(now() - before >= launches * least && now() - before < launches * (least + 1'000'000));
  }
}

// A launch whose blocks all fit at once is one event of the clock. Blocks that come beside them share their SMs as if
// each block were an event: the first launch has done a half when the second begins, and both go on at half the rate.
void a_launch_that_fits_at_once_shares_its_sms() {
  const Bench bench;
  const CUstream first = Bench::stream(0);
  const CUstream second = Bench::stream(bench.partitions[0], 0);
  const auto sync_at = [](CUstream stream) {
    OK(cuStreamSynchronize, stream);
    return now();
  };
  const auto is_near = [](std::uint64_t time, std::uint64_t wanted) {
    return time >= wanted && time < wanted + 10'000;
  };
  const std::uint64_t before = now();
  CHECK(bench.launch(first, {.blocks = sm_count}) == CUDA_SUCCESS);
  pass(block_ns / 2);
  CHECK(bench.launch(second, {.blocks = partition_sms}) == CUDA_SUCCESS);
  CHECK(is_near(sync_at(first) - before, block_ns * 3 / 2));
  CHECK(is_near(sync_at(second) - before, block_ns * 2));
  // Some SMs have one block, which ends before the second launch begins; the others have two, at half the rate.
  const std::uint64_t then = now();
  CHECK(bench.launch(first, {.blocks = sm_count + partition_sms / 2}) == CUDA_SUCCESS);
  pass(block_ns * 3 / 2);
  CHECK(bench.launch(second, {.blocks = 1}) == CUDA_SUCCESS);
  CHECK(is_near(sync_at(first) - then, block_ns * 2));
}

// Launches of every shape and priority in every partition.
void any_mixture_of_kernels_ends(std::uint64_t seed, std::uint64_t launches) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  const auto pick = [&](unsigned below) { return static_cast<unsigned>(random() % below); };
  const Bench bench;
  std::vector<CUstream> streams;
  for (int priority = -5; priority <= 0; ++priority) {
    streams.push_back(Bench::stream(priority));
    for (const CUgreenCtx partition : bench.partitions) {
      if (pick(2) == 0) {
        streams.push_back(Bench::stream(partition, priority));
      }
    }
  }
  const auto stream_count = static_cast<unsigned>(streams.size());
  for (std::uint64_t i = 0; i < launches; ++i) {
    Bench::Launch wanted;
    wanted.cluster = 1 + pick(16);
    if (pick(2) == 0) {
      wanted.cluster = 1U << pick(4);
    }
    constexpr std::array<unsigned, 4> most_clusters{4, 40, 4'000, 400'000};
    wanted.blocks = wanted.cluster * (1 + pick(most_clusters[pick(4)]));
    wanted.threads = 32 * (1 + pick(32));
    wanted.shared_bytes = pick(3) == 0 ? pick(Bench::max_shared) : 0;
    wanted.cost = {1 + pick(100'000), pick(3) * pick(100'000), -1, 0, 0, 0, 0};
    if (pick(4) == 0) {
      wanted.cost.tiles = 1 + pick(10'000);
      wanted.cost.tile_ns = 1 + pick(10'000);
      wanted.cost.tile_bytes = pick(2) * pick(100'000);
    }
    const CUresult result = bench.launch(streams[pick(stream_count)], wanted);
    CHECK(result == CUDA_SUCCESS || (result == CUDA_ERROR_INVALID_CLUSTER_SIZE && wanted.cluster > 8));
    if (pick(4) == 0) {
      pass(pick(1'000'000));
    }
    if (pick(16) == 0) {
      OK(cuStreamSynchronize, streams[pick(stream_count)]);
    }
  }
  for (const CUstream stream : streams) {
    OK(cuStreamSynchronize, stream);
    OK(cuStreamQuery, stream);
  }
}

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
  std::printf("sim_clock_test: seed %llu\n", static_cast<unsigned long long>(seed));
  clusters_give_way_and_lose_no_block();
  clusters_that_are_slowed_down_end();
  a_launch_costs_the_same_however_many_blocks_it_has();
  a_launch_that_fits_at_once_shares_its_sms();
  any_mixture_of_kernels_ends(seed, argument(count_of, values, "--launches", 60));
  return software_driver::test::summary("sim_clock_test");
}
