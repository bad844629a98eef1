// Streams, events, host functions and graphs.
#include <stdint.h>

#include "program.h"

static void note(void* word) { ++*(int*)word; }

int main(void) {
  int host[64], *there, *large, calls = 0;
  float ms;
  cudaStream_t one, other;
  cudaEvent_t begin, end;
  CHECK(cudaMalloc((void**)&there, sizeof host));
  CHECK(cudaMalloc((void**)&large, 1 << 22));
  CHECK(cudaStreamCreate(&one));
  CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaMemsetAsync(there, 0, sizeof host, one));
  CHECK(cudaEventRecord(begin, one));
  start_add(there, 1, 2, 32, one);
  CHECK(cudaMemsetAsync(large, 0, 1 << 22, one));
  start_add(large, 1, 1 << 10, 1 << 10, one);
  CHECK(cudaEventRecord(end, one));
  printf("%s, ", cudaGetErrorName(cudaEventQuery(end)));
  printf("%s, ", cudaGetErrorName(cudaGetLastError()));
  CHECK(cudaStreamWaitEvent(other, end, 0));
  start_add(there, 1, 2, 32, other);
  CHECK(cudaLaunchHostFunc(other, note, &calls));
  CHECK(cudaMemcpyAsync(host, there, sizeof host, cudaMemcpyDeviceToHost, other));
  CHECK(cudaStreamSynchronize(other));
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  printf("%d, %d call, time %s\n", host[63], calls, ms > 0 ? "passed" : "stood still");

  cudaGraph_t graph, by_hand;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaMemsetAsync(there, 0, sizeof host, one));
  start_add(there, 1, 2, 32, one);
  start_add(there, 1, 2, 32, one);
  CHECK(cudaStreamEndCapture(one, &graph));
  size_t count = 0;
  CHECK(cudaGraphGetNodes(graph, 0, &count));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, one));
  CHECK(cudaMemcpyAsync(host, there, 4, cudaMemcpyDeviceToHost, one));
  CHECK(cudaStreamSynchronize(one));
  printf("%zu nodes, %d\n", count, host[0]);

  int by = 20;
  void* arguments[] = {&there, &by};
  cudaGraphNode_t fill, kernel, copy, called;
  struct cudaMemsetParams filling = {there, 0, 0, 4, 64, 1};
  struct cudaKernelNodeParams launching = {(void*)add, {2, 1, 1}, {32, 1, 1}, 0, arguments, 0}, found;
  CHECK(cudaGraphCreate(&by_hand, 0));
  CHECK(cudaGraphAddMemsetNode(&fill, by_hand, 0, 0, &filling));
  CHECK(cudaGraphAddKernelNode(&kernel, by_hand, &fill, 1, &launching));
  CHECK(cudaGraphAddMemcpyNode1D(&copy, by_hand, &kernel, 1, host, there, sizeof host, cudaMemcpyDeviceToHost));
  struct cudaGraphNodeParams any = {.type = cudaGraphNodeTypeHost, .host = {note, &calls}};
  CHECK(cudaGraphAddNode(&called, by_hand, &copy, 0, 1, &any));
  CHECK(cudaGraphKernelNodeGetParams(kernel, &found));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphInstantiate(&executable, by_hand, 0));
  by = 30;
  CHECK(cudaGraphExecKernelNodeSetParams(executable, kernel, &launching));
  CHECK(cudaGraphLaunch(executable, one));
  CHECK(cudaStreamSynchronize(one));
  printf("%s, %d, %d calls\n", found.func == (void*)add ? "the kernel" : "another", host[63], calls);

  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaGraphDestroy(by_hand));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(one));
  CHECK(cudaStreamDestroy(other));
  CHECK(cudaFree(large));
  CHECK(cudaFree(there));
  return 0;
}
