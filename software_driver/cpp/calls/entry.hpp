// The frame of every call: it takes the lock, finds the machine, counts the call, refuses what the simulated version
// lacks, fails where a test asked for it, checks what the contract of the function says (abi/contract.hpp), and turns
// handles into objects.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "abi/contract.hpp"
#include "machine/graphs.hpp"
#include "machine/present.hpp"

namespace software_driver {

struct Call {
  Machine& machine;
  std::unique_lock<std::mutex>& lock;
  Fn function;
  ThreadState& thread;
  const std::uint64_t* arguments;  // as they were given
  Context* current = nullptr;      // there in every function whose contract needs a context

  int version() const noexcept { return machine.version(); }
  Device& device() const { return machine.device(current->device); }
  // Stamps a new object, which goes with the context where the contract says so.
  void made(Object& object) const;
  template <class Made>
  Made& add(HandleTable<Made>& table) const {
    auto object = std::make_unique<Made>();
    made(*object);
    return table.add(std::move(object));
  }
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

// Where the caller wants to know. What it must want to know, the contract says.
template <class T>
void give(T* out, const std::type_identity_t<T>& value) {
  if (out != nullptr) {
    *out = value;
  }
}
template <class Handle>
void give(Handle* out, const Object& object) {
  give(out, as_handle<Handle>(object));
}

// The value of a key in a table of pairs; null where it has none.
template <class Key, class Value, std::size_t size>
constexpr const Value* value_of(const std::pair<Key, Value> (&table)[size], std::type_identity_t<Key> key) {
  const auto* found = std::ranges::find(table, key, &std::pair<Key, Value>::first);
  return found == std::end(table) ? nullptr : &found->second;
}

// What there must be.
template <class T>
T& need(T* found, CUresult code) {
  refuse_if(found == nullptr, code);
  return *found;
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
#define SOFTWARE_DRIVER_FIND(object, handle_type, expression)              \
  template <>                                                              \
  inline object& find<object, handle_type>(Call & c, handle_type handle) { \
    return expression;                                                     \
  }
SOFTWARE_DRIVER_FIND(Device, CUdevice, find_device(c, handle))
SOFTWARE_DRIVER_FIND(Context, CUcontext, find_context(c, handle, contract(c.function).takes_current))
SOFTWARE_DRIVER_FIND(Context, CUgreenCtx, find_green(c, handle))
SOFTWARE_DRIVER_FIND(Stream, CUstream, find_stream(c, handle))
SOFTWARE_DRIVER_FIND(Event, CUevent, find_event(c, handle))
SOFTWARE_DRIVER_FIND(MemoryHandle, CUmemGenericAllocationHandle, find_memory(c, handle))
SOFTWARE_DRIVER_FIND(KernelCode, CUfunction, *find_code(c, handle))
SOFTWARE_DRIVER_FIND(KernelCode, CUkernel, *find_code(c, reinterpret_cast<CUfunction>(handle)))
#define SOFTWARE_DRIVER_TABLE(object, handle_type, table, code, gone) \
  SOFTWARE_DRIVER_FIND(object, handle_type, find_in(c, c.machine.table, handle, CUDA_ERROR_INVALID_##code, gone))
SOFTWARE_DRIVER_TABLE(Graph, CUgraph, graphs, VALUE, "the graph is destroyed")
SOFTWARE_DRIVER_TABLE(GraphNode, CUgraphNode, graph_nodes, VALUE, "the node is destroyed")
SOFTWARE_DRIVER_TABLE(GraphExec, CUgraphExec, graph_execs, VALUE, "the executable graph is destroyed")
SOFTWARE_DRIVER_TABLE(UserObject, CUuserObject, user_objects, VALUE, "the last reference to the user object is gone")
SOFTWARE_DRIVER_TABLE(Link, CUlinkState, links, HANDLE, "the link is destroyed")
SOFTWARE_DRIVER_TABLE(Pool, CUmemoryPool, pools, VALUE, "the memory pool is destroyed")
SOFTWARE_DRIVER_TABLE(Module, CUmodule, modules, HANDLE, "the module is unloaded")
SOFTWARE_DRIVER_TABLE(Library, CUlibrary, libraries, HANDLE, "the library is unloaded")
SOFTWARE_DRIVER_TABLE(Kernel, CUkernel, kernels, HANDLE, "the library of the kernel is unloaded")
SOFTWARE_DRIVER_TABLE(Function, CUfunction, functions, HANDLE, "the module of the function is unloaded")

// What the body of a function takes for an argument, as a number: the argument itself, or the address of the object
// that a handle names.
template <class Parameter, class Given>
std::uint64_t take(Call& call, std::uint64_t number) {
  if constexpr (std::is_reference_v<Parameter>) {
    return reinterpret_cast<std::uint64_t>(&find<std::remove_cvref_t<Parameter>>(call, argument_of<Given>(number)));
  } else {
    return number;
  }
}
// Likewise, and, where the function has no such argument, the parameter's own default.
struct LeftOut {};
template <class Parameter, class Given>
Parameter taken(std::uint64_t number) {
  if constexpr (std::is_reference_v<Parameter>) {
    return *reinterpret_cast<std::remove_reference_t<Parameter>*>(number);
  } else if constexpr (std::is_same_v<Given, LeftOut>) {
    return {};
  } else {
    return argument_of<Given>(number);
  }
}

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
CUresult carry_out(Fn function, const Arguments& arguments, CUresult (*body)(Call& call)) noexcept;

template <class T>
inline constexpr bool is_handle = false;
template <class T>
inline constexpr bool is_handle<T*> = !has_size<T> && !std::is_void_v<T> && !std::is_function_v<T>;

// The place of the argument that each parameter of a body takes: those `without` one, and those beyond the last, have
// none. Arguments beyond the last parameter are numbers and pointers that change nothing: the contract says what they
// may be.
using Places = std::array<std::size_t, 16>;
constexpr Places places_of(std::size_t given, std::initializer_list<std::size_t> without) {
  Places places{};
  std::size_t next = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool has_none = next == given || std::ranges::find(without, i) != without.end();
    places[i] = has_none ? given : next++;
  }
  return places;
}
// Of a call, which of its arguments are handles: whether each has its parameter.
constexpr bool takes_handles(std::size_t parameters, std::initializer_list<bool> handles) {
  return std::ranges::find(handles.begin() + std::min(parameters, handles.size()), handles.end(), true) ==
         handles.end();
}

template <class Answer, class... Parameters>
std::index_sequence_for<Parameters...> indices_of(Answer (*body)(Call&, Parameters...));

template <Fn function, class Signature, auto body, std::size_t... without>
struct Entry;

template <Fn function, class... Given, auto body, std::size_t... without>
struct Entry<function, CUresult(Given...), body, without...> {
  static CUresult CUDAAPI call(Given... given) noexcept {
    const std::uint64_t numbers[]{number_of_argument(given)..., 0};
    constexpr std::uint32_t needed = needed_of(function, {is_needed<Given>...});
    return carry_out(function, {numbers, needed}, [](Call& c) { return run(c, body, decltype(indices_of(body)){}); });
  }

 private:
  static constexpr Places places = places_of(sizeof...(Given), {without...});
  template <std::size_t i>
  using Argument = std::tuple_element_t<places[i], std::tuple<Given..., LeftOut>>;

  template <class Answer, class... Parameters, std::size_t... i>
  static CUresult run(Call& c, Answer (*)(Call&, Parameters...), std::index_sequence<i...>) {
    static_assert(takes_handles(sizeof...(Parameters) - sizeof...(without), {is_handle<Given>...}),
                  "a handle that no parameter takes would not be looked up");
    const std::uint64_t numbers[]{take<Parameters, Argument<i>>(c, c.arguments[places[i]])..., 0};
    if constexpr (contract(function).in_capture != InCapture::safe) {
      Subjects subjects;
      (subjects.take(taken<Parameters, Argument<i>>(numbers[i])), ...);
      spare_captures(c, subjects);
    }
    if constexpr (std::is_void_v<Answer>) {
      body(c, taken<Parameters, Argument<i>>(numbers[i])...);
      return CUDA_SUCCESS;
    } else {
      return body(c, taken<Parameters, Argument<i>>(numbers[i])...);
    }
  }
};

// The body of a function that says one thing of one object: `what` is a member of the object, or a function of it. The
// header has the object before the answer, or behind it.
template <class What>
struct Asked : Asked<decltype(&What::operator())> {};
template <class Object, class Value>
struct Asked<Value Object::*> {
  using Type = const Object;
};
template <class What, class Value, class Object>
struct Asked<Value (What::*)(Object&) const> {
  using Type = Object;
};
template <class Value, class Object>
struct Asked<Value (*)(Object&)> {
  using Type = Object;
};
template <class Signature, auto what, class Object = typename Asked<decltype(what)>::Type>
struct Says;
template <class Handle, class Out, auto what, class Object>
  requires has_size<Out>
struct Says<CUresult(Handle, Out*), what, Object> {
  static void body(Call&, Object& object, Out* out) { give(out, static_cast<Out>(std::invoke(what, object))); }
};
template <class Handle, class Out, auto what, class Object>
  requires has_size<Out>
struct Says<CUresult(Out*, Handle), what, Object> {
  static void body(Call& c, Out* out, Object& object) {
    Says<CUresult(Handle, Out*), what, Object>::body(c, object, out);
  }
};

// Defines a function of the driver: SOFTWARE_DRIVER_CALL(cuStreamGetId, Call&, Stream& stream, unsigned long long* id)
// { ... } The header says what callers pass, and the contract what of it arrives. A body that comes to its end has
// succeeded. SOFTWARE_DRIVER_QUERY: one that answers a code, as those do that are asked again and again.
//
// Rows, for functions that need no body of their own. SOFTWARE_DRIVER_ROW: the body is a function of the file, and the
// places of those of its parameters follow for which the driver's function has no argument. SOFTWARE_DRIVER_SAME:
// likewise, of the body of another. SOFTWARE_DRIVER_GET: what it says of an object.
#define SOFTWARE_DRIVER_CALL(symbol, ...) SOFTWARE_DRIVER_BODY(void, symbol, __VA_ARGS__)
#define SOFTWARE_DRIVER_QUERY(symbol, ...) SOFTWARE_DRIVER_BODY(CUresult, symbol, __VA_ARGS__)
#define SOFTWARE_DRIVER_BODY(answer, symbol, ...) \
  static answer body_of_##symbol(__VA_ARGS__);    \
  SOFTWARE_DRIVER_ROW(symbol, body_of_##symbol)   \
  static answer body_of_##symbol(__VA_ARGS__)
#define SOFTWARE_DRIVER_SAME(symbol, ...) SOFTWARE_DRIVER_ROW(symbol, body_of_##__VA_ARGS__)
#define SOFTWARE_DRIVER_GET(symbol, ...) \
  SOFTWARE_DRIVER_ROW(symbol, (&software_driver::Says<decltype(::symbol), __VA_ARGS__>::body))
#define SOFTWARE_DRIVER_ROW(symbol, ...)   \
  SOFTWARE_DRIVER_EXPORT(symbol, ::symbol, \
                         &software_driver::Entry<software_driver::Fn::symbol, decltype(::symbol), __VA_ARGS__>::call)

}  // namespace software_driver
