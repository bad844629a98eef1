// The software driver as the C++ tests open it: with dlopen, its functions by their names.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "abi/cuda_software_driver.h"

namespace software_driver::test {

inline void* library = nullptr;

inline bool open_library() {
  library = dlopen(CUDA_SOFTWARE_DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
  }
  return library != nullptr;
}

template <class Function>
Function* symbol(const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr) {
    throw std::runtime_error(std::string("no symbol ") + name);
  }
  return reinterpret_cast<Function*>(address);
}

inline void configure(const char* spec) {
  char error[256] = "";
  if (symbol<decltype(softwareDriverConfigure)>("softwareDriverConfigure")(spec, error, sizeof error) != 0) {
    throw std::runtime_error(error);
  }
}

}  // namespace software_driver::test

// The function of this very name, whatever the header makes of it.
#define CALL(name, ...) ::software_driver::test::symbol<decltype(::name)>(#name)(__VA_ARGS__)
