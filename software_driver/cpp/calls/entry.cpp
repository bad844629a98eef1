// The checks that every call goes through, and the look-ups that turn handles into objects.
#include "calls/entry.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace software_driver {
namespace {

// Refuses the call where it is not to be carried out.
void admit(Present& here, Fn function) {
  const Contract& wanted = contract(function);
  refuse_if(here.over.load(std::memory_order_relaxed), CUDA_ERROR_DEINITIALIZED);
  // The driver does not survive a fork: in the child nothing is initialised, and nothing can be. Recorded
  // (`misuse.forked`): the calls that work before cuInit go on working.
  const bool starts = function == Fn::cuInit;
  refuse_if((here.forked && (starts || !wanted.is_early)) || (!here.machine && !wanted.is_early),
            CUDA_ERROR_NOT_INITIALIZED);
  refuse_if(!here.machine && !start(here), CUDA_ERROR_NO_DEVICE);
  Machine& machine = *here.machine;
  ++machine.calls[static_cast<std::size_t>(function)];
  ++machine.calls_made;
  refuse_if(info(function).since > machine.version(), CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(!machine.initialized && !wanted.is_early, CUDA_ERROR_NOT_INITIALIZED);
  if (!machine.faults.rules.empty()) {
    if (const auto code = machine.faults.next(function)) {
      refuse(*code);
    }
  }
  refuse_if(HostThreads::is_inside_function() && !wanted.in_callback, CUDA_ERROR_NOT_PERMITTED);
}

// What the contract says of the arguments and of the thread.
void check(Call& call, const Arguments& arguments) {
  if (contract(call.function).needs_context) {
    call.current = &current_context(call);
    if (const FailurePtr& fault = call.device().fault) {
      if (!std::exchange(fault->is_reported, true)) {
        say_failure(info(call.function).symbol, *fault);
      }
      refuse(fault->code);
    }
  }
  refuse_if(!fits(call.function, arguments, call.version()), CUDA_ERROR_INVALID_VALUE);
}

// Whether the calling thread disturbs an active capture, which is marked invalid. Recorded: of any context.
bool disturbs_capture(Call& c) {
  bool any = false;
  const CUstreamCaptureMode mode = c.thread.capture_mode;
  c.machine.streams.each([&](Stream& stream) {
    if (!stream.capture || !stream.capture->is_active()) {
      return;
    }
    Capture& capture = *stream.capture;
    const bool everywhere = capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    const bool own = capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread == c.thread.serial;
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED && (everywhere || own)) {
      capture.invalidate();
      any = true;
    }
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

// The time that a call takes its thread.
class TimedCall {
 public:
  TimedCall(Clock& clock, ThreadTime& thread, std::uint64_t ns) : clock_(clock), thread_(thread) {
    thread_.is_callback = HostThreads::is_inside_function();
    clock_.enter(thread_, ns);
  }
  ~TimedCall() { clock_.times().leave(thread_); }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Clock& clock_;
  ThreadTime& thread_;
};

// Ends a call that the capture, where there is one, does not survive.
void refuse_in(Capture* capture, CUresult code) {
  if (capture != nullptr) {
    capture->invalidate();
    refuse(code);
  }
}

}  // namespace

CUresult carry_out(Fn function, const Arguments& arguments, CUresult (*body)(Call& call)) noexcept {
  Present& here = present();
  std::shared_ptr<Machine> keep;
  const InCall inside;
  std::unique_lock lock(here.mutex);
  try {
    admit(here, function);
    keep = here.machine;
    Call call{*keep, lock, function, keep->thread(), arguments.numbers};
    const TimedCall timed(keep->clock, call.thread.time, contract(function).host_ns);
    check(call, arguments);
    const CUresult result = body(call);
    // As on hardware, a caller that runs far ahead of the device is made to wait. Here, where nothing is looked at any
    // more that another thread may destroy meanwhile.
    if (keep->clock.is_full()) {
      keep->clock.relieve(lock, call.thread.time);
    }
    return result;
  } catch (const Refused& refused) {
    return refused.code;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

void refuse(CUresult code) { throw Refused{code}; }

bool allows(Fn function, std::size_t index, std::uint64_t value) {
  const Contract& wanted = contract(function);
  return std::all_of(wanted.rules.begin(), wanted.rules.begin() + wanted.rule_count,
                     [&](const Rule& rule) { return rule.index != index || is_allowed(rule, value); });
}

void spare_captures(Call& call, const Subjects& subjects) {
  const InCapture rule = contract(call.function).in_capture;
  Capture* of_stream = subjects.stream == nullptr ? nullptr : subjects.stream->capture.get();
  Capture* of_event = subjects.event == nullptr ? nullptr : subjects.event->capture.get();
  if (rule == InCapture::joining && call.arguments[2] != CU_EVENT_WAIT_EXTERNAL) {
    refuse_in(of_event == nullptr ? of_stream : nullptr, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    // Assumed: a default stream, which cannot be captured, ends the capture.
    const bool is_default = subjects.stream == subjects.stream->context->default_stream.get();
    const bool is_captured = of_event != nullptr && of_event->is_active();
    refuse_in(is_default && is_captured ? of_event : nullptr, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  if (rule == InCapture::whole || rule == InCapture::awaited) {
    const Context& whole = subjects.context != nullptr ? *subjects.context : *call.current;
    refuse_if(disturbs_streams_of(whole), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return refuse_in(rule == InCapture::awaited ? of_event : nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (rule == InCapture::beside && of_stream != nullptr) {
    return;
  }
  if (rule >= InCapture::own) {
    refuse_if(of_event != nullptr, CUDA_ERROR_CAPTURED_EVENT);
    refuse_in(of_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  const bool is_unsafe = rule == InCapture::unsafe || rule == InCapture::beside;
  refuse_if(is_unsafe && disturbs_capture(call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void Call::made(Object& object) const {
  machine.made(object);
  object.owner = contract(function).dies_with_context ? current->root_id : 0;
}

void Call::note(Misuse kind, std::uint64_t handle, std::string detail) const {
  machine.ledger.note({kind, info(function).symbol, handle, thread.serial, ++machine.created, std::move(detail)});
}

Device& find_device(Call& call, CUdevice device) {
  refuse_if(device < 0 || device >= static_cast<int>(call.machine.devices.size()), CUDA_ERROR_INVALID_DEVICE);
  return call.machine.devices[static_cast<std::size_t>(device)];
}

Context& current_context(Call& call) {
  refuse_if(call.thread.stack.empty() || call.thread.stack.back().handle == 0, CUDA_ERROR_INVALID_CONTEXT);
  const CurrentContext& top = call.thread.stack.back();
  Context* context = call.machine.contexts.find(top.handle);
  if (context != nullptr && context->id == top.id) {
    return *context;
  }
  call.note(Misuse::use_after_destroy, top.handle, "the current context is destroyed");
  refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

Context& find_context(Call& call, CUcontext handle, bool null_is_current) {
  if (handle == nullptr && null_is_current) {
    return current_context(call);
  }
  refuse_if(handle == nullptr, CUDA_ERROR_INVALID_CONTEXT);
  if (Context* context = call.machine.contexts.find(handle)) {
    return *context;
  }
  if (call.machine.contexts.is_stale(handle)) {
    call.note(Misuse::use_after_destroy, handle, "the context is destroyed");
    refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  call.note(Misuse::unknown_handle, handle, "no context of this machine");
  refuse(CUDA_ERROR_INVALID_CONTEXT);
}

namespace {

// What a handle misses: the object that it named is gone, which its destruction finds too, or there never was one.
template <class Table, class Handle>
bool note_missing(Call& call, const Table& table, Handle handle, Fn destroy, const char* kind) {
  const bool stale = table.is_stale(handle);
  if (stale) {
    const bool destroying = call.function == destroy;
    call.note(destroying ? Misuse::double_destroy : Misuse::use_after_destroy, handle,
              std::string("the ") + kind + " is destroyed");
  } else if (handle != nullptr) {
    call.note(Misuse::unknown_handle, handle, std::string("no ") + kind + " of this machine");
  }
  return stale;
}

template <class Object, class Handle>
Object& find_noted(Call& call, const HandleTable<Object>& table, Handle handle, Fn destroy, const char* kind) {
  Object* object = table.find(handle);
  if (object == nullptr) {
    note_missing(call, table, handle, destroy, kind);
  }
  return need(object, CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace

Context& find_green(Call& call, CUgreenCtx handle) {
  Context* context = call.machine.contexts.find(handle);
  if (context != nullptr && context->is_green()) {
    return *context;
  }
  const bool stale = note_missing(call, call.machine.contexts, handle, Fn::cuGreenCtxDestroy, "green context");
  refuse(stale ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT);
}

Stream& find_stream(Call& call, CUstream handle) {
  const bool own = handle == CU_STREAM_PER_THREAD || (handle == nullptr && default_stream_is_the_threads());
  if (own) {
    Context& context = current_context(call);
    // Recorded: green contexts have no default stream per thread.
    refuse_if(context.is_green(), CUDA_ERROR_INVALID_HANDLE);
    auto& stream = context.thread_streams[call.thread.serial];
    if (!stream) {
      stream = call.machine.make_stream(context, CU_STREAM_DEFAULT, 0);
    }
    return *stream;
  }
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    return *current_context(call).default_stream;
  }
  Stream& stream = find_noted(call, call.machine.streams, handle, Fn::cuStreamDestroy_v2, "stream");
  // Recorded: what would end a capture says so of one that is invalid, too, and all else says that it is invalid.
  const InCapture rule = contract(call.function).in_capture;
  if (stream.capture && !stream.capture->is_active() && rule != InCapture::about) {
    const bool ends = rule == InCapture::own || rule == InCapture::unsafe;
    refuse(ends ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  // Recorded up to 13.0, documented from 13.1: a stream without a context can be destroyed.
  if (stream.context != nullptr || (call.version() >= 13010 && call.function == Fn::cuStreamDestroy_v2)) {
    return stream;
  }
  call.note(Misuse::use_after_destroy, handle, "the stream's context is destroyed");
  refuse(call.version() >= 13010 ? CUDA_ERROR_STREAM_DETACHED : CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

Event& find_event(Call& call, CUevent handle) {
  Event& event = find_noted(call, call.machine.events, handle, Fn::cuEventDestroy_v2, "event");
  if (event.is_gone) {
    // Seen on an H100, also of its destruction.
    call.note(Misuse::use_after_destroy, handle, "the event is gone with its context: the device was reset");
    refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  return event;
}

// cuLaunchKernel and its like take a CUkernel where a CUfunction is due: the function is then that of the current
// context.
std::shared_ptr<KernelCode> find_code(Call& c, CUfunction handle) {
  if (const Function* function = c.machine.functions.find(handle)) {
    return function->code;
  }
  if (const Kernel* kernel = c.machine.kernels.find(handle)) {
    return kernel->code;
  }
  if (c.machine.functions.is_stale(handle) || c.machine.kernels.is_stale(handle)) {
    c.note(Misuse::use_after_destroy, handle, "the module or library of the kernel is unloaded");
  }
  refuse(CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace software_driver
