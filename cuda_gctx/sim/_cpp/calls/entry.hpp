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
// The code of a function, or of a kernel of a library.
std::shared_ptr<KernelCode> find_code(Call& call, CUfunction handle, CUresult& result);
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

// What the frame looks up for a body that takes an object where the function takes a handle.
Device* find(Call& call, CUdevice handle, CUresult& result, Device*);
Context* find(Call& call, CUcontext handle, CUresult& result, Context*);
Context* find(Call& call, CUgreenCtx handle, CUresult& result, Context*);
Stream* find(Call& call, CUstream handle, CUresult& result, Stream*);
Event* find(Call& call, CUevent handle, CUresult& result, Event*);
Graph* find(Call& call, CUgraph handle, CUresult& result, Graph*);
GraphNode* find(Call& call, CUgraphNode handle, CUresult& result, GraphNode*);
GraphExec* find(Call& call, CUgraphExec handle, CUresult& result, GraphExec*);
UserObject* find(Call& call, CUuserObject handle, CUresult& result, UserObject*);
Pool* find(Call& call, CUmemoryPool handle, CUresult& result, Pool*);
Module* find(Call& call, CUmodule handle, CUresult& result, Module*);
Library* find(Call& call, CUlibrary handle, CUresult& result, Library*);
Kernel* find(Call& call, CUkernel handle, CUresult& result, Kernel*);
Function* find(Call& call, CUfunction handle, CUresult& result, Function*);
KernelCode* find(Call& call, CUfunction handle, CUresult& result, KernelCode*);
KernelCode* find(Call& call, CUkernel handle, CUresult& result, KernelCode*);
Array* find(Call& call, CUarray handle, CUresult& result, Array*);
MipmappedArray* find(Call& call, CUmipmappedArray handle, CUresult& result, MipmappedArray*);
Texture* find(Call& call, CUtexObject handle, CUresult& result, Texture*);
Surface* find(Call& call, CUsurfObject handle, CUresult& result, Surface*);
MemoryHandle* find(Call& call, CUmemGenericAllocationHandle handle, CUresult& result, MemoryHandle*);

// An argument as the body of a function takes it: as it is, or the object that a handle names.
template <class Parameter, class Argument>
struct Taken {
  Taken(Call&, CUresult&, Argument given) : argument(given) {}
  Parameter get() const { return argument; }
  Argument argument;
};
template <class Object, class Argument>
struct Taken<Object&, Argument> {
  Taken(Call& call, CUresult& result, Argument given)
      : object(result == CUDA_SUCCESS ? find(call, given, result, static_cast<std::remove_const_t<Object>*>(nullptr))
                                      : nullptr) {}
  Object& get() const { return *object; }
  Object* object;
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
CUresult spare_captures(Call& call, const Subjects& subjects);

// Whether an argument of a function may have a value that a caller gave in a structure instead.
bool allows(Fn function, std::size_t index, std::uint64_t value);

// Compiled once.
CUresult carry_out(Fn function, const Arguments& arguments, const void* body,
                   CUresult (*run)(const void* body, Call& call)) noexcept;

template <Fn function, auto body, class Signature, class Body = decltype(body)>
struct Entry;

template <Fn function, auto body, class... Given, class... Parameters>
struct Entry<function, body, CUresult(Given...), CUresult (*)(Call&, Parameters...)> {
  static CUresult CUDAAPI call(Given... given) noexcept {
    static_assert(sizeof...(Given) == sizeof...(Parameters));
    const std::array<std::uint64_t, sizeof...(Given) + 1> numbers{number_of_argument(given)...};
    const auto run = [&](Call& call) {
      CUresult result = CUDA_SUCCESS;
      const std::tuple<Taken<Parameters, Given>...> taken{Taken<Parameters, Given>(call, result, given)...};
      if (result != CUDA_SUCCESS) {
        return result;
      }
      return std::apply(
          [&](const auto&... one) {
            if constexpr (contract(function).in_capture != InCapture::safe) {
              Subjects subjects;
              (subjects.take(one.get()), ...);
              if (result = spare_captures(call, subjects); result != CUDA_SUCCESS) {
                return result;
              }
            }
            return body(call, one.get()...);
          },
          taken);
    };
    return carry_out(function, {numbers.data(), needed_of<function, Given...>}, std::addressof(run),
                     [](const void* what, Call& call) { return (*static_cast<const decltype(run)*>(what))(call); });
  }
};

// Defines a function of the driver: GCTX_SIM_CALL(cuStreamGetId, Call&, Stream& stream, unsigned long long* id) { ... }
// The header says what callers pass, and the contract what of it arrives. GCTX_SIM_SAME: another version of it.
#define GCTX_SIM_CALL(symbol, ...)               \
  static CUresult body_of_##symbol(__VA_ARGS__); \
  GCTX_SIM_SAME(symbol, symbol)                  \
  static CUresult body_of_##symbol(__VA_ARGS__)
// The loader asks which address the exported name stands for before anything is initialised, a sanitizer's own state
// included.
#define GCTX_SIM_SAME(symbol, other)                                                                                   \
  extern "C" {                                                                                                         \
  __attribute__((no_sanitize("address", "thread", "undefined"), used)) static decltype(&::symbol) resolve_##symbol() { \
    return &gctx::sim::Entry<gctx::sim::Fn::symbol, &body_of_##other, decltype(::symbol)>::call;                       \
  }                                                                                                                    \
  __attribute__((visibility("default"), ifunc("resolve_" #symbol))) decltype(::symbol) symbol;                         \
  }

template <class T>
CUresult give(T* out, T value) {
  *out = value;
  return CUDA_SUCCESS;
}

}  // namespace gctx::sim
