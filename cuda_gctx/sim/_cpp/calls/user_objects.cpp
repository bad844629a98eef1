// User objects: what a program gives to graphs to keep.
#include <climits>

#include "calls/entry.hpp"

namespace gctx::sim {
namespace {

UserObject* find_object(Call& c, CUuserObject handle, unsigned count, CUresult& result) {
  UserObject* object = find_in(c, c.machine.user_objects, handle, CUDA_ERROR_INVALID_VALUE,
                               "the last reference to the user object is gone", result);
  if (count > 0 && count <= INT_MAX) {
    return object;
  }
  result = CUDA_ERROR_INVALID_VALUE;
  return nullptr;
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* out, void* user, CUhostFn destroy, unsigned count, unsigned flags) {
  return call<Fn::cuUserObjectCreate>([&](Call& c) {
    const bool valid = out != nullptr && destroy != nullptr && count > 0 && count <= INT_MAX &&
                       flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    if (!valid) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto object = std::make_unique<UserObject>();
    c.machine.made(*object);
    object->destroy = destroy;
    object->user = user;
    object->owned = count;
    return give(out, as_handle<CUuserObject>(c.machine.user_objects.add(std::move(object))));
  });
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned count) {
  return call<Fn::cuUserObjectRetain>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    if (UserObject* object = find_object(c, handle, count, result)) {
      object->owned += count;
    }
    return result;
  });
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned count) {
  return call<Fn::cuUserObjectRelease>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    UserObject* object = find_object(c, handle, count, result);
    if (object == nullptr) {
      return result;
    }
    if (object->owned < count) {
      c.note(Misuse::double_destroy, handle, "more references are released than the program has");
      return CUDA_ERROR_INVALID_VALUE;
    }
    let_go(c.machine, *object, object->owned, count);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
  return call<Fn::cuGraphRetainUserObject>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Graph* graph = find_graph(c, graph_handle, result);
    UserObject* object = graph == nullptr ? nullptr : find_object(c, handle, count, result);
    if (object == nullptr) {
      return result;
    }
    const bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if ((flags != 0 && !move) || (move && object->owned < count)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    keep(graph->kept, *object, count);
    if (move) {
      let_go(c.machine, *object, object->owned, count);
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
  return call<Fn::cuGraphReleaseUserObject>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Graph* graph = find_graph(c, graph_handle, result);
    UserObject* object = graph == nullptr ? nullptr : find_object(c, handle, count, result);
    if (object == nullptr) {
      return result;
    }
    const auto found = graph->kept.find(object);
    if (found == graph->kept.end() || found->second < count) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second -= count;
    if (found->second == 0) {
      graph->kept.erase(found);
    }
    let_go(c.machine, *object, object->kept, count);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
