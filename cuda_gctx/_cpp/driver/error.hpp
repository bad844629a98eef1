// The exception type of the core. Language bindings translate it by its kind.
#pragma once

#include <cuda.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace gctx {

enum class ErrorKind : int {
  driver,         // a driver call failed
  not_found,      // no driver library
  not_supported,  // the driver lacks a feature
  bad_value,      // an argument that no driver accepts
  bad_state,      // a wrong state of the object or the process, other than the four below
  closed,         // the object or its driver was closed or reset
  current,        // the context is current where it must not be
  forked,         // this is a forked child
  capturing,      // the call would invalidate the capture of a stream
  split,          // a split that does not fit the resource
  overlap,        // an exclusive context over SMs of a live context
  out_of_memory,  // never thrown: caught_error() returns it for std::bad_alloc
  unknown,        // never thrown: caught_error() returns it for other exceptions
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

// Puts the handle in front of the message if the error says that the handle is invalid.
void name_dead_handle(Error& error, const char* kind, const void* handle);

// Returns the exception in flight as a value. Language bindings call it inside a catch block.
std::unique_ptr<Error> caught_error();

}  // namespace gctx
