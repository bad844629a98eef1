// Replaces the header of this name in NVIDIA's compiler package: the runtime's header needs these words of nvcc, which
// mean nothing to another compiler.
#pragma once

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __cudart_builtin__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __host__
#define CUDARTAPI
#define CUDARTAPI_CDECL
