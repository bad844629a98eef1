// What every entry point of the driver does first: take the lock, find the machine, count the call, refuse what the
// simulated version lacks, and fail where a test asked for it.
#pragma once

#include <memory>
#include <type_traits>

#include "machine/graphs.hpp"
#include "machine/present.hpp"

namespace gctx::sim {

struct Call {
  Machine& machine;
  std::unique_lock<std::mutex>& lock;
  Fn function;
  ThreadState& thread;

  int version() const noexcept { return machine.version(); }
  void note(Misuse kind, std::uint64_t handle, std::string detail) const;
  template <class Handle>
  void note(Misuse kind, Handle* handle, std::string detail) const {
    note(kind, reinterpret_cast<std::uint64_t>(handle), std::move(detail));
  }
};

// The frame of every call, compiled once. Before cuInit only `early` functions work.
CUresult carry_out(Fn function, bool early, void* body, CUresult (*run)(void* body, Call& call)) noexcept;

template <Fn function, bool early = false, class Body>
CUresult call(Body&& body) noexcept {
  using Type = std::remove_reference_t<Body>;
  return carry_out(function, early, std::addressof(body),
                   [](void* given, Call& context) -> CUresult { return (*static_cast<Type*>(given))(context); });
}

// Look-ups. On failure they note the misuse, set `result` and return null.
Device* find_device(Call& call, CUdevice device, CUresult& result);
// The context that is current to the calling thread.
Context* current_context(Call& call, CUresult& result);
// A context handle; null means the current one only where `null_is_current`.
Context* find_context(Call& call, CUcontext handle, CUresult& result, bool null_is_current = false);
Context* find_green(Call& call, CUgreenCtx handle, CUresult& result);
// A stream handle, the special ones included, of a context that is alive.
Stream* find_stream(Call& call, CUstream handle, CUresult& result);
Event* find_event(Call& call, CUevent handle, CUresult& result);
Graph* find_graph(Call& call, CUgraph handle, CUresult& result);
GraphNode* find_node(Call& call, CUgraphNode handle, CUresult& result);
GraphExec* find_exec(Call& call, CUgraphExec handle, CUresult& result);
// An object of a table. `refusal` is the result of any other handle, `gone` what is noted of one whose object is gone.
template <class Object, class Handle>
Object* find_in(Call& call, const HandleTable<Object>& table, Handle handle, CUresult refusal, const char* gone,
                CUresult& result) {
  if (Object* object = table.find(handle)) {
    return object;
  }
  if (table.is_stale(handle)) {
    call.note(Misuse::use_after_destroy, handle, gone);
  }
  result = refusal;
  return nullptr;
}

// A call with what `find` looks up; where it returns null, the call returns the result that it set.
template <Fn function, class Find, class Body>
CUresult call_with(Find&& find, Body&& body) noexcept {
  return call<function>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    auto* found = find(c, result);
    return found == nullptr ? result : body(c, *found);
  });
}

template <Fn function, class Body>
CUresult with_stream(CUstream handle, Body&& body) noexcept {
  return call_with<function>([&](Call& c, CUresult& result) { return find_stream(c, handle, result); }, body);
}

// Whether the calling thread disturbs an active capture, of one context or of any (null): marks it invalid.
bool disturbs_capture(Call& call, const Context* context = nullptr);

template <class T>
CUresult give(T* out, T value) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = value;
  return CUDA_SUCCESS;
}

}  // namespace gctx::sim
