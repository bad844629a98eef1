// The one exception type of the core. A layer above translates it once, by kind.
#pragma once

#include <cuda.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace gctx {

enum class ErrorKind : int {
  driver,         // a driver call answered an error
  not_found,      // no driver library
  not_supported,  // the driver lacks what was asked for
  bad_value,      // an argument that no driver could honour
  bad_state,      // the object or the process is in the wrong state, other than the four below
  closed,         // the object, or the driver that it belongs to, has been closed or reset
  current,        // the context is current where it must not be
  forked,         // this is a forked child
  capturing,      // a stream is capturing a graph, which the call would spoil
  split,          // a split that the resource cannot give
  overlap,        // an exclusive context over SMs that are taken
  out_of_memory,  // not thrown: what caught_error() makes of std::bad_alloc
  unknown,        // not thrown: what caught_error() makes of anything else
};

class Error : public std::exception {
 public:
  Error(ErrorKind what_kind, std::string text);

  const char* what() const noexcept override { return message.c_str(); }

  ErrorKind kind;
  std::string message;
  CUresult code = CUDA_SUCCESS;
  std::string code_name;
  std::string call;
  std::string needs;
  std::string found;
};

std::string version_text(int version);  // 13010 -> "13.1"
std::string address_text(const void* address);

[[noreturn]] void fail_value(std::string message);
[[noreturn]] void fail_state(std::string message);
[[noreturn]] void fail(ErrorKind kind, std::string message);

// If the driver refused a handle, says so in front of its answer.
void name_dead_handle(Error& error, const char* kind, const void* handle);

// The exception in flight, whatever it is, as a value: for a language binding, inside its catch block.
std::unique_ptr<Error> caught_error();

}  // namespace gctx
