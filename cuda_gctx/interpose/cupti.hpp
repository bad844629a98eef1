// The functions and records of CUPTI that the recorder uses.
//
// The package is built without CUPTI's headers, because it has to run with every CUPTI from 12.9 on that a program
// brings. The fields below stand at the same places in the records of 13.0 and 13.5: newer records only become longer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gctx::cupti {

constexpr int success = 0;

enum Kind : int {
  copy = 1,
  fill = 2,
  driver = 4,
  runtime = 5,
  context = 9,
  kernel = 10,
  synchronization = 38,
  graph = 51
};
// CUpti_ActivityAttribute.
constexpr int device_buffer_limit = 2;
// CUpti_driver_api_trace_cbid: cuDriverGetVersion, and the variants of cuLaunchKernel, cuLaunchCooperativeKernel,
// cuGraphLaunch and cuLaunchKernelEx.
constexpr std::uint32_t call_of_version = 2;
constexpr std::uint32_t recorded_driver_calls[] = {call_of_version, 307, 442, 477, 478, 514, 515, 652, 653};
// CUpti_runtime_api_trace_cbid: those of cudaLaunchKernel, cudaLaunchCooperativeKernel, cudaGraphLaunch,
// cudaLaunchKernelExC and __cudaLaunchKernel. Driver calls that the runtime makes are not recorded (seen on an H200).
constexpr std::uint32_t recorded_runtime_calls[] = {211, 214, 269, 270, 311, 312, 430, 431, 505, 506};
constexpr std::uint32_t flush_forced = 1;

using Request = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
using Complete = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                          std::size_t valid);

template <class Number>
Number read(const std::uint8_t* record, std::size_t offset) {
  Number value;
  std::memcpy(&value, record + offset, sizeof value);
  return value;
}

// The offsets of a kind of record's fields; `none`: it has no such field.
constexpr std::size_t none = 0;
struct Layout {
  std::size_t start, end, device, context, stream, correlation, graph, bytes, name;
};
constexpr Layout of_kernel{16, 24, 40, 44, 48, 92, 156, none, 104};
constexpr Layout of_copy{16, 24, 32, 36, 40, 44, 72, 8, none};
constexpr Layout of_fill{16, 24, 32, 36, 40, 44, 72, 8, none};
constexpr Layout of_graph{8, 16, 24, 32, 36, 4, 28, none, none};
constexpr Layout of_synchronization{8, 16, none, 28, 32, 24, none, none, none};
constexpr Layout of_call{8, 16, none, none, none, 32, none, none, none};
constexpr std::size_t function_of_driver_call = 4;

// CUpti_ActivityContext3.
struct ContextFields {
  static std::uint32_t id(const std::uint8_t* record) { return read<std::uint32_t>(record, 4); }
  static std::uint32_t device(const std::uint8_t* record) { return read<std::uint32_t>(record, 8); }
  static std::uint32_t parent(const std::uint8_t* record) { return read<std::uint32_t>(record, 16); }
  static bool is_green(const std::uint8_t* record) { return record[20] != 0; }
  static std::uint16_t sm_count(const std::uint8_t* record) { return read<std::uint16_t>(record, 22); }
};

}  // namespace gctx::cupti
