// A machine for the tests of the core: the software driver, whose library the environment names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "handles/closing.hpp"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"

namespace gctx::test {

// Opens a fresh machine. `spec`: the text behind "sim:" in CUDA_GCTX_DRIVER.
inline Runtime& open_machine(const std::string& spec = "h200@13.0") { return Runtime::open("sim:" + spec); }

// A machine that is closed at the end of its scope.
class Machine {
 public:
  explicit Machine(const std::string& spec = "h200@13.0") : runtime_(open_machine(spec)) {}
  ~Machine() { close_driver(runtime_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Runtime& runtime() { return runtime_; }

 private:
  Runtime& runtime_;
};

inline std::vector<GroupRequest> groups_of(const std::vector<unsigned>& counts) {
  std::vector<GroupRequest> requests(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    requests[i].count = counts[i];
  }
  return requests;
}

inline SplitResult split(Runtime& runtime, const std::vector<unsigned>& counts) {
  return split_resource(runtime, runtime.device_sm(0), groups_of(counts), false);
}

inline ContextHandle open_context(Runtime& runtime, const SmResourcePtr& sms, bool exclusive = false) {
  Opening::Terms terms;
  terms.exclusive = exclusive;
  return Opening(runtime, 0, {{"a name that is too long to be part of a string", {sms}}}, std::move(terms))
      .lease()
      .contexts.front();
}

inline void close_context(const ContextHandle& context) { close_together({context}); }

inline CUcontext current_of(Runtime& runtime) {
  CUcontext current = nullptr;
  runtime.driver().cuCtxGetCurrent(&current);
  return current;
}

}  // namespace gctx::test
