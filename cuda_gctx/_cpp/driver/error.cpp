#include "driver/error.hpp"

#include <array>
#include <cstdio>
#include <new>

namespace gctx {

Error::Error(ErrorKind what_kind, std::string text) : kind(what_kind), message(std::move(text)) {}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string address_text(const void* address) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%p", address);
  return text.data();
}

void fail(ErrorKind kind, std::string message) { throw Error(kind, std::move(message)); }

void fail_value(std::string message) { fail(ErrorKind::bad_value, std::move(message)); }

void fail_state(std::string message) { fail(ErrorKind::bad_state, std::move(message)); }

void name_dead_handle(Error& error, const char* kind, const void* handle) {
  if (error.code == CUDA_ERROR_INVALID_HANDLE || error.code == CUDA_ERROR_INVALID_CONTEXT ||
      error.code == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    error.message = address_text(handle) + " is not a live " + kind + ": " + error.message;
  }
}

std::unique_ptr<Error> caught_error() {
  try {
    throw;
  } catch (const Error& error) {
    return std::make_unique<Error>(error);
  } catch (const std::bad_alloc&) {
    return std::make_unique<Error>(ErrorKind::out_of_memory, "");
  } catch (const std::exception& error) {
    return std::make_unique<Error>(ErrorKind::unknown, error.what());
  } catch (...) {
    return std::make_unique<Error>(ErrorKind::unknown, "a C++ exception of an unknown type");
  }
}

}  // namespace gctx
