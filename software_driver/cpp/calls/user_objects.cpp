// User objects: what a program gives to graphs to keep.
#include "calls/entry.hpp"

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuUserObjectCreate, Call& c, CUuserObject* out, void* user, CUhostFn destroy, unsigned count) {
  UserObject& object = c.add(c.machine.user_objects);
  object.destroy = destroy;
  object.user = user;
  object.owned = count;
  give(out, object);
}

SOFTWARE_DRIVER_CALL(cuUserObjectRetain, Call&, UserObject& object, unsigned count) { object.owned += count; }

SOFTWARE_DRIVER_CALL(cuUserObjectRelease, Call& c, UserObject& object, unsigned count) {
  if (object.owned < count) {
    c.note(Misuse::double_destroy, object.handle, "more references are released than the program has");
    refuse(CUDA_ERROR_INVALID_VALUE);
  }
  let_go(c.machine, object, object.owned, count);
}

SOFTWARE_DRIVER_CALL(cuGraphRetainUserObject, Call& c, Graph& graph, UserObject& object, unsigned count,
                     unsigned flags) {
  const bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
  refuse_if(move && object.owned < count, CUDA_ERROR_INVALID_VALUE);
  keep(graph.kept, object, count);
  if (move) {
    let_go(c.machine, object, object.owned, count);
  }
}

SOFTWARE_DRIVER_CALL(cuGraphReleaseUserObject, Call& c, Graph& graph, UserObject& object, unsigned count) {
  const auto found = graph.kept.find(&object);
  if (found == graph.kept.end() || found->second < count) {  // recorded: the call succeeds
    return c.note(Misuse::double_destroy, object.handle, "more references are released than the graph has");
  }
  found->second -= count;
  if (found->second == 0) {
    graph.kept.erase(found);
  }
  let_go(c.machine, object, object.kept, count);
}
