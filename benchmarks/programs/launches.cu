// The cost of a launch, in a program without this package: prints the medians of cuLaunchKernel and <<<>>>, in ns.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

__global__ void empty() {}

template <typename Launch>
double median_ns(const Launch& launch) {
  constexpr int rounds = 100;
  constexpr int launches = 500;  // fewer than the queue of a stream holds, so that the host does not wait
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) {
      launch();
    }
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
                    launches);
    cudaDeviceSynchronize();
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

int main() {
  cudaStream_t stream;
  cudaFunction_t function;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&empty)) != cudaSuccess) {
    return 1;
  }
  const auto by_runtime = [&] { empty<<<1, 32, 0, stream>>>(); };
  const auto by_driver = [&] { cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr); };
  median_ns(by_runtime);  // warms up
  const double driver = median_ns(by_driver);
  std::printf("{\"driver_ns\": %.1f, \"runtime_ns\": %.1f}\n", driver, median_ns(by_runtime));
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
