// Two execution contexts of 16 and 100 SMs: each kernel runs on the SMs of its own.
#include <string.h>

#include "program.h"

static cudaExecutionContext_t context_of(cudaDevResource* resource) {
  cudaDevResourceDesc_t descriptor;
  cudaExecutionContext_t context;
  CHECK(cudaDevResourceGenerateDesc(&descriptor, resource, 1));
  CHECK(cudaGreenCtxCreate(&context, descriptor, 0, 0));
  return context;
}

// Notes which SMs a kernel of many blocks runs on.
static int sms_of(cudaExecutionContext_t context, unsigned char* used) {
  static int host[2048];
  int *there, count = 0;
  cudaStream_t stream;
  void* arguments[] = {&there};
  CHECK(cudaMalloc((void**)&there, sizeof host));
  CHECK(cudaExecutionCtxStreamCreate(&stream, context, cudaStreamDefault, 0));
  start((const void*)where, (struct dim3){2048, 1, 1}, (struct dim3){1024, 1, 1}, stream, arguments);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpyAsync(host, there, sizeof host, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < 2048; ++i) used[host[i]] = 1;
  for (int sm = 0; sm < 256; ++sm) count += used[sm];
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(there));
  return count;
}

int main(void) {
  cudaDevResource whole, part, rest, found;
  unsigned groups = 1;
  CHECK(cudaDeviceGetDevResource(0, &whole, cudaDevResourceTypeSm));
  CHECK(cudaDevSmResourceSplitByCount(&part, &groups, &whole, &rest, 0, 16));
  cudaExecutionContext_t small = context_of(&part), large = context_of(&rest), device;
  CHECK(cudaExecutionCtxGetDevResource(small, &found, cudaDevResourceTypeSm));
  printf("%u = %u + %u, %u\n", whole.sm.smCount, part.sm.smCount, rest.sm.smCount, found.sm.smCount);

  unsigned char of_small[256] = {0}, of_large[256] = {0};
  int a = sms_of(small, of_small), b = sms_of(large, of_large), both = 0;
  for (int sm = 0; sm < 256; ++sm) both += of_small[sm] && of_large[sm];
  printf("%d, %d, %d in both\n", a, b, both);

  cudaEvent_t event;
  unsigned long long id, other;
  int on;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaExecutionCtxRecordEvent(small, event));
  CHECK(cudaExecutionCtxWaitEvent(large, event));
  CHECK(cudaDeviceGetExecutionCtx(&device, 0));
  CHECK(cudaExecutionCtxGetId(small, &id));
  CHECK(cudaExecutionCtxGetId(device, &other));
  CHECK(cudaExecutionCtxGetDevice(&on, small));
  CHECK(cudaExecutionCtxSynchronize(device));
  printf("device %d, %s\n", on, id == other ? "one context" : "two contexts");
  CHECK(cudaEventDestroy(event));
  CHECK(cudaExecutionCtxDestroy(small));
  CHECK(cudaExecutionCtxDestroy(large));
  SHOW(cudaExecutionCtxSynchronize(0));
  return 0;
}
