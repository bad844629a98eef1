// A driver library: the table of its functions, its features, and its errors as exceptions.
#pragma once

#include <cuda.h>

#include <array>
#include <string>
#include <string_view>

#include "driver/error.hpp"

namespace gctx {

struct DriverTable {
#define GCTX_FUNCTION(name, symbol, since) decltype(&::name) name = nullptr;
#include "driver/functions.inc"
#undef GCTX_FUNCTION
};

// Features in which drivers differ, in the order of the versions that introduced them.
enum class Feature : int {
  green_contexts,
  green_stream_create,
  context_events,
  green_context_ids,
  structured_split,
  workqueues,
  stream_resources,
  locality_domains,
  supplemental_sms,
};
inline constexpr std::size_t feature_count = 9;

struct FeatureState {
  std::string_view name;
  std::string_view title;  // for messages
  int since = 0;
  bool available = false;
};

class Driver : public DriverTable {
 public:
  // `choice`: the value of CUDA_GCTX_DRIVER: empty for the system's driver, "sim[:spec]" for the software driver, else
  // a path.
  explicit Driver(std::string_view choice);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  int version() const noexcept { return version_; }
  const std::string& path() const noexcept { return path_; }
  bool is_simulated() const noexcept { return is_simulated_; }

  FeatureState feature(Feature feature) const;
  bool has(Feature feature) const noexcept { return has_[static_cast<std::size_t>(feature)]; }
  void require(Feature feature) const {
    if (!has(feature)) [[unlikely]] {
      fail_missing(feature);
    }
  }

  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      fail(result, call);
    }
  }
  // Converts the result of a query such as cuEventQuery: true if the work is done.
  bool check_done(CUresult result, const char* call) const {
    if (result != CUDA_ERROR_NOT_READY) {
      check(result, call);
    }
    return result == CUDA_SUCCESS;
  }
  [[noreturn]] void fail(CUresult result, const char* call) const;
  Error error(CUresult result, const char* call) const;
  std::string describe(CUresult result, const char* call) const;
  // Counts a failure for a later report, where no exception can be thrown and memory may have run out.
  void note(CUresult result, const char* call) const noexcept;

 private:
  void fill_table();
  [[noreturn]] void fail_missing(Feature feature) const;
  std::string error_name(CUresult result) const;

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
  bool is_simulated_ = false;              // the library has the software driver's control interface
  std::array<bool, feature_count> has_{};  // cached, because a split reads it several times
};

// The result of a call that is checked later, because asking the driver for the name of an error can take long.
struct FailedCall {
  void check() const {
    if (result != CUDA_SUCCESS) {
      driver->fail(result, call);
    }
  }
  void note() const noexcept {
    if (result != CUDA_SUCCESS) {
      driver->note(result, call);
    }
  }

  const Driver* driver = nullptr;
  CUresult result = CUDA_SUCCESS;
  const char* call = "";
};

// Calls a driver function. Throws an Error with the name of the function if the call fails.
#define GCTX_CALL(driver, function, ...) (driver).check((driver).function(__VA_ARGS__), #function)

}  // namespace gctx
