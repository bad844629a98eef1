// Graphs that came from a capture: looking at their nodes, instantiating, replaying.
#include <algorithm>

#include "sim/calls/entry.hpp"

namespace gctx::sim {
namespace {

Graph* find_graph(Call& c, CUgraph handle, CUresult& result) {
  if (Graph* graph = c.machine.graphs.find(handle)) return graph;
  if (c.machine.graphs.is_stale(handle)) c.note(Misuse::use_after_destroy, handle, "the graph is destroyed");
  result = CUDA_ERROR_INVALID_VALUE;
  return nullptr;
}

GraphExec* find_exec(Call& c, CUgraphExec handle, CUresult& result) {
  if (GraphExec* exec = c.machine.graph_execs.find(handle)) return exec;
  if (c.machine.graph_execs.is_stale(handle)) {
    c.note(Misuse::use_after_destroy, handle, "the executable graph is destroyed");
  }
  result = CUDA_ERROR_INVALID_VALUE;
  return nullptr;
}

// Nodes are captured in an order in which each stands behind what it waits for, so that order is kept.
CUresult instantiate(Call& c, CUgraphExec* out, CUgraph handle, std::uint64_t flags) {
  CUresult result = CUDA_SUCCESS;
  const Graph* graph = find_graph(c, handle, result);
  if (graph == nullptr) return result;
  constexpr std::uint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                  CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                  CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (out == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  // Kernels do not launch anything here.
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  auto exec = std::make_unique<GraphExec>();
  c.machine.made(*exec);
  exec->flags = flags;
  for (const GraphNode* node : graph->nodes) {
    std::vector<std::size_t> after;
    for (const GraphNode* before : node->after) {
      const auto place = std::find(graph->nodes.begin(), graph->nodes.end(), before);
      after.push_back(static_cast<std::size_t>(place - graph->nodes.begin()));
    }
    exec->nodes.push_back(*node);
    exec->after.push_back(std::move(after));
  }
  return give(out, as_handle<CUgraphExec>(c.machine.graph_execs.add(std::move(exec))));
}

CUresult replay(Call& c, GraphExec& exec, Stream& stream) {
  if (stream.capture) return CUDA_ERROR_NOT_SUPPORTED;  // graphs in graphs are not modelled
  // Recorded: a node runs in the context it was captured in, whichever stream replays it.
  for (const GraphNode& node : exec.nodes) {
    const Context* context = c.machine.contexts.find(node.context_handle);
    if (context != nullptr && context->id == node.context_id) continue;
    c.note(Misuse::use_after_destroy, node.context_handle, "the context that a graph was captured in is destroyed");
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  GraphNode marker;
  const WorkPtr begin = submit(c, stream, marker);
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < exec.nodes.size(); ++i) {
    const GraphNode& node = exec.nodes[i];
    const Context& context = *c.machine.contexts.find(node.context_handle);
    auto work = std::make_shared<Work>();
    work->device = context.device;
    work->after = {begin, exec.last};
    for (const std::size_t before : exec.after[i]) work->after.push_back(works[before]);
    work->duration = node.duration;
    work->engine = node.engine;
    work->bytes = node.bytes;
    work->effect = node.effect;
    work->host = node.host;
    if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) work->grid = make_grid(c.machine, context, node.launch);
    c.machine.clock.submit(work);
    works.push_back(std::move(work));
  }
  auto end = std::make_shared<Work>();
  end->device = stream.device;
  end->after = works;
  end->after.push_back(begin);
  end->queues = stream.queues;
  end->connection = stream.connection;
  c.machine.clock.submit(end);
  stream.last = end;
  exec.last = end;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* out, unsigned flags) {
  return call<Fn::cuGraphCreate>([&](Call& c) {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    auto graph = std::make_unique<Graph>();
    c.machine.made(*graph);
    return give(out, as_handle<CUgraph>(c.machine.graphs.add(std::move(graph))));
  });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
  return call<Fn::cuGraphDestroy>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Graph* graph = find_graph(c, handle, result);
    if (graph == nullptr) return result;
    if (graph->hidden) return CUDA_ERROR_ILLEGAL_STATE;  // still being captured
    c.machine.drop(*graph);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  return call<Fn::cuGraphGetNodes>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Graph* graph = find_graph(c, handle, result);
    if (graph == nullptr) return result;
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (nodes != nullptr) {
      // Places beyond the last node are set to null, as the header says.
      for (std::size_t i = 0; i < *count; ++i) {
        nodes[i] = i < graph->nodes.size() ? as_handle<CUgraphNode>(*graph->nodes[i]) : nullptr;
      }
    }
    *count = nodes == nullptr ? graph->nodes.size() : std::min(*count, graph->nodes.size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return call<Fn::cuGraphNodeGetType>([&](Call& c) {
    const GraphNode* node = c.machine.graph_nodes.find(handle);
    return node == nullptr ? CUDA_ERROR_INVALID_VALUE : give(type, node->type);
  });
}

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
  return call<Fn::cuGraphKernelNodeGetParams_v2>([&](Call& c) {
    GraphNode* node = c.machine.graph_nodes.find(handle);
    if (node == nullptr || out == nullptr || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    LaunchPlan& plan = node->launch;
    node->argument_pointers.clear();
    for (auto& argument : plan.arguments) node->argument_pointers.push_back(argument.data());
    *out = {};
    if (c.machine.functions.find(plan.function) != nullptr) {
      out->func = plan.function;
    } else {
      out->kern = reinterpret_cast<CUkernel>(plan.function);
    }
    out->gridDimX = plan.grid[0];
    out->gridDimY = plan.grid[1];
    out->gridDimZ = plan.grid[2];
    out->blockDimX = plan.threads[0];
    out->blockDimY = plan.threads[1];
    out->blockDimZ = plan.threads[2];
    out->sharedMemBytes = plan.shared_bytes;
    out->kernelParams = node->argument_pointers.empty() ? nullptr : node->argument_pointers.data();
    out->ctx = reinterpret_cast<CUcontext>(node->context_handle);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return call<Fn::cuGraphInstantiateWithFlags>([&](Call& c) { return instantiate(c, out, graph, flags); });
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return call<Fn::cuGraphInstantiateWithParams>([&](Call& c) {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = nullptr;
    const CUresult result = instantiate(c, out, graph, params->flags);
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
  });
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream where) {
  return call<Fn::cuGraphUpload>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (find_exec(c, handle, result) != nullptr) find_stream(c, where, result);
    return result;
  });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream where) {
  return call<Fn::cuGraphLaunch>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    GraphExec* exec = find_exec(c, handle, result);
    Stream* stream = exec == nullptr ? nullptr : find_stream(c, where, result);
    return stream == nullptr ? result : replay(c, *exec, *stream);
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  return call<Fn::cuGraphExecDestroy>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const GraphExec* exec = find_exec(c, handle, result);
    if (exec == nullptr) return result;
    c.machine.graph_execs.remove(*exec);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return call<Fn::cuGraphExecGetFlags>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const GraphExec* exec = find_exec(c, handle, result);
    return exec == nullptr ? result : give(flags, static_cast<cuuint64_t>(exec->flags));
  });
}

}  // extern "C"
