// Shared parts of the CUDA runtime's functions: errors, the device of a thread, and the frame of every call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <new>
#include <vector>

#include "abi/export.hpp"

namespace cuda_runtime {

// Ends a call with this error.
struct Failure {
  cudaError_t error;
};
[[noreturn]] void fail(cudaError_t error);
inline void fail_if(bool condition, cudaError_t error) {
  if (condition) {
    fail(error);
  }
}
// The numbers of cudaError_t are those of CUresult.
inline void check(CUresult result) { fail_if(result != CUDA_SUCCESS, static_cast<cudaError_t>(result)); }

// An address of device memory as the runtime and as the driver have it.
inline CUdeviceptr address_of(const void* pointer) { return std::bit_cast<CUdeviceptr>(pointer); }
inline void* pointer_of(CUdeviceptr address) { return std::bit_cast<void*>(address); }

// The grid, the block, the shared memory and the stream of a launch that the compiler's code has begun.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};

struct Thread {
  int device = 0;
  cudaError_t error = cudaSuccess;
  std::vector<LaunchShape> launches;
};
Thread& thread();

// Initialises the driver. Refuses drivers before 13.0.
void start();
// Starts, and makes the primary context of the thread's device current unless another context is.
void make_ready();
// Refuses drivers before this version.
void need_driver(int version);
// The primary context of a device, which stays retained.
CUcontext primary_context(int device);
// The device of the current context, or the one that the thread has chosen.
int current_device();
void set_device(int device);
void reset_device();

// The kernel that a host function or a kernel handle stands for, and the host function of a kernel.
CUkernel kernel_of(const void* function);
const void* host_function_of(CUkernel kernel);
// The device memory of a variable that the compiler registered.
struct Variable {
  CUdeviceptr address;
  std::size_t size;
};
Variable variable_of(const void* symbol);
// The same, with room for these bytes.
CUdeviceptr address_in(const void* symbol, std::size_t offset, std::size_t count);

// The driver's context of an execution context. Null stands for the current context only where `null_is_current`.
CUcontext context_of(cudaExecutionContext_t context, bool null_is_current = false);

// The driver's form of a copy. Arrays are not modelled.
CUmemorytype source_type(cudaMemcpyKind kind);
CUmemorytype destination_type(cudaMemcpyKind kind);
CUDA_MEMCPY3D driver_copy(const cudaMemcpy3DParms& copy);
CUDA_MEMCPY3D driver_copy(void* destination, const void* source, std::size_t count, cudaMemcpyKind kind);

CUlaunchConfig driver_config(const cudaLaunchConfig_t& config);

// How much of the runtime a call needs: nothing, the driver, or a current context as well.
enum class Needs { nothing, driver, context };

// Runs the body of a call. Keeps its error for cudaGetLastError.
template <class Body>
cudaError_t carry_out(Needs needs, Body&& body) noexcept {
  cudaError_t error = cudaErrorUnknown;
  try {
    if (needs == Needs::context) {
      make_ready();
    } else if (needs == Needs::driver) {
      start();
    }
    body();
    return cudaSuccess;
  } catch (const Failure& failure) {
    error = failure.error;
  } catch (const std::bad_alloc&) {
    error = cudaErrorMemoryAllocation;
  } catch (...) {
  }
  thread().error = error;
  return error;
}

template <Needs needs, auto body>
struct Entry;
template <Needs needs, class... Arguments, void (*body)(Arguments...)>
struct Entry<needs, body> {
  static cudaError_t call(Arguments... arguments) noexcept {
    return carry_out(needs, [&] { body(arguments...); });
  }
};

// A function of the runtime that is one of the driver: the arguments differ in their types alone.
template <Needs needs, class Signature, auto function>
struct Same;
template <Needs needs, class... Given, class... Taken, CUresult (*function)(Taken...)>
struct Same<needs, cudaError_t(Given...), function> {
  static_assert(((sizeof(Given) == sizeof(Taken)) && ...));
  static cudaError_t call(Given... given) noexcept {
    // NOLINTNEXTLINE: the types are handles, addresses, numbers, and structures of one layout
    return carry_out(needs, [&] { check(function((Taken)given...)); });
  }
};

// Defines a function: CUDART_CALL(Needs::context, cudaMalloc, void** pointer, std::size_t size) { ... }. A body that
// comes to its end has succeeded. CUDART_SAME: likewise, and the driver's function is the body.
#define CUDART_CALL(needs, symbol, ...)                                            \
  static void body_of_##symbol(__VA_ARGS__);                                       \
  SOFTWARE_DRIVER_EXPORT(symbol, ::symbol, &Entry<needs, &body_of_##symbol>::call) \
  static void body_of_##symbol(__VA_ARGS__)
#define CUDART_SAME(needs, symbol, function) \
  SOFTWARE_DRIVER_EXPORT(symbol, ::symbol, &Same<needs, decltype(::symbol), &::function>::call)

}  // namespace cuda_runtime
