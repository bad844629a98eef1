// Graphs: their nodes and edges, the copies of them that can be launched, and the objects of the program that they
// keep.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi/abi.hpp"
#include "machine/handles.hpp"
#include "machine/work.hpp"

namespace software_driver {

class Capture;
struct Graph;
struct GraphNode;
struct KernelCode;

inline std::uint64_t product(const std::array<unsigned, 3>& sizes) {
  return std::uint64_t{sizes[0]} * sizes[1] * sizes[2];
}

struct LaunchPlan {
  std::shared_ptr<KernelCode> code;
  CUfunction function = nullptr;
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> threads{};
  unsigned shared_bytes = 0;
  bool cooperative = false;
  bool programmatic = false;                  // may begin before what is in front of it has ended
  bool updatable = false;                     // by kernels, which have a handle of the node
  std::array<unsigned, 3> clusters{1, 1, 1};  // blocks of a cluster in each direction
  unsigned cluster = 1;                       // and together
  int priority = 0;
  std::vector<std::vector<unsigned char>> arguments;
};

// Something of the program that graphs keep. It is destroyed by the function that came with it when the last reference
// of the program and of the graphs is gone.
struct UserObject : Object {
  CUhostFn destroy = nullptr;
  void* user = nullptr;
  unsigned owned = 0;  // references of the program
  unsigned kept = 0;   // and of graphs
};
using KeptObjects = std::map<UserObject*, unsigned>;

// Decides whether the body of a conditional node runs. Kernels that are executed set it.
struct Condition : Object {
  Graph* graph = nullptr;
  unsigned initial = 0;
  bool assigned_at_launch = false;
  bool used = false;  // by a node
  unsigned value = 0;
  std::uint64_t sets = 0;  // by kernels
};

struct Edge {
  GraphNode* from = nullptr;
  CUgraphEdgeData data{};

  bool operator==(const Edge& other) const noexcept {
    return from == other.from && data.from_port == other.data.from_port && data.to_port == other.data.to_port &&
           data.type == other.data.type;
  }
};

// Those that are not there yet.
void extend(std::vector<Edge>& edges, const std::vector<Edge>& more);

// The copies of a batch, as the call that made it described them.
struct CopyBatch {
  std::vector<CUdeviceptr> targets;
  std::vector<CUdeviceptr> sources;
  std::vector<std::size_t> sizes;
  std::vector<CUmemcpyAttributes> attributes;
  std::vector<std::size_t> firsts;  // the copy from which on each of the attributes holds
};

// What a node does, and the context that it does it in.
struct Step : Task {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::uint64_t context_handle = 0;
  std::uint64_t context_id = 0;  // 0: wherever it is launched
  LaunchPlan launch;
  CUgraphNodeParams parameters{};       // as the calls that ask for them return them; a kernel's are its LaunchPlan
  std::vector<CUmemAccessDesc> access;  // of what it allocates
  CopyBatch batch;
};

// One step of a graph. Also what streams are given, whether or not they capture.
struct GraphNode : Object, Step {
  std::vector<void*> argument_pointers;  // for the calls that ask for the parameters of kernels
  Graph* graph = nullptr;
  unsigned number = 0;            // in its graph, in the order of their making
  std::uint64_t copied_from = 0;  // the id of a node
  std::uint64_t capture = 0;      // that made it, and that must not leave it unjoined
  std::vector<Edge> after;
  std::vector<Graph*> bodies;         // of a child graph, or of a condition
  std::vector<CUgraph> body_handles;  // of a condition, as the call that made it returned them
};

struct Graph : Object {
  std::vector<GraphNode*> nodes;  // in the order of their making
  std::vector<Condition*> conditions;
  KeptObjects kept;
  GraphNode* owner = nullptr;  // the node whose body this is
  Capture* capture = nullptr;  // that adds to it
  bool has_memory = false;     // nodes that allocate or free
  unsigned made = 0;           // nodes so far
};

// What is launched: copies, in an order in which each stands behind what it waits for.
struct ExecNode {
  GraphNode node;
  std::vector<std::size_t> after;  // places in the list
  bool enabled = true;
  unsigned initial = 0;  // of its condition
  bool assigned_at_launch = false;
  std::vector<std::vector<ExecNode>> bodies;
};
using ExecNodes = std::vector<ExecNode>;

// Those of bodies too.
template <class Nodes, class Visit>
void each_node(Nodes& nodes, Visit&& visit) {
  for (auto& one : nodes) {
    visit(one);
    for (auto& body : one.bodies) {
      each_node(body, visit);
    }
  }
}

struct GraphExec : Object {
  ExecNodes nodes;
  std::uint64_t graph_id = 0;
  bool has_memory = false;
  std::uint64_t flags = 0;
  KeptObjects kept;
  WorkPtr last;
};

// Whether it or a graph inside it is the target of a capture.
bool is_being_captured(const Graph& graph);
bool has_memory_nodes(const Graph& graph);
// With those of the graphs inside.
std::size_t count_nodes(const Graph& graph);
bool has_conditions(const Graph& graph);
// A graph keeps an object of the program.
void keep(KeptObjects& kept, UserObject& object, unsigned count);

}  // namespace software_driver
