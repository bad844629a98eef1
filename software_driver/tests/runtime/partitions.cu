// A program for nvcc: a kernel in two green contexts, whose sum and SMs are checked.
#include <cstdio>
#include <set>

#define CHECK(call)                                                         \
  if (const cudaError_t error = call) {                                     \
    std::printf("%s: %s\n", #call, cudaGetErrorString(error));              \
    return 1;                                                               \
  }

__constant__ int weight = 2;
__device__ int blocks_done;

__global__ void sum(const int* values, int count, int* total, unsigned* sms) {
  __shared__ int part[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < count ? values[i] * weight : 0;
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
  }
  if (threadIdx.x == 0) {
    atomicAdd(total, part[0]);
    atomicAdd(&blocks_done, 1);
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sms[blockIdx.x]));
  }
}

int main() {
  constexpr int blocks = 400, count = blocks * 256;
  int *values, *total;
  unsigned* sms;
  CHECK(cudaMallocManaged(&values, count * sizeof(int)));
  CHECK(cudaMalloc(&total, sizeof(int)));
  CHECK(cudaHostAlloc(&sms, blocks * sizeof(unsigned), cudaHostAllocDefault));
  for (int i = 0; i < count; ++i) values[i] = i % 3;

  cudaDevResource whole, groups[2], rest;
  unsigned made = 2;
  CHECK(cudaDeviceGetDevResource(0, &whole, cudaDevResourceTypeSm));
  CHECK(cudaDevSmResourceSplitByCount(groups, &made, &whole, &rest, 0, 16));
  std::set<unsigned> seen[2];
  for (int group = 0; group < 2; ++group) {
    cudaDevResourceDesc_t descriptor;
    cudaExecutionContext_t context;
    cudaStream_t stream;
    CHECK(cudaDevResourceGenerateDesc(&descriptor, &groups[group], 1));
    CHECK(cudaGreenCtxCreate(&context, descriptor, 0, 0));
    CHECK(cudaExecutionCtxStreamCreate(&stream, context, cudaStreamDefault, 0));
    CHECK(cudaMemsetAsync(total, 0, sizeof(int), stream));
    sum<<<blocks, 256, 0, stream>>>(values, count, total, sms);
    CHECK(cudaGetLastError());
    int answer;
    CHECK(cudaMemcpyAsync(&answer, total, sizeof answer, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    seen[group] = std::set<unsigned>(sms, sms + blocks);
    std::printf("sum %d on %zu SMs\n", answer, seen[group].size());
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaExecutionCtxDestroy(context));
  }
  int done;
  CHECK(cudaMemcpyFromSymbol(&done, blocks_done, sizeof done));
  unsigned both = 0;
  for (const unsigned sm : seen[0]) both += unsigned(seen[1].count(sm));
  std::printf("%d blocks, %u SMs in both\n", done, both);
}
