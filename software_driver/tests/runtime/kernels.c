// Kernels and variables that the compiler's code registers, and libraries.
#include "program.h"

int main(void) {
  int host[64], *there, seven = 7, blocks;
  CHECK(cudaMalloc((void**)&there, sizeof host));
  CHECK(cudaMemset(there, 0, sizeof host));
  start_add(there, 10, 2, 32, 0);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host, there, sizeof host, cudaMemcpyDeviceToHost));
  printf("%d %d\n", host[0], host[63]);

  CHECK(cudaMemcpyToSymbol(&step, &seven, sizeof seven, 0, cudaMemcpyHostToDevice));
  start_add(there, 10, 2, 32, 0);
  CHECK(cudaMemcpy(host, there, sizeof host, cudaMemcpyDeviceToHost));
  int found, *address;
  size_t size;
  CHECK(cudaMemcpyFromSymbol(&found, &step, sizeof found, 0, cudaMemcpyDeviceToHost));
  CHECK(cudaGetSymbolAddress((void**)&address, &step));
  CHECK(cudaGetSymbolSize(&size, &step));
  printf("%d %d, %d of %zu bytes\n", host[0], host[63], found, size);
  SHOW(cudaMemcpyToSymbol(&step, &seven, 4, 4, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpyToSymbol(&found, &seven, 4, 0, cudaMemcpyHostToDevice));

  struct cudaFuncAttributes attributes;
  const char* name;
  CHECK(cudaFuncGetAttributes(&attributes, (const void*)add));
  CHECK(cudaFuncGetName(&name, (const void*)add));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void*)add, 1024, 0));
  printf("%s: %d threads at most, %d blocks\n", name, attributes.maxThreadsPerBlock, blocks);

  // An error of a launch is there for the next question.
  start_add(there, 10, 1, 2048, 0);
  SHOW(cudaGetLastError());
  start((const void*)main, (struct dim3){1, 1, 1}, (struct dim3){1, 1, 1}, 0, 0);
  SHOW(cudaGetLastError());

  cudaLibrary_t library;
  cudaKernel_t kernel;
  int by = 100;
  void* arguments[] = {&there, &by};
  CHECK(cudaLibraryLoadData(&library, ptx, 0, 0, 0, 0, 0, 0));
  CHECK(cudaLibraryGetKernel(&kernel, library, "add"));
  CHECK(cudaMemset(there, 0, sizeof host));
  CHECK(cudaLaunchKernel((const void*)kernel, (struct dim3){1, 1, 1}, (struct dim3){32, 1, 1}, arguments, 0, 0));
  cudaLaunchConfig_t config = {{1, 1, 1}, {32, 1, 1}, 0, 0, 0, 0};
  CHECK(cudaLaunchKernelExC(&config, (const void*)add, arguments));
  CHECK(cudaMemcpy(host, there, sizeof host, cudaMemcpyDeviceToHost));
  printf("%d %d\n", host[31], host[32]);
  CHECK(cudaLibraryUnload(library));
  CHECK(cudaFree(there));
  return 0;
}
