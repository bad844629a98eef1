// Graphs that are built of nodes, on the software driver: what runs, in which order, and what is refused; and the kinds
// of memory that their nodes move.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.hpp"
#include "tests/sim_library.hpp"

namespace {

using software_driver::test::symbol;

#define OK(name, ...) CHECK(CALL(name, __VA_ARGS__) == CUDA_SUCCESS)
#define REFUSED(code, name, ...) CHECK(CALL(name, __VA_ARGS__) == (code))

constexpr CUcontext current = nullptr;
constexpr std::size_t bytes = 4096;
constexpr const char* program = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 address, .param .u32 count) { ret; }
)";

// A machine with a current context and a stream.
struct Bench {
  CUcontext context = nullptr;
  CUstream stream = nullptr;

  explicit Bench(const char* spec = "h200@13.0") {
    software_driver::test::configure(spec);
    OK(cuInit, 0);
    OK(cuDevicePrimaryCtxRetain, &context, 0);
    OK(cuCtxSetCurrent, context);
    OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  }

  CUdeviceptr memory(std::size_t size = bytes) const {
    CUdeviceptr made = 0;
    OK(cuMemAlloc_v2, &made, size);
    return made;
  }

  CUgraphExec instantiate(CUgraph graph) const {
    CUgraphExec exec = nullptr;
    OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
    return exec;
  }

  void run(CUgraphExec exec) const {
    OK(cuGraphLaunch, exec, stream);
    OK(cuStreamSynchronize, stream);
  }
};

CUgraph new_graph() {
  CUgraph graph = nullptr;
  OK(cuGraphCreate, &graph, 0);
  return graph;
}

CUgraphNode fill_node(CUgraph graph, CUdeviceptr to, unsigned value, const std::vector<CUgraphNode>& after = {}) {
  const CUDA_MEMSET_NODE_PARAMS_v1 fill{to, 0, value, 1, bytes, 1};
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemsetNode, &node, graph, after.data(), after.size(), &fill, current);
  return node;
}

CUDA_MEMCPY3D_v2 between(CUdeviceptr to, CUdeviceptr from) {
  CUDA_MEMCPY3D_v2 copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUgraphNode copy_node(CUgraph graph, CUdeviceptr to, CUdeviceptr from, const std::vector<CUgraphNode>& after = {}) {
  const CUDA_MEMCPY3D_v2 copy = between(to, from);
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemcpyNode, &node, graph, after.data(), after.size(), &copy, current);
  return node;
}

CUgraphNode empty_node(CUgraph graph, const std::vector<CUgraphNode>& after = {}) {
  CUgraphNode node = nullptr;
  OK(cuGraphAddEmptyNode, &node, graph, after.data(), after.size());
  return node;
}

unsigned char first_byte(CUdeviceptr address) {
  unsigned char value = 0;
  OK(cuMemcpyDtoH_v2, &value, address, 1);
  return value;
}

void nodes_run_behind_what_they_wait_for() {
  const Bench bench;
  const CUdeviceptr a = bench.memory();
  const CUdeviceptr b = bench.memory();
  const CUgraph graph = new_graph();
  // Made in the wrong order, and put right by edges.
  const CUgraphNode copy = copy_node(graph, b, a);
  const CUgraphNode fill = fill_node(graph, a, 7);
  OK(cuGraphAddDependencies_v2, graph, &fill, &copy, nullptr, 1);
  bench.run(bench.instantiate(graph));
  CHECK(first_byte(b) == 7);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2, graph, &fill, &copy, nullptr, 1);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2, graph, &fill, &fill, nullptr, 1);
  // A circle is found when it is to become executable.
  OK(cuGraphAddDependencies_v2, graph, &copy, &fill, nullptr, 1);
  CUgraphExec exec = nullptr;
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags, &exec, graph, 0);
  OK(cuGraphRemoveDependencies_v2, graph, &copy, &fill, nullptr, 1);
  std::array<CUgraphNode, 4> from{};
  std::array<CUgraphNode, 4> to{};
  std::size_t count = from.size();
  OK(cuGraphGetEdges_v2, graph, from.data(), to.data(), nullptr, &count);
  CHECK(count == 1 && from[0] == fill && to[0] == copy && from[1] == nullptr);
  count = 4;
  OK(cuGraphGetRootNodes, graph, from.data(), &count);
  CHECK(count == 1 && from[0] == fill);
  OK(cuGraphDestroyNode, fill);
  count = 4;
  OK(cuGraphNodeGetDependencies_v2, copy, from.data(), nullptr, &count);
  CHECK(count == 0);
}

void an_executable_graph_is_a_copy_that_can_be_changed() {
  const Bench bench;
  const CUdeviceptr a = bench.memory();
  const CUgraph graph = new_graph();
  const CUgraphNode fill = fill_node(graph, a, 1);
  const CUgraphExec exec = bench.instantiate(graph);
  CUDA_MEMSET_NODE_PARAMS_v1 other{a, 0, 2, 1, bytes, 1};
  OK(cuGraphMemsetNodeSetParams, fill, &other);
  bench.run(exec);
  CHECK(first_byte(a) == 1);
  other.value = 3;
  OK(cuGraphExecMemsetNodeSetParams, exec, fill, &other, current);
  bench.run(exec);
  CHECK(first_byte(a) == 3);
  CUgraphExecUpdateResultInfo information{};
  OK(cuGraphExecUpdate_v2, exec, graph, &information);
  CHECK(information.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  bench.run(exec);
  CHECK(first_byte(a) == 2);
  OK(cuMemsetD8_v2, a, 9, bytes);
  OK(cuGraphNodeSetEnabled, exec, fill, 0);
  bench.run(exec);
  CHECK(first_byte(a) == 9);
  const CUgraph different = new_graph();
  const CUgraphNode only = empty_node(different);
  REFUSED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2, exec, different, &information);
  CHECK(information.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && information.errorNode == only);
}

void a_child_graph_is_a_copy_too() {
  const Bench bench;
  const CUdeviceptr a = bench.memory();
  const CUgraph child = new_graph();
  const CUgraphNode inner = fill_node(child, a, 5);
  const CUgraph parent = new_graph();
  CUgraphNode node = nullptr;
  CUgraph inside = nullptr;
  CUgraphNode found = nullptr;
  OK(cuGraphAddChildGraphNode, &node, parent, nullptr, 0, child);
  OK(cuGraphChildGraphNodeGetGraph, node, &inside);
  CHECK(inside != child);
  OK(cuGraphNodeFindInClone, &found, inner, inside);
  CHECK(found != nullptr && found != inner);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy, inside);
  OK(cuGraphDestroy, child);
  bench.run(bench.instantiate(parent));
  CHECK(first_byte(a) == 5);
}

void memory_of_a_graph_is_in_use_from_launch_to_free() {
  const Bench bench;
  const CUgraph graph = new_graph();
  CUDA_MEM_ALLOC_NODE_PARAMS_v1 wanted{};
  wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  wanted.bytesize = bytes;
  CUgraphNode allocate = nullptr;
  OK(cuGraphAddMemAllocNode, &allocate, graph, nullptr, 0, &wanted);
  const CUgraphNode fill = fill_node(graph, wanted.dptr, 4, {allocate});
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, wanted.dptr);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode, fill);
  CUgraph copy = nullptr;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone, &copy, graph);
  const CUgraphExec exec = bench.instantiate(graph);
  CUgraphExec second = nullptr;
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags, &second, graph, 0);
  bench.run(exec);
  CHECK(first_byte(wanted.dptr) == 4);
  std::uint64_t used = 0;
  OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
  CHECK(used == bytes);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch, exec, bench.stream);
  OK(cuMemFreeAsync, wanted.dptr, bench.stream);
  bench.run(exec);
  OK(cuMemFree_v2, wanted.dptr);
  OK(cuGraphExecDestroy, exec);
  OK(cuGraphDestroy, graph);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, wanted.dptr);
  OK(cuDeviceGraphMemTrim, 0);
  OK(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
  CHECK(used == 0);
}

void a_captured_allocation_is_memory_of_the_graph() {
  const Bench bench;
  CUdeviceptr made = 0;
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture_v2, bench.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(cuMemAllocAsync, &made, bytes, bench.stream);
  OK(cuMemsetD8Async, made, 1, bytes, bench.stream);
  OK(cuMemFreeAsync, made, bench.stream);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync, made, bench.stream);
  OK(cuStreamEndCapture, bench.stream, &graph);
  const CUgraphExec exec = bench.instantiate(graph);
  bench.run(exec);
  bench.run(exec);
  // Freed by the graph, never by the program.
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, made);
}

void conditions_choose_the_body_that_runs() {
  const Bench bench;
  for (const unsigned value : {0U, 1U}) {
    const CUdeviceptr a = bench.memory();
    OK(cuMemsetD8_v2, a, 9, bytes);
    const CUgraph graph = new_graph();
    CUgraphNodeParams wanted{};
    wanted.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    OK(cuGraphConditionalHandleCreate, &wanted.conditional.handle, graph, bench.context, value,
       CU_GRAPH_COND_ASSIGN_DEFAULT);
    wanted.conditional.type = CU_GRAPH_COND_TYPE_IF;
    wanted.conditional.size = 2;
    wanted.conditional.ctx = bench.context;
    CUgraphNode node = nullptr;
    OK(cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &wanted);
    fill_node(wanted.conditional.phGraph_out[0], a, 1);
    fill_node(wanted.conditional.phGraph_out[1], a, 2);
    bench.run(bench.instantiate(graph));
    CHECK(first_byte(a) == (value != 0 ? 1 : 2));
    // One node to a condition; and a condition of another graph is none of this.
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &wanted);
    OK(cuGraphConditionalHandleCreate, &wanted.conditional.handle, new_graph(), bench.context, 0, 0);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &wanted);
  }
}

void a_loop_ends() {
  const Bench bench;
  const CUdeviceptr a = bench.memory();
  const CUgraph graph = new_graph();
  CUgraphNodeParams wanted{};
  wanted.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  OK(cuGraphConditionalHandleCreate, &wanted.conditional.handle, graph, bench.context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  wanted.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  wanted.conditional.size = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &wanted);
  fill_node(wanted.conditional.phGraph_out[0], a, 6);
  bench.run(bench.instantiate(graph));
  CHECK(first_byte(a) == 6);
}

void events_of_graphs_order_streams() {
  const Bench bench;
  CUevent event = nullptr;
  OK(cuEventCreate, &event, CU_EVENT_DEFAULT);
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  OK(cuGraphAddEventRecordNode, &node, graph, nullptr, 0, event);
  const CUgraphExec exec = bench.instantiate(graph);
  OK(cuGraphLaunch, exec, bench.stream);
  OK(cuEventSynchronize, event);
  CHECK(CALL(cuEventQuery, event) == CUDA_SUCCESS);
  // An event that is gone stops nobody.
  OK(cuEventDestroy_v2, event);
  bench.run(exec);
}

void objects_go_when_the_last_graph_has_let_go() {
  const Bench bench;
  std::atomic<int> destroyed{0};
  CUuserObject object = nullptr;
  OK(
      cuUserObjectCreate, &object, &destroyed, [](void* user) { ++*static_cast<std::atomic<int>*>(user); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  const CUgraph graph = new_graph();
  empty_node(graph);
  OK(cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease, object, 1);
  const CUgraphExec exec = bench.instantiate(graph);
  OK(cuGraphDestroy, graph);
  bench.run(exec);
  CHECK(destroyed == 0);
  OK(cuGraphExecDestroy, exec);
  while (destroyed == 0) {
    std::this_thread::yield();
  }
  CHECK(destroyed == 1);
}

void a_capture_adds_to_a_graph_of_the_program() {
  const Bench bench;
  const CUdeviceptr a = bench.memory();
  const CUdeviceptr b = bench.memory();
  const CUgraph graph = new_graph();
  const CUgraphNode fill = fill_node(graph, a, 8);
  OK(cuStreamBeginCaptureToGraph, bench.stream, graph, &fill, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED);
  REFUSED(CUDA_ERROR_ILLEGAL_STATE, cuGraphDestroy, graph);
  REFUSED(CUDA_ERROR_ILLEGAL_STATE, cuGraphDestroyNode, fill);
  OK(cuMemcpyDtoDAsync_v2, b, a, bytes, bench.stream);
  // What is taken out of the way of the capture need not be joined.
  OK(cuStreamUpdateCaptureDependencies_v2, bench.stream, nullptr, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  CUgraph ended = nullptr;
  OK(cuStreamEndCapture, bench.stream, &ended);
  CHECK(ended == graph);
  bench.run(bench.instantiate(graph));
  CHECK(first_byte(b) == 8);
}

void parameters_come_back_as_they_were_given() {
  const Bench bench("h200@13.2");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData, &module, program);
  OK(cuModuleGetFunction, &function, module, "work");
  std::uint64_t address = 77;
  unsigned count = 3;
  void* arguments[] = {&address, &count};
  const CUDA_KERNEL_NODE_PARAMS_v2 kernel{function, 2, 1, 1, 64, 1, 1, 0, arguments, nullptr, nullptr, nullptr};
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  OK(cuGraphAddKernelNode_v2, &node, graph, nullptr, 0, &kernel);
  CUgraphNodeParams found{};
  OK(cuGraphNodeGetParams, node, &found);
  CHECK(found.type == CU_GRAPH_NODE_TYPE_KERNEL && found.kernel.func == function && found.kernel.gridDimX == 2);
  CHECK(*static_cast<std::uint64_t*>(found.kernel.kernelParams[0]) == 77 && found.kernel.ctx == bench.context);
  CUDA_KERNEL_NODE_PARAMS_v2 wide = kernel;
  wide.blockDimX = 2048;
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetParams_v2, node, &wide);
  bench.run(bench.instantiate(graph));
}

void rows_are_copied_within_their_bounds() {
  const Bench bench;
  constexpr std::size_t width = 16;
  constexpr std::size_t height = 4;
  constexpr std::size_t pitch = 64;
  const CUdeviceptr packed = bench.memory(width * height);
  std::vector<unsigned char> source(width * height);
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<unsigned char>(i);
  }
  CUDA_MEMCPY2D_v2 in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = source.data();
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = packed;
  in.WidthInBytes = width;
  in.Height = height;
  OK(cuMemcpy2D_v2, &in);
  const CUdeviceptr pitched = bench.memory(pitch * height);
  CUDA_MEMCPY2D_v2 out{};
  out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  out.srcDevice = packed;
  out.srcPitch = width;
  out.srcXInBytes = 4;
  out.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  out.dstDevice = pitched;
  out.dstPitch = pitch;
  out.WidthInBytes = width - 4;
  out.Height = height;
  OK(cuMemcpy2D_v2, &out);
  CHECK(first_byte(pitched) == 4 && first_byte(pitched + pitch) == width + 4);
  out.srcXInBytes = 5;
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &out);
  out.srcXInBytes = 0;
  out.Height = height + 1;
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &out);
  out.Height = height;
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemcpy2D_v2, &out);
}

void managed_memory_remembers_what_was_said_of_it() {
  const Bench bench;
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged, &managed, bytes, CU_MEM_ATTACH_GLOBAL);
  // The host may touch it at any time.
  std::memset(reinterpret_cast<void*>(managed), 3, bytes);
  CHECK(first_byte(managed) == 3);
  int value = 0;
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  OK(cuMemPrefetchAsync_v2, managed, bytes, device, 0, bench.stream);
  OK(cuMemRangeGetAttribute, &value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, managed, bytes);
  CHECK(value == 0);
  OK(cuMemRangeGetAttribute, &value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, managed, bytes);
  CHECK(value == CU_DEVICE_INVALID);
  OK(cuMemAdvise_v2, managed, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
  OK(cuMemRangeGetAttribute, &value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, bytes);
  CHECK(value == 1);
  const CUdeviceptr plain = bench.memory();
  REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2, plain, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
  OK(cuMemFree_v2, managed);
}

}  // namespace

int main() {
  if (!software_driver::test::open_library()) {
    return 2;
  }
  nodes_run_behind_what_they_wait_for();
  an_executable_graph_is_a_copy_that_can_be_changed();
  a_child_graph_is_a_copy_too();
  memory_of_a_graph_is_in_use_from_launch_to_free();
  a_captured_allocation_is_memory_of_the_graph();
  conditions_choose_the_body_that_runs();
  a_loop_ends();
  events_of_graphs_order_streams();
  objects_go_when_the_last_graph_has_let_go();
  a_capture_adds_to_a_graph_of_the_program();
  parameters_come_back_as_they_were_given();
  rows_are_copied_within_their_bounds();
  managed_memory_remembers_what_was_said_of_it();
  return software_driver::test::summary("sim_graph_test");
}
