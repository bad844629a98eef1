// Memory, copies, devices and errors.
#include "program.h"

int main(void) {
  int count, device, runtime, host[64], *there, *pinned;
  size_t pitch;
  struct cudaDeviceProp properties;
  struct cudaPointerAttributes about;
  CHECK(cudaGetDeviceCount(&count));
  CHECK(cudaGetDeviceProperties(&properties, 1));
  CHECK(cudaRuntimeGetVersion(&runtime));
  printf("%d devices, %s, %d.%d, %d SMs, %d\n", count, properties.name, properties.major, properties.minor,
         properties.multiProcessorCount, runtime / 1000);

  CHECK(cudaSetDevice(1));
  CHECK(cudaGetDevice(&device));
  CHECK(cudaMalloc((void**)&there, sizeof host));
  CHECK(cudaMallocHost((void**)&pinned, sizeof host));
  CHECK(cudaPointerGetAttributes(&about, there));
  printf("device %d, memory of type %d on %d, ", device, about.type, about.device);
  CHECK(cudaPointerGetAttributes(&about, pinned));
  printf("%d, ", about.type);
  CHECK(cudaPointerGetAttributes(&about, host));
  printf("%d\n", about.type);

  for (int i = 0; i < 64; ++i) host[i] = i;
  CHECK(cudaMemset(there, 0xff, sizeof host));
  CHECK(cudaMemcpy(there + 1, host, 8, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(pinned, there, 16, cudaMemcpyDefault));
  printf("%d %d %d %d\n", pinned[0], pinned[1], pinned[2], pinned[3]);

  int* rows;
  CHECK(cudaMallocPitch((void**)&rows, &pitch, 12, 4));
  CHECK(cudaMemcpy2D(rows, pitch, host, 16, 12, 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2D(host, 12, rows, pitch, 12, 4, cudaMemcpyDeviceToHost));
  printf("%d %d %d %d\n", host[0], host[3], host[6], host[11]);

  SHOW(cudaMemcpy2D(host, 8, rows, pitch, 12, 4, cudaMemcpyDeviceToHost));
  SHOW(cudaMemcpy(host, rows, 12, (enum cudaMemcpyKind)9));
  SHOW(cudaPeekAtLastError());
  SHOW(cudaGetLastError());
  SHOW(cudaGetLastError());
  SHOW(cudaSetDevice(2));
  printf("%s, %s\n", cudaGetErrorString(cudaErrorInvalidDeviceFunction), cudaGetErrorName((cudaError_t)12345));
  CHECK(cudaFree(rows));
  CHECK(cudaFree(there));
  CHECK(cudaFree(0));
  SHOW(cudaFree(there));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc((void**)&there, 4));
  return 0;
}
