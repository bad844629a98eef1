// The device calls of NVSHMEM that the exchange between nodes needs, through the headers of the installed NVSHMEM. They
// take seconds to compile, so they are compiled apart, once for a chip, and linked with NVSHMEM's device library.

// What the headers of NVSHMEM include, before the names below change.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cuda/std/cassert>
#include <cuda/std/climits>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

// They use these names of the standard library, which NVRTC does not have.
namespace std {
using cuda::std::is_integral;
using cuda::std::is_signed;
using cuda::std::is_unsigned;
}  // namespace std

// NVRTC's uint64_t is unsigned long long. Where the library was compiled it is unsigned long, which is another type in
// the names of its functions.
typedef unsigned long u64_of_library;
#define uint64_t u64_of_library
#include <device/nvshmemx_defines.h>

typedef unsigned int u32;
typedef unsigned long long u64;

// Counts up at another rank. Called by one thread.
extern "C" __device__ void nvshmem_count(u64 counter, u64 count, u32 rank) {
  nvshmemx_signal_op(reinterpret_cast<uint64_t*>(counter), count, NVSHMEM_SIGNAL_ADD, static_cast<int>(rank));
}

// Sends bytes to another rank, and then counts up there. Called by all threads of a block.
extern "C" __device__ void nvshmem_send(u64 to, u64 from, u64 bytes, u64 counter, u64 count, u32 rank) {
  nvshmemx_putmem_signal_block(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                               reinterpret_cast<uint64_t*>(counter), count, NVSHMEM_SIGNAL_ADD,
                               static_cast<int>(rank));
}
