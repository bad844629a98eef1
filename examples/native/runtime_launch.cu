// A kernel of the CUDA runtime in a partition: launched, captured in a graph, and what the runtime reports of its
// stream. nvcc -std=c++17 runtime_launch.cu -I HEADERS -L FOLDER -l cuda_gctx -Xlinker -rpath=FOLDER, with HEADERS from
// cuda_gctx.get_include() and FOLDER above it.
#include <cuda_runtime.h>

#include <cstdio>
#include <set>
#include <vector>

#include "cuda_gctx.hpp"

// Each block occupies an SM for a while, so that the blocks are on as many SMs as they may use.
__global__ void where(unsigned* ids) {
  unsigned id = 0;
  asm("mov.u32 %0, %%smid;" : "=r"(id));
  ids[blockIdx.x] = id;
  for (const long long end = clock64() + 1000000; clock64() < end;) {
  }
}

static std::size_t sms_of(const unsigned* ids, unsigned blocks) {
  std::vector<unsigned> found(blocks);
  cudaMemcpy(found.data(), ids, blocks * sizeof(unsigned), cudaMemcpyDeviceToHost);
  return std::set<unsigned>(found.begin(), found.end()).size();
}

int main() {
  constexpr unsigned blocks = 264;
  const std::vector<cuda_gctx::context> contexts = cuda_gctx::partition(0, {{16, 0, 0}, {cuda_gctx::rest, 0, 0}});
  const cuda_gctx::stream owner = contexts[0].create_stream();
  const auto stream = static_cast<cudaStream_t>(owner.handle());
  unsigned* ids = nullptr;
  cudaMalloc(&ids, blocks * sizeof(unsigned));

  where<<<blocks, 1, 0, stream>>>(ids);
  cudaStreamSynchronize(stream);
  std::printf("launched: %zu of %u SMs (%s)\n", sms_of(ids, blocks), contexts[0].sm_count(),
              cudaGetErrorName(cudaGetLastError()));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaMemset(ids, 0, blocks * sizeof(unsigned));
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  where<<<blocks, 1, 0, stream>>>(ids);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, stream);
  cudaStreamSynchronize(stream);
  std::printf("captured: %zu SMs (%s)\n", sms_of(ids, blocks), cudaGetErrorName(cudaGetLastError()));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);

#if CUDART_VERSION >= 13010
  cudaDevResource resource{};
  const cudaError_t answer = cudaStreamGetDevResource(stream, &resource, cudaDevResourceTypeSm);
  std::printf("the runtime reports %u SMs (%s)\n", answer == cudaSuccess ? resource.sm.smCount : 0,
              cudaGetErrorName(answer));
#endif
  cudaFree(ids);
}
