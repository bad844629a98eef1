// A managed variable: the host and the kernels of both devices use the same memory.
#include <cstdio>

__managed__ int total = 5;
__managed__ float squares[100];

__global__ void add(int amount) {
  squares[threadIdx.x] = threadIdx.x * threadIdx.x;
  if (threadIdx.x == 0) {
    total += amount;
  }
}

int main() {
  std::printf("%d\n", total);
  total = 7;
  for (int device = 0; device < 2; ++device) {
    cudaSetDevice(device);
    add<<<1, 100>>>(10 * (device + 1));
    if (cudaDeviceSynchronize() != cudaSuccess) {
      return 1;
    }
  }
  std::printf("%d %g\n", total, squares[99]);
  int found = 0;
  void* address = nullptr;
  cudaMemcpyFromSymbol(&found, total, sizeof found);
  cudaGetSymbolAddress(&address, total);
  std::printf("%d %d\n", found, address == &total);
}
