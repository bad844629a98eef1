// The checks that every call goes through, and the look-ups that turn handles into objects.
#include "calls/entry.hpp"

#include <algorithm>
#include <atomic>
#include <new>

namespace gctx::sim {
namespace {

std::uint64_t number(const void* handle) { return reinterpret_cast<std::uint64_t>(handle); }

// Virtual time that a call takes the host: medians of docs/appendix/hardware-facts.md, else assumed.
std::uint64_t host_cost(Fn function) {
  switch (function) {
    case Fn::cuGreenCtxCreate:
      return 930'000;
    case Fn::cuGreenCtxDestroy:
      return 6'000;
    case Fn::cuDevResourceGenerateDesc:
      return 4'200;
    case Fn::cuDevSmResourceSplitByCount:
    case Fn::cuDevSmResourceSplit:
      return 1'090;
    case Fn::cuGreenCtxStreamCreate:
    case Fn::cuStreamCreate:
    case Fn::cuStreamCreateWithPriority:
      return 900;
    case Fn::cuLaunchKernel:
    case Fn::cuLaunchKernelEx:
    case Fn::cuLaunchCooperativeKernel:
      return 2'000;
    default:
      return 100;
  }
}

// CUDA_SUCCESS, or why the call is not carried out.
CUresult admit(Present& here, Fn function) {
  const Contract& wanted = contract(function);
  if (std::atomic_ref(here.over).load(std::memory_order_relaxed)) {
    return CUDA_ERROR_DEINITIALIZED;
  }
  // The real driver does not survive a fork: in the child nothing is initialised, and nothing can be.
  if (here.forked) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (!here.machine) {
    if (!wanted.is_early) {
      return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!start(here)) {
      return CUDA_ERROR_NO_DEVICE;
    }
  }
  Machine& machine = *here.machine;
  ++machine.calls[static_cast<std::size_t>(function)];
  ++machine.calls_made;
  if (info(function).since > machine.version()) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!machine.initialized && !wanted.is_early) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  machine.clock.pass(host_cost(function));
  if (!machine.faults.rules.empty()) {
    if (const auto code = machine.faults.next(function)) {
      return *code;
    }
  }
  return HostThreads::is_inside_function() && !wanted.in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

// What the contract says of the arguments and of the thread.
CUresult check(Call& call, const Arguments& arguments) {
  const Contract& wanted = contract(call.function);
  if (wanted.needs_context) {
    CUresult result = CUDA_SUCCESS;
    call.current = current_context(call, result);
    if (call.current == nullptr) {
      return result;
    }
  }
  return fits(call.function, arguments, call.version()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Whether the calling thread disturbs an active capture, of one context or of any (null): marks it invalid.
bool disturbs_capture(Call& c, const Context* context) {
  bool any = false;
  if (c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return false;
  }
  c.machine.streams.each([&](Stream& stream) {
    if (!stream.capture || !stream.capture->is_active()) {
      return;
    }
    if (context != nullptr && stream.context != context) {
      return;
    }
    Capture& capture = *stream.capture;
    const bool own = capture.thread() == c.thread.serial;
    const bool disturbed =
        (capture.mode() == CU_STREAM_CAPTURE_MODE_GLOBAL && c.thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) ||
        (capture.mode() != CU_STREAM_CAPTURE_MODE_RELAXED && own);
    if (!disturbed) {
      return;
    }
    capture.invalidate();
    any = true;
  });
  return any;
}

// Recorded: the calls for a primary context do not mind the captures of its green contexts.
bool disturbs_streams_of(const Context& context) {
  bool any = false;
  for (const Stream* stream : context.streams) {
    if (stream->capture) {
      stream->capture->invalidate();
      any = true;
    }
  }
  return any;
}

}  // namespace

CUresult carry_out(Fn function, const Arguments& arguments, const void* body,
                   CUresult (*run)(const void* body, Call& call)) noexcept {
  Present& here = present();
  std::shared_ptr<Machine> keep;
  std::unique_lock lock(here.mutex);
  if (const CUresult refused = admit(here, function); refused != CUDA_SUCCESS) {
    return refused;
  }
  keep = here.machine;
  Machine& machine = *keep;
  Call call{machine, lock, function, machine.thread(), arguments.numbers};
  try {
    CUresult result = check(call, arguments);
    if (result == CUDA_SUCCESS) {
      result = run(body, call);
    }
    // As on hardware, a caller that runs far ahead of the device is made to wait. Here, where nothing is looked at any
    // more that another thread may destroy meanwhile.
    if (machine.clock.is_full()) {
      machine.clock.relieve(lock);
    }
    return result;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

bool allows(Fn function, std::size_t index, std::uint64_t value) {
  const Contract& wanted = contract(function);
  return std::all_of(wanted.rules.begin(), wanted.rules.begin() + wanted.rule_count,
                     [&](const Rule& rule) { return rule.index != index || is_allowed(rule, value); });
}

CUresult spare_captures(Call& call, const Subjects& subjects) {
  const InCapture rule = contract(call.function).in_capture;
  if (rule == InCapture::whole) {
    return disturbs_streams_of(*subjects.context) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  }
  if (rule >= InCapture::own) {
    if (subjects.event != nullptr && subjects.event->capture) {
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (subjects.stream != nullptr && subjects.stream->capture) {
      subjects.stream->capture->invalidate();
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  const Context* waited_for = subjects.stream != nullptr    ? subjects.stream->context
                              : subjects.context != nullptr ? subjects.context
                                                            : call.current;
  // Recorded: waiting for another stream of a context that is capturing disturbs the capture.
  const bool disturbed = (rule == InCapture::context && disturbs_capture(call, waited_for)) ||
                         (rule == InCapture::unsafe && disturbs_capture(call, nullptr));
  return disturbed ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

void Call::made(Object& object) const {
  machine.made(object);
  object.owner = contract(function).dies_with_context ? current->root_id : 0;
}

void Call::note(Misuse kind, std::uint64_t handle, std::string detail) const {
  machine.ledger.note({kind, info(function).symbol, handle, thread.serial, ++machine.created, std::move(detail)});
}

Device* find_device(Call& call, CUdevice device, CUresult& result) {
  if (device < 0 || device >= static_cast<int>(call.machine.devices.size())) {
    result = CUDA_ERROR_INVALID_DEVICE;
    return nullptr;
  }
  return &call.machine.devices[static_cast<std::size_t>(device)];
}

Context* current_context(Call& call, CUresult& result) {
  if (call.thread.stack.empty()) {
    result = CUDA_ERROR_INVALID_CONTEXT;
    return nullptr;
  }
  const CurrentContext& top = call.thread.stack.back();
  if (top.handle == 0) {
    result = CUDA_ERROR_INVALID_CONTEXT;
    return nullptr;
  }
  Context* context = call.machine.contexts.find(top.handle);
  if (context != nullptr && context->id == top.id) {
    return context;
  }
  call.note(Misuse::use_after_destroy, top.handle, "the current context is destroyed");
  result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return nullptr;
}

Context* find_context(Call& call, CUcontext handle, CUresult& result, bool null_is_current) {
  if (handle == nullptr) {
    if (null_is_current) {
      return current_context(call, result);
    }
    result = CUDA_ERROR_INVALID_CONTEXT;
    return nullptr;
  }
  if (Context* context = call.machine.contexts.find(handle)) {
    return context;
  }
  if (call.machine.contexts.is_stale(handle)) {
    call.note(Misuse::use_after_destroy, handle, "the context is destroyed");
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  } else {
    call.note(Misuse::unknown_handle, handle, "no context of this machine");
    result = CUDA_ERROR_INVALID_CONTEXT;
  }
  return nullptr;
}

Context* find_green(Call& call, CUgreenCtx handle, CUresult& result) {
  Context* context = call.machine.contexts.find(handle);
  if (context != nullptr && context->is_green()) {
    return context;
  }
  if (call.machine.contexts.is_stale(handle)) {
    const bool destroying = call.function == Fn::cuGreenCtxDestroy;
    call.note(destroying ? Misuse::double_destroy : Misuse::use_after_destroy, handle,
              "the green context is destroyed");
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  } else {
    if (handle != nullptr) {
      call.note(Misuse::unknown_handle, handle, "no green context of this machine");
    }
    result = CUDA_ERROR_INVALID_CONTEXT;
  }
  return nullptr;
}

Stream* find_stream(Call& call, CUstream handle, CUresult& result) {
  const std::uint64_t value = number(handle);
  const bool own = handle == CU_STREAM_PER_THREAD || (handle == nullptr && default_stream_is_the_threads());
  if (!own && (handle == nullptr || handle == CU_STREAM_LEGACY)) {
    Context* context = current_context(call, result);
    return context == nullptr ? nullptr : context->default_stream.get();
  }
  if (own) {
    Context* context = current_context(call, result);
    if (context == nullptr) {
      return nullptr;
    }
    if (context->is_green()) {
      // Recorded: green contexts have no default stream per thread.
      result = CUDA_ERROR_INVALID_HANDLE;
      return nullptr;
    }
    auto& stream = context->thread_streams[call.thread.serial];
    if (!stream) {
      stream = call.machine.make_stream(*context, CU_STREAM_DEFAULT, 0);
    }
    return stream.get();
  }
  Stream* stream = call.machine.streams.find(handle);
  if (stream == nullptr) {
    if (call.machine.streams.is_stale(handle)) {
      const bool destroying = call.function == Fn::cuStreamDestroy_v2;
      call.note(destroying ? Misuse::double_destroy : Misuse::use_after_destroy, value, "the stream is destroyed");
    } else {
      call.note(Misuse::unknown_handle, value, "no stream of this machine");
    }
    result = CUDA_ERROR_INVALID_HANDLE;
    return nullptr;
  }
  if (stream->context != nullptr) {
    return stream;
  }
  // Recorded up to 13.0, documented from 13.1.
  if (call.version() >= 13010 && call.function == Fn::cuStreamDestroy_v2) {
    return stream;
  }
  call.note(Misuse::use_after_destroy, value, "the stream's context is destroyed");
  result = call.version() >= 13010 ? CUDA_ERROR_STREAM_DETACHED : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return nullptr;
}

Event* find_event(Call& call, CUevent handle, CUresult& result) {
  if (Event* event = call.machine.events.find(handle)) {
    if (!event->is_gone) {
      return event;
    }
    // Seen on an H100, also of its destruction.
    call.note(Misuse::use_after_destroy, handle, "the event is gone with its context: the device was reset");
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return nullptr;
  }
  if (call.machine.events.is_stale(handle)) {
    const bool destroying = call.function == Fn::cuEventDestroy_v2;
    call.note(destroying ? Misuse::double_destroy : Misuse::use_after_destroy, handle, "the event is destroyed");
  } else if (handle != nullptr) {
    call.note(Misuse::unknown_handle, handle, "no event of this machine");
  }
  result = CUDA_ERROR_INVALID_HANDLE;
  return nullptr;
}

Graph* find_graph(Call& c, CUgraph handle, CUresult& result) {
  return find_in(c, c.machine.graphs, handle, CUDA_ERROR_INVALID_VALUE, "the graph is destroyed", result);
}

GraphNode* find_node(Call& c, CUgraphNode handle, CUresult& result) {
  return find_in(c, c.machine.graph_nodes, handle, CUDA_ERROR_INVALID_VALUE, "the node is destroyed", result);
}

GraphExec* find_exec(Call& c, CUgraphExec handle, CUresult& result) {
  return find_in(c, c.machine.graph_execs, handle, CUDA_ERROR_INVALID_VALUE, "the executable graph is destroyed",
                 result);
}

Device* find(Call& c, CUdevice handle, CUresult& result, Device*) { return find_device(c, handle, result); }
Context* find(Call& c, CUcontext handle, CUresult& result, Context*) {
  return find_context(c, handle, result, contract(c.function).takes_current);
}
Context* find(Call& c, CUgreenCtx handle, CUresult& result, Context*) { return find_green(c, handle, result); }
Stream* find(Call& c, CUstream handle, CUresult& result, Stream*) { return find_stream(c, handle, result); }
Event* find(Call& c, CUevent handle, CUresult& result, Event*) { return find_event(c, handle, result); }
Graph* find(Call& c, CUgraph handle, CUresult& result, Graph*) { return find_graph(c, handle, result); }
GraphNode* find(Call& c, CUgraphNode handle, CUresult& result, GraphNode*) { return find_node(c, handle, result); }
GraphExec* find(Call& c, CUgraphExec handle, CUresult& result, GraphExec*) { return find_exec(c, handle, result); }
UserObject* find(Call& c, CUuserObject handle, CUresult& result, UserObject*) {
  return find_in(c, c.machine.user_objects, handle, CUDA_ERROR_INVALID_VALUE,
                 "the last reference to the user object is gone", result);
}
Pool* find(Call& c, CUmemoryPool handle, CUresult& result, Pool*) {
  return find_in(c, c.machine.pools, handle, CUDA_ERROR_INVALID_VALUE, "the memory pool is destroyed", result);
}
Module* find(Call& c, CUmodule handle, CUresult& result, Module*) {
  return find_in(c, c.machine.modules, handle, CUDA_ERROR_INVALID_HANDLE, "the module is unloaded", result);
}
Library* find(Call& c, CUlibrary handle, CUresult& result, Library*) {
  return find_in(c, c.machine.libraries, handle, CUDA_ERROR_INVALID_HANDLE, "the library is unloaded", result);
}
Kernel* find(Call& c, CUkernel handle, CUresult& result, Kernel*) {
  return find_in(c, c.machine.kernels, handle, CUDA_ERROR_INVALID_HANDLE, "the library of the kernel is unloaded",
                 result);
}
Function* find(Call& c, CUfunction handle, CUresult& result, Function*) {
  return find_in(c, c.machine.functions, handle, CUDA_ERROR_INVALID_HANDLE, "the module of the function is unloaded",
                 result);
}
KernelCode* find(Call& c, CUfunction handle, CUresult& result, KernelCode*) {
  return find_code(c, handle, result).get();
}
KernelCode* find(Call& c, CUkernel handle, CUresult& result, KernelCode*) {
  return find_code(c, reinterpret_cast<CUfunction>(handle), result).get();
}
Array* find(Call& c, CUarray handle, CUresult& result, Array*) {
  return find_in(c, c.machine.arrays, handle, CUDA_ERROR_INVALID_HANDLE, "the array is destroyed", result);
}
MipmappedArray* find(Call& c, CUmipmappedArray handle, CUresult& result, MipmappedArray*) {
  return find_in(c, c.machine.mipmapped_arrays, handle, CUDA_ERROR_INVALID_HANDLE, "the mipmapped array is destroyed",
                 result);
}
Texture* find(Call& c, CUtexObject handle, CUresult& result, Texture*) {
  return find_in(c, c.machine.textures, handle, CUDA_ERROR_INVALID_VALUE, "the texture is destroyed", result);
}
Surface* find(Call& c, CUsurfObject handle, CUresult& result, Surface*) {
  return find_in(c, c.machine.surfaces, handle, CUDA_ERROR_INVALID_VALUE, "the surface is destroyed", result);
}

// cuLaunchKernel and its like take a CUkernel where a CUfunction is due: the function is then that of the current
// context.
std::shared_ptr<KernelCode> find_code(Call& c, CUfunction handle, CUresult& result) {
  if (const Function* function = c.machine.functions.find(handle)) {
    return function->code;
  }
  if (const Kernel* kernel = c.machine.kernels.find(handle)) {
    return kernel->code;
  }
  if (c.machine.functions.is_stale(handle) || c.machine.kernels.is_stale(handle)) {
    c.note(Misuse::use_after_destroy, handle, "the module or library of the kernel is unloaded");
  }
  result = CUDA_ERROR_INVALID_HANDLE;
  return nullptr;
}

}  // namespace gctx::sim
