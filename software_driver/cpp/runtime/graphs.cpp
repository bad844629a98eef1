// Graphs: nodes with the runtime's parameters, and executable graphs.
#include <cstring>

#include "runtime/runtime.hpp"

using namespace cuda_runtime;

namespace {

static_assert(sizeof(cudaGraphNodeParams) == sizeof(CUgraphNodeParams));
static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
static_assert(sizeof(cudaHostNodeParams) == sizeof(CUDA_HOST_NODE_PARAMS));
static_assert(sizeof(cudaMemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));

CUcontext current() { return context_of(nullptr, true); }

template <class Parameters>
const Parameters& need(const Parameters* parameters) {
  fail_if(parameters == nullptr, cudaErrorInvalidValue);
  return *parameters;
}

CUDA_KERNEL_NODE_PARAMS driver_kernel(const cudaKernelNodeParams& given) {
  CUDA_KERNEL_NODE_PARAMS made{};
  made.kern = kernel_of(given.func);
  made.gridDimX = given.gridDim.x;
  made.gridDimY = given.gridDim.y;
  made.gridDimZ = given.gridDim.z;
  made.blockDimX = given.blockDim.x;
  made.blockDimY = given.blockDim.y;
  made.blockDimZ = given.blockDim.z;
  made.sharedMemBytes = given.sharedMemBytes;
  made.kernelParams = given.kernelParams;
  made.extra = given.extra;
  return made;
}

CUDA_MEMSET_NODE_PARAMS driver_fill(const cudaMemsetParams& given) {
  return {address_of(given.dst), given.pitch, given.value, given.elementSize, given.width, given.height};
}

// The parameters of a node of any type. What the driver writes into its form goes back by `answer`.
class NodeParameters {
 public:
  explicit NodeParameters(cudaGraphNodeParams* given) : given_(*given) {
    fail_if(given == nullptr, cudaErrorInvalidValue);
    std::memcpy(&made, &given_, sizeof made);
    switch (given_.type) {
      case cudaGraphNodeTypeKernel:
        set_kernel(given_.kernel);
        return;
      case cudaGraphNodeTypeMemcpy:
        made.memcpy = {given_.memcpy.flags, given_.memcpy.reserved, context_of(given_.memcpy.ctx, true),
                       driver_copy(given_.memcpy.copyParams)};
        return;
      case cudaGraphNodeTypeMemset:
        made.memset.ctx = context_of(given_.memset.ctx, true);
        return;
      case cudaGraphNodeTypeConditional:
        made.conditional.ctx = context_of(given_.conditional.ctx, true);
        return;
      case cudaGraphNodeTypeHost:
        made.host.ctx = given_.host.ctx == nullptr ? nullptr : context_of(given_.host.ctx);
        return;
      default:
        return;
    }
  }
  void answer() const {
    if (given_.type == cudaGraphNodeTypeConditional) {
      given_.conditional.phGraph_out = made.conditional.phGraph_out;
    } else if (given_.type == cudaGraphNodeTypeMemAlloc) {
      given_.alloc.dptr = pointer_of(made.alloc.dptr);
    }
  }

  CUgraphNodeParams made{};

 private:
  void set_kernel(const cudaKernelNodeParamsV2& given) {
    made.kernel = {};
    if (given.functionType == cudaKernelFunctionTypeFunction) {
      made.kernel.func = reinterpret_cast<CUfunction>(given.cuFunc);
    } else {
      made.kernel.kern = kernel_of(given.func);
    }
    made.kernel.gridDimX = given.gridDim.x;
    made.kernel.gridDimY = given.gridDim.y;
    made.kernel.gridDimZ = given.gridDim.z;
    made.kernel.blockDimX = given.blockDim.x;
    made.kernel.blockDimY = given.blockDim.y;
    made.kernel.blockDimZ = given.blockDim.z;
    made.kernel.sharedMemBytes = given.sharedMemBytes;
    made.kernel.kernelParams = given.kernelParams;
    made.kernel.extra = given.extra;
    made.kernel.ctx = context_of(given.ctx, true);
  }
  cudaGraphNodeParams& given_;
};

void add_copy(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
              const CUDA_MEMCPY3D& copy) {
  check(cuGraphAddMemcpyNode(node, graph, after, count, &copy, current()));
}
void set_copy(cudaGraphNode_t node, const CUDA_MEMCPY3D& copy) { check(cuGraphMemcpyNodeSetParams(node, &copy)); }
void set_copy(cudaGraphExec_t executable, cudaGraphNode_t node, const CUDA_MEMCPY3D& copy) {
  check(cuGraphExecMemcpyNodeSetParams(executable, node, &copy, current()));
}
CUDA_MEMCPY3D copy_to(const void* symbol, const void* from, std::size_t count, std::size_t offset,
                      cudaMemcpyKind kind) {
  return driver_copy(pointer_of(address_in(symbol, offset, count)), from, count, kind);
}
CUDA_MEMCPY3D copy_from(void* to, const void* symbol, std::size_t count, std::size_t offset, cudaMemcpyKind kind) {
  return driver_copy(to, pointer_of(address_in(symbol, offset, count)), count, kind);
}

}  // namespace

CUDART_SAME(Needs::context, cudaGraphCreate, cuGraphCreate)
CUDART_SAME(Needs::context, cudaGraphDestroy, cuGraphDestroy)
CUDART_SAME(Needs::context, cudaGraphDestroyNode, cuGraphDestroyNode)
CUDART_SAME(Needs::context, cudaGraphClone, cuGraphClone)
CUDART_SAME(Needs::context, cudaGraphNodeFindInClone, cuGraphNodeFindInClone)
CUDART_SAME(Needs::context, cudaGraphGetNodes, cuGraphGetNodes)
CUDART_SAME(Needs::context, cudaGraphGetRootNodes, cuGraphGetRootNodes)
CUDART_SAME(Needs::context, cudaGraphGetEdges, cuGraphGetEdges)
CUDART_SAME(Needs::context, cudaGraphGetId, cuGraphGetId)
CUDART_SAME(Needs::context, cudaGraphNodeGetType, cuGraphNodeGetType)
CUDART_SAME(Needs::context, cudaGraphNodeGetDependencies, cuGraphNodeGetDependencies)
CUDART_SAME(Needs::context, cudaGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes)
CUDART_SAME(Needs::context, cudaGraphNodeGetContainingGraph, cuGraphNodeGetContainingGraph)
CUDART_SAME(Needs::context, cudaGraphNodeGetLocalId, cuGraphNodeGetLocalId)
CUDART_SAME(Needs::context, cudaGraphNodeGetToolsId, cuGraphNodeGetToolsId)
CUDART_SAME(Needs::context, cudaGraphNodeSetEnabled, cuGraphNodeSetEnabled)
CUDART_SAME(Needs::context, cudaGraphNodeGetEnabled, cuGraphNodeGetEnabled)
CUDART_SAME(Needs::context, cudaGraphAddDependencies, cuGraphAddDependencies)
CUDART_SAME(Needs::context, cudaGraphRemoveDependencies, cuGraphRemoveDependencies)
CUDART_SAME(Needs::context, cudaGraphDebugDotPrint, cuGraphDebugDotPrint)
CUDART_SAME(Needs::context, cudaGraphInstantiate, cuGraphInstantiateWithFlags)
CUDART_SAME(Needs::context, cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)
CUDART_SAME(Needs::context, cudaGraphExecDestroy, cuGraphExecDestroy)
CUDART_SAME(Needs::context, cudaGraphExecGetFlags, cuGraphExecGetFlags)
CUDART_SAME(Needs::context, cudaGraphExecGetId, cuGraphExecGetId)
CUDART_SAME(Needs::context, cudaGraphExecUpdate, cuGraphExecUpdate)
CUDART_SAME(Needs::context, cudaGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams)
CUDART_SAME(Needs::context, cudaUserObjectCreate, cuUserObjectCreate)
CUDART_SAME(Needs::context, cudaUserObjectRetain, cuUserObjectRetain)
CUDART_SAME(Needs::context, cudaUserObjectRelease, cuUserObjectRelease)
CUDART_SAME(Needs::context, cudaGraphRetainUserObject, cuGraphRetainUserObject)
CUDART_SAME(Needs::context, cudaGraphReleaseUserObject, cuGraphReleaseUserObject)

CUDART_SAME(Needs::context, cudaGraphAddEmptyNode, cuGraphAddEmptyNode)
CUDART_SAME(Needs::context, cudaGraphAddChildGraphNode, cuGraphAddChildGraphNode)
CUDART_SAME(Needs::context, cudaGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph)
CUDART_SAME(Needs::context, cudaGraphAddEventRecordNode, cuGraphAddEventRecordNode)
CUDART_SAME(Needs::context, cudaGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeGetEvent)
CUDART_SAME(Needs::context, cudaGraphEventRecordNodeSetEvent, cuGraphEventRecordNodeSetEvent)
CUDART_SAME(Needs::context, cudaGraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent)
CUDART_SAME(Needs::context, cudaGraphAddEventWaitNode, cuGraphAddEventWaitNode)
CUDART_SAME(Needs::context, cudaGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeGetEvent)
CUDART_SAME(Needs::context, cudaGraphEventWaitNodeSetEvent, cuGraphEventWaitNodeSetEvent)
CUDART_SAME(Needs::context, cudaGraphExecEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent)
CUDART_SAME(Needs::context, cudaGraphAddHostNode, cuGraphAddHostNode)
CUDART_SAME(Needs::context, cudaGraphHostNodeGetParams, cuGraphHostNodeGetParams)
CUDART_SAME(Needs::context, cudaGraphHostNodeSetParams, cuGraphHostNodeSetParams)
CUDART_SAME(Needs::context, cudaGraphExecHostNodeSetParams, cuGraphExecHostNodeSetParams)
CUDART_SAME(Needs::context, cudaGraphAddMemAllocNode, cuGraphAddMemAllocNode)
CUDART_SAME(Needs::context, cudaGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams)
CUDART_SAME(Needs::context, cudaGraphAddMemFreeNode, cuGraphAddMemFreeNode)
CUDART_SAME(Needs::context, cudaGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams)
CUDART_SAME(Needs::context, cudaGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute)
CUDART_SAME(Needs::context, cudaGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute)
CUDART_SAME(Needs::context, cudaGraphKernelNodeCopyAttributes, cuGraphKernelNodeCopyAttributes)

CUDART_CALL(Needs::context, cudaGraphConditionalHandleCreate, cudaGraphConditionalHandle* handle, cudaGraph_t graph,
            unsigned value, unsigned flags) {
  check(cuGraphConditionalHandleCreate(reinterpret_cast<CUgraphConditionalHandle*>(handle), graph, current(), value,
                                       flags));
}
CUDART_CALL(Needs::context, cudaGraphConditionalHandleCreate_v2, cudaGraphConditionalHandle* handle, cudaGraph_t graph,
            cudaExecutionContext_t context, unsigned value, unsigned flags) {
  check(cuGraphConditionalHandleCreate(reinterpret_cast<CUgraphConditionalHandle*>(handle), graph,
                                       context_of(context, true), value, flags));
}

CUDART_CALL(Needs::context, cudaGraphAddNode, cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
            const cudaGraphEdgeData* edges, std::size_t count, cudaGraphNodeParams* parameters) {
  NodeParameters all(parameters);
  check(cuGraphAddNode(node, graph, after, reinterpret_cast<const CUgraphEdgeData*>(edges), count, &all.made));
  all.answer();
}
CUDART_CALL(Needs::context, cudaGraphNodeSetParams, cudaGraphNode_t node, cudaGraphNodeParams* parameters) {
  NodeParameters all(parameters);
  check(cuGraphNodeSetParams(node, &all.made));
}
CUDART_CALL(Needs::context, cudaGraphExecNodeSetParams, cudaGraphExec_t executable, cudaGraphNode_t node,
            cudaGraphNodeParams* parameters) {
  NodeParameters all(parameters);
  check(cuGraphExecNodeSetParams(executable, node, &all.made));
}

CUDART_CALL(Needs::context, cudaGraphAddKernelNode, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t count, const cudaKernelNodeParams* parameters) {
  const auto made = driver_kernel(need(parameters));
  check(cuGraphAddKernelNode(node, graph, after, count, &made));
}
CUDART_CALL(Needs::context, cudaGraphKernelNodeSetParams, cudaGraphNode_t node,
            const cudaKernelNodeParams* parameters) {
  const auto made = driver_kernel(need(parameters));
  check(cuGraphKernelNodeSetParams(node, &made));
}
CUDART_CALL(Needs::context, cudaGraphExecKernelNodeSetParams, cudaGraphExec_t executable, cudaGraphNode_t node,
            const cudaKernelNodeParams* parameters) {
  const auto made = driver_kernel(need(parameters));
  check(cuGraphExecKernelNodeSetParams(executable, node, &made));
}
CUDART_CALL(Needs::context, cudaGraphKernelNodeGetParams, cudaGraphNode_t node, cudaKernelNodeParams* out) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  CUDA_KERNEL_NODE_PARAMS found{};
  check(cuGraphKernelNodeGetParams(node, &found));
  *out = {const_cast<void*>(host_function_of(found.kern)),
          {found.gridDimX, found.gridDimY, found.gridDimZ},
          {found.blockDimX, found.blockDimY, found.blockDimZ},
          found.sharedMemBytes,
          found.kernelParams,
          found.extra};
}

CUDART_CALL(Needs::context, cudaGraphAddMemcpyNode, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t count, const cudaMemcpy3DParms* copy) {
  add_copy(node, graph, after, count, driver_copy(need(copy)));
}
CUDART_CALL(Needs::context, cudaGraphAddMemcpyNode1D, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t after_count, void* to, const void* from, std::size_t count,
            cudaMemcpyKind kind) {
  add_copy(node, graph, after, after_count, driver_copy(to, from, count, kind));
}
CUDART_CALL(Needs::context, cudaGraphAddMemcpyNodeToSymbol, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t after_count, const void* symbol, const void* from,
            std::size_t count, std::size_t offset, cudaMemcpyKind kind) {
  add_copy(node, graph, after, after_count, copy_to(symbol, from, count, offset, kind));
}
CUDART_CALL(Needs::context, cudaGraphAddMemcpyNodeFromSymbol, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t after_count, void* to, const void* symbol, std::size_t count,
            std::size_t offset, cudaMemcpyKind kind) {
  add_copy(node, graph, after, after_count, copy_from(to, symbol, count, offset, kind));
}
CUDART_CALL(Needs::context, cudaGraphMemcpyNodeSetParams, cudaGraphNode_t node, const cudaMemcpy3DParms* copy) {
  set_copy(node, driver_copy(need(copy)));
}
CUDART_CALL(Needs::context, cudaGraphMemcpyNodeSetParams1D, cudaGraphNode_t node, void* to, const void* from,
            std::size_t count, cudaMemcpyKind kind) {
  set_copy(node, driver_copy(to, from, count, kind));
}
CUDART_CALL(Needs::context, cudaGraphMemcpyNodeSetParamsToSymbol, cudaGraphNode_t node, const void* symbol,
            const void* from, std::size_t count, std::size_t offset, cudaMemcpyKind kind) {
  set_copy(node, copy_to(symbol, from, count, offset, kind));
}
CUDART_CALL(Needs::context, cudaGraphMemcpyNodeSetParamsFromSymbol, cudaGraphNode_t node, void* to, const void* symbol,
            std::size_t count, std::size_t offset, cudaMemcpyKind kind) {
  set_copy(node, copy_from(to, symbol, count, offset, kind));
}
CUDART_CALL(Needs::context, cudaGraphExecMemcpyNodeSetParams, cudaGraphExec_t executable, cudaGraphNode_t node,
            const cudaMemcpy3DParms* copy) {
  set_copy(executable, node, driver_copy(need(copy)));
}
CUDART_CALL(Needs::context, cudaGraphExecMemcpyNodeSetParams1D, cudaGraphExec_t executable, cudaGraphNode_t node,
            void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
  set_copy(executable, node, driver_copy(to, from, count, kind));
}
CUDART_CALL(Needs::context, cudaGraphExecMemcpyNodeSetParamsToSymbol, cudaGraphExec_t executable, cudaGraphNode_t node,
            const void* symbol, const void* from, std::size_t count, std::size_t offset, cudaMemcpyKind kind) {
  set_copy(executable, node, copy_to(symbol, from, count, offset, kind));
}
CUDART_CALL(Needs::context, cudaGraphExecMemcpyNodeSetParamsFromSymbol, cudaGraphExec_t executable,
            cudaGraphNode_t node, void* to, const void* symbol, std::size_t count, std::size_t offset,
            cudaMemcpyKind kind) {
  set_copy(executable, node, copy_from(to, symbol, count, offset, kind));
}

CUDART_CALL(Needs::context, cudaGraphAddMemsetNode, cudaGraphNode_t* node, cudaGraph_t graph,
            const cudaGraphNode_t* after, std::size_t count, const cudaMemsetParams* parameters) {
  const auto made = driver_fill(need(parameters));
  check(cuGraphAddMemsetNode(node, graph, after, count, &made, current()));
}
CUDART_CALL(Needs::context, cudaGraphMemsetNodeSetParams, cudaGraphNode_t node, const cudaMemsetParams* parameters) {
  const auto made = driver_fill(need(parameters));
  check(cuGraphMemsetNodeSetParams(node, &made));
}
CUDART_CALL(Needs::context, cudaGraphExecMemsetNodeSetParams, cudaGraphExec_t executable, cudaGraphNode_t node,
            const cudaMemsetParams* parameters) {
  const auto made = driver_fill(need(parameters));
  check(cuGraphExecMemsetNodeSetParams(executable, node, &made, current()));
}
CUDART_CALL(Needs::context, cudaGraphMemsetNodeGetParams, cudaGraphNode_t node, cudaMemsetParams* out) {
  fail_if(out == nullptr, cudaErrorInvalidValue);
  CUDA_MEMSET_NODE_PARAMS found{};
  check(cuGraphMemsetNodeGetParams(node, &found));
  *out = {pointer_of(found.dst), found.pitch, found.value, found.elementSize, found.width, found.height};
}
