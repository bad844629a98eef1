// The cost of a launch, in a program without this package: prints the medians of cuLaunchKernel and <<<>>>, in ns. With an
// argument, the program launches in a green context of its own.
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

// Makes a green context of all SMs current, as the library does for a program.
bool enter_green_context() {
  CUdevResource resource;
  CUdevResourceDesc description;
  CUgreenCtx green;
  CUcontext context;
  return cuInit(0) == CUDA_SUCCESS && cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
         cuDevResourceGenerateDesc(&description, &resource, 1) == CUDA_SUCCESS &&
         cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS &&
         cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

int main(int count, char**) {
  if (count > 1 && !enter_green_context()) {
    return 1;
  }
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
