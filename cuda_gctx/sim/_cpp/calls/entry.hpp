// The frame of every call: it takes the lock, finds the machine, counts the call, refuses what the simulated version
// lacks, fails where a test asked for it, checks what the contract of the function says (abi/contract.hpp), and turns
// handles into objects.
#pragma once

#include <array>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "abi/contract.hpp"
#include "machine/graphs.hpp"
#include "machine/present.hpp"

namespace gctx::sim {

struct Call {
  Machine& machine;
  std::unique_lock<std::mutex>& lock;
  Fn function;
  ThreadState& thread;
  const std::uint64_t* arguments;  // as they were given
  Context* current = nullptr;      // there in every function whose contract needs a context

  int version() const noexcept { return machine.version(); }
  Device& device() const { return machine.devices[static_cast<std::size_t>(current->device)]; }
  // Stamps a new object, which goes with the context where the contract says so.
  void made(Object& object) const;
  void note(Misuse kind, std::uint64_t handle, std::string detail) const;
  template <class Handle>
  void note(Misuse kind, Handle* handle, std::string detail) const {
    note(kind, reinterpret_cast<std::uint64_t>(handle), std::move(detail));
  }
};

// Ends the call with this code. What the call has changed until then stays, so it looks before it changes anything.
struct Refused {
  CUresult code;
};
[[noreturn]] void refuse(CUresult code);
inline void refuse_if(bool condition, CUresult code) {
  if (condition) {
    refuse(code);
  }
}

// Look-ups, which refuse what they do not find, and note the misuse.
Device& find_device(Call& call, CUdevice device);
// The context that is current to the calling thread.
Context& current_context(Call& call);
// A context handle; null means the current one only where `null_is_current`.
Context& find_context(Call& call, CUcontext handle, bool null_is_current = false);
Context& find_green(Call& call, CUgreenCtx handle);
// A stream handle, the special ones included, of a context that is alive.
Stream& find_stream(Call& call, CUstream handle);
Event& find_event(Call& call, CUevent handle);
MemoryHandle& find_memory(Call& call, CUmemGenericAllocationHandle handle);
// The code of a function, or of a kernel of a library.
std::shared_ptr<KernelCode> find_code(Call& call, CUfunction handle);
// An object of a table. `code` is the answer to any other handle, `gone` what is noted of one whose object is gone.
template <class Object, class Handle>
Object& find_in(Call& call, const HandleTable<Object>& table, Handle handle, CUresult code, const char* gone) {
  if (Object* object = table.find(handle)) {
    return *object;
  }
  if (table.is_stale(handle)) {
    call.note(Misuse::use_after_destroy, handle, gone);
  }
  refuse_if(table.is_orphan(handle), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  refuse(code);
}

// What a handle names, of each kind of object: the frame looks it up for a body that takes the object.
template <class Object, class Handle>
Object& find(Call& c, Handle handle);
#define GCTX_SIM_FIND(object, handle_type, expression)                     \
  template <>                                                              \
  inline object& find<object, handle_type>(Call & c, handle_type handle) { \
    return expression;                                                     \
  }
GCTX_SIM_FIND(Device, CUdevice, find_device(c, handle))
GCTX_SIM_FIND(Context, CUcontext, find_context(c, handle, contract(c.function).takes_current))
GCTX_SIM_FIND(Context, CUgreenCtx, find_green(c, handle))
GCTX_SIM_FIND(Stream, CUstream, find_stream(c, handle))
GCTX_SIM_FIND(Event, CUevent, find_event(c, handle))
GCTX_SIM_FIND(MemoryHandle, CUmemGenericAllocationHandle, find_memory(c, handle))
GCTX_SIM_FIND(KernelCode, CUfunction, *find_code(c, handle))
GCTX_SIM_FIND(KernelCode, CUkernel, *find_code(c, reinterpret_cast<CUfunction>(handle)))
#define GCTX_SIM_TABLE(object, handle_type, table, code, gone) \
  GCTX_SIM_FIND(object, handle_type, find_in(c, c.machine.table, handle, CUDA_ERROR_INVALID_##code, gone))
GCTX_SIM_TABLE(Graph, CUgraph, graphs, VALUE, "the graph is destroyed")
GCTX_SIM_TABLE(GraphNode, CUgraphNode, graph_nodes, VALUE, "the node is destroyed")
GCTX_SIM_TABLE(GraphExec, CUgraphExec, graph_execs, VALUE, "the executable graph is destroyed")
GCTX_SIM_TABLE(UserObject, CUuserObject, user_objects, VALUE, "the last reference to the user object is gone")
GCTX_SIM_TABLE(Pool, CUmemoryPool, pools, VALUE, "the memory pool is destroyed")
GCTX_SIM_TABLE(Texture, CUtexObject, textures, VALUE, "the texture is destroyed")
GCTX_SIM_TABLE(Surface, CUsurfObject, surfaces, VALUE, "the surface is destroyed")
GCTX_SIM_TABLE(Module, CUmodule, modules, HANDLE, "the module is unloaded")
GCTX_SIM_TABLE(Library, CUlibrary, libraries, HANDLE, "the library is unloaded")
GCTX_SIM_TABLE(Kernel, CUkernel, kernels, HANDLE, "the library of the kernel is unloaded")
GCTX_SIM_TABLE(Function, CUfunction, functions, HANDLE, "the module of the function is unloaded")
GCTX_SIM_TABLE(Array, CUarray, arrays, HANDLE, "the array is destroyed")
GCTX_SIM_TABLE(MipmappedArray, CUmipmappedArray, mipmapped_arrays, HANDLE, "the mipmapped array is destroyed")

// An argument as the body of a function takes it: as it is, or the object that a handle names.
template <class Parameter, class Argument>
struct Taken {
  Taken(Call&, Argument given) : argument(given) {}
  Parameter get() const { return argument; }
  Argument argument;
};
template <class Object, class Argument>
struct Taken<Object&, Argument> {
  Taken(Call& call, Argument given) : object(find<std::remove_const_t<Object>>(call, given)) {}
  Object& get() const { return object; }
  Object& object;
};

// What a call is about, of the objects that it names.
struct Subjects {
  const Stream* stream = nullptr;
  const Event* event = nullptr;
  const Context* context = nullptr;

  void take(const Stream& one) { stream = &one; }
  void take(const Event& one) { event = &one; }
  void take(const Context& one) { context = &one; }
  template <class Other>
  void take(const Other&) {}
};
// What the contract says of captures that are under way.
void spare_captures(Call& call, const Subjects& subjects);

// Whether an argument of a function may have a value that a caller gave in a structure instead.
bool allows(Fn function, std::size_t index, std::uint64_t value);

// Compiled once.
CUresult carry_out(Fn function, const Arguments& arguments, const void* body,
                   CUresult (*run)(const void* body, Call& call)) noexcept;

template <Fn function, auto body, class Signature, class Body = decltype(body)>
struct Entry;

template <Fn function, auto body, class Answer, class... Given, class... Parameters>
struct Entry<function, body, CUresult(Given...), Answer (*)(Call&, Parameters...)> {
  static CUresult CUDAAPI call(Given... given) noexcept {
    static_assert(sizeof...(Given) == sizeof...(Parameters));
    const std::array<std::uint64_t, sizeof...(Given) + 1> numbers{number_of_argument(given)...};
    const auto run = [&](Call& call) {
      const std::tuple<Taken<Parameters, Given>...> taken{Taken<Parameters, Given>(call, given)...};
      return std::apply(
          [&](const auto&... one) {
            if constexpr (contract(function).in_capture != InCapture::safe) {
              Subjects subjects;
              (subjects.take(one.get()), ...);
              spare_captures(call, subjects);
            }
            if constexpr (std::is_void_v<Answer>) {
              body(call, one.get()...);
              return CUDA_SUCCESS;
            } else {
              return body(call, one.get()...);
            }
          },
          taken);
    };
    return carry_out(function, {numbers.data(), needed_of<function, Given...>}, std::addressof(run),
                     [](const void* what, Call& call) { return (*static_cast<const decltype(run)*>(what))(call); });
  }
};

// Defines a function of the driver: GCTX_SIM_CALL(cuStreamGetId, Call&, Stream& stream, unsigned long long* id) { ... }
// The header says what callers pass, and the contract what of it arrives. A body that comes to its end has succeeded.
// GCTX_SIM_QUERY: one that answers a code, as those do that are asked again and again. GCTX_SIM_SAME: another version.
#define GCTX_SIM_CALL(symbol, ...) GCTX_SIM_BODY(void, symbol, __VA_ARGS__)
#define GCTX_SIM_QUERY(symbol, ...) GCTX_SIM_BODY(CUresult, symbol, __VA_ARGS__)
#define GCTX_SIM_BODY(answer, symbol, ...)     \
  static answer body_of_##symbol(__VA_ARGS__); \
  GCTX_SIM_SAME(symbol, symbol)                \
  static answer body_of_##symbol(__VA_ARGS__)
// The loader asks which address the exported name stands for before anything is initialised, a sanitizer's own state
// included.
#define GCTX_SIM_SAME(symbol, other)                                                                                   \
  extern "C" {                                                                                                         \
  __attribute__((no_sanitize("address", "thread", "undefined"), used)) static decltype(&::symbol) resolve_##symbol() { \
    return &gctx::sim::Entry<gctx::sim::Fn::symbol, &body_of_##other, decltype(::symbol)>::call;                       \
  }                                                                                                                    \
  __attribute__((visibility("default"), ifunc("resolve_" #symbol))) decltype(::symbol) symbol;                         \
  }

// Where the caller wants to know. What it must want to know, the contract says.
template <class T>
void give(T* out, const std::type_identity_t<T>& value) {
  if (out != nullptr) {
    *out = value;
  }
}

}  // namespace gctx::sim
