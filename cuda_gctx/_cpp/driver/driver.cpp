#include "driver/driver.hpp"

#include <dlfcn.h>
#include <strings.h>

#include <cstdio>
#include <cstdlib>

#include "driver/locate.hpp"
#include "driver/process.hpp"

namespace gctx {
namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
using GetVersion = CUresult (*)(int*);
using Configure = int (*)(const char*, char*, std::size_t);

template <typename Function>
Function lookup(void* library, const char* symbol) {
  return reinterpret_cast<Function>(dlsym(library, symbol));
}

// Says how to run without a GPU. The software driver may be installed already.
std::string without_a_gpu() {
  const bool is_installed = !locate_driver("sim").library.empty();
  return std::string("without a GPU, ") +
         (is_installed ? ""
                       : "install the software driver (pip install ./software_driver in a clone of cuda_gctx) and ") +
         "set CUDA_GCTX_DRIVER=sim";
}

std::string advice() {
  return "install the NVIDIA driver, set CUDA_GCTX_DRIVER to the path of a driver library, or, " + without_a_gpu();
}

[[noreturn]] void fail_not_found(std::string what) { throw Error(ErrorKind::not_found, std::move(what)); }

// Returns whether a value of CUDA_GCTX_DRIVER is a misspelled name of the software driver.
bool resembles_sim(std::string_view choice) {
  return choice.find('/') == std::string_view::npos && choice.size() >= 3 && strncasecmp(choice.data(), "sim", 3) == 0;
}

}  // namespace

Driver::Driver(std::string_view choice) {
  const DriverChoice located = locate_driver(choice);
  if (located.library.empty()) {
    fail_not_found("CUDA_GCTX_DRIVER=" + std::string(choice) +
                   " is the software driver, which is not installed: run pip install ./software_driver in a clone of "
                   "cuda_gctx, or set CUDA_SOFTWARE_DRIVER to the path of libcuda_software_driver.so");
  }
  library_ = dlopen(located.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* reason = dlerror();
    const std::string failed = " (" + std::string(reason != nullptr ? reason : located.library) + "): ";
    if (located.is_software_driver) {
      fail_not_found("the software driver could not be opened" + failed +
                     "correct CUDA_SOFTWARE_DRIVER, or unset it and run pip install ./software_driver in a clone of "
                     "cuda_gctx");
    }
    if (!choice.empty()) {
      if (resembles_sim(choice)) {
        fail_not_found("CUDA_GCTX_DRIVER=" + std::string(choice) +
                       " is not a driver: did you mean sim, or with a card and a version sim:h200@13.0?");
      }
      fail_not_found("the CUDA driver that CUDA_GCTX_DRIVER names could not be opened" + failed +
                     "correct CUDA_GCTX_DRIVER, or unset it and " + advice());
    }
    fail_not_found("no CUDA driver could be opened" + failed + advice());
  }
  path_ = located.library;
  const auto configure = lookup<Configure>(library_, "softwareDriverConfigure");
  is_simulated_ = configure != nullptr;
  if (located.is_software_driver) {
    std::array<char, 512> problem{};
    if (configure == nullptr) {
      fail_not_found(path_ + " is not the software driver: correct CUDA_SOFTWARE_DRIVER");
    }
    if (configure(located.machine.c_str(), problem.data(), problem.size()) != 0) {
      // The message names the variable only if the machine comes from it: gctx_open() takes a machine too.
      const char* variable = std::getenv("CUDA_GCTX_DRIVER");
      const bool is_variable = variable != nullptr && choice == variable;
      fail_value((is_variable ? "CUDA_GCTX_DRIVER=" : "") + std::string(choice) + ": " + problem.data());
    }
  }
  fill_table();
  for (std::size_t i = 0; i < feature_count; ++i) {
    has_[i] = feature(static_cast<Feature>(i)).available;
  }
  GCTX_CALL(*this, cuInit, 0);
}

void Driver::fill_table() {
  const auto get_version = lookup<GetVersion>(library_, "cuDriverGetVersion");
  // CUDA 12.0 introduced the form with a query result. Older drivers have no green contexts.
  const auto get_proc_address = lookup<GetProcAddress>(library_, "cuGetProcAddress_v2");
  if (get_version == nullptr || get_proc_address == nullptr || get_version(&version_) != CUDA_SUCCESS) {
    fail_not_found(path_ + " is not a CUDA driver of version 12.0 or newer: " + advice());
  }
  const auto find = [&](const char* symbol, int since) -> void* {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    if (version_ < since ||
        get_proc_address(symbol, &address, since, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS) {
      return nullptr;
    }
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? address : nullptr;
  };
#define GCTX_FUNCTION(name, symbol, since) name = reinterpret_cast<decltype(name)>(find(symbol, since));
#define GCTX_NEWER_FORM(name, symbol, since)        \
  if (void* const newer = find(symbol, since)) {    \
    name = reinterpret_cast<decltype(name)>(newer); \
  }
#include "driver/functions.inc"
#undef GCTX_FUNCTION
}

FeatureState Driver::feature(Feature feature) const {
  switch (feature) {
    case Feature::green_contexts:
      return {"green_contexts", "green contexts", 12040, cuGreenCtxCreate != nullptr};
    case Feature::green_stream_create:
      return {"green_stream_create", "creating a stream directly on a green context", 12050,
              cuGreenCtxStreamCreate != nullptr};
    case Feature::context_events:
      return {"context_events", "events of a whole primary context", 12050, cuCtxRecordEvent != nullptr};
    case Feature::green_context_ids:
      return {"green_context_ids", "ids of green contexts", 12090, cuGreenCtxGetId != nullptr};
    case Feature::structured_split:
      return {"structured_split", "the structured split", 13010, cuDevSmResourceSplit != nullptr};
    case Feature::workqueues:
      // The feature is a resource type without a function. The same version introduced the structured split.
      return {"workqueues", "workqueue resources", 13010, cuDevSmResourceSplit != nullptr};
    case Feature::stream_resources:
      return {"stream_resources", "the resource query of a stream", 13010, cuStreamGetDevResource != nullptr};
    case Feature::locality_domains:
      // The feature is a field, which older drivers ignore: only the version decides.
      return {"locality_domains", "locality domains", 13040, version_ >= 13040};
    case Feature::supplemental_sms:
      return {"supplemental_sms", "supplemental SMs of locality domains", 13050, version_ >= 13050};
  }
  return {};
}

void Driver::fail_missing(Feature feature) const {
  const FeatureState state = this->feature(feature);
  const std::string needs = version_text(state.since);
  const std::string found = version_text(version_);
  Error error(ErrorKind::not_supported,
              std::string(state.title) + " need CUDA driver " + needs + " or newer; this driver is " + found);
  error.code = CUDA_ERROR_NOT_SUPPORTED;
  error.code_name = error_name(CUDA_ERROR_NOT_SUPPORTED);
  error.needs = needs;
  error.found = found;
  throw error;
}

std::string Driver::error_name(CUresult result) const {
  const char* name = nullptr;
  if (cuGetErrorName != nullptr && cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr) {
    return name;
  }
  return "CUresult " + std::to_string(static_cast<int>(result));
}

std::string Driver::describe(CUresult result, const char* call) const {
  std::string text = std::string(call) + " answered " + error_name(result);
  const char* meaning = nullptr;
  if (cuGetErrorString != nullptr && cuGetErrorString(result, &meaning) == CUDA_SUCCESS && meaning != nullptr) {
    text.append(" (").append(meaning).append(")");
  }
  return text;
}

void Driver::note(CUresult result, const char* call) const noexcept {
  if (result == CUDA_SUCCESS) [[likely]] {
    return;
  }
  const char* name = nullptr;
  if (cuGetErrorName == nullptr || cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "an error without a name";
  }
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), "%s answered %s", call, name);
  note_failure(text.data());
}

void Driver::fail(CUresult result, const char* call) const { throw error(result, call); }

Error Driver::error(CUresult result, const char* call) const {
  Error error(ErrorKind::driver, describe(result, call));
  if (result == CUDA_ERROR_NO_DEVICE) {
    error.message += "; " + without_a_gpu();
  }
  error.code = result;
  error.code_name = error_name(result);
  error.call = call;
  return error;
}

}  // namespace gctx
