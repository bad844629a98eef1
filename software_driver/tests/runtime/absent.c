// A function that is not modelled, and on drivers before 13.0 every function.
#include "program.h"

int main(void) {
  int count;
  cudaExternalMemory_t memory;
  SHOW(cudaGetDeviceCount(&count));
  SHOW(cudaImportExternalMemory(&memory, 0));
  SHOW(cudaImportExternalMemory(&memory, 0));
  SHOW(cudaGetLastError());
  return 0;
}
