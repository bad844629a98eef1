// What is made in a context: streams, events and graphs.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "handles/capture.hpp"
#include "handles/context.hpp"

namespace gctx {

// Keeps the context. A box ends with destroy().
class InContext {
 public:
  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  explicit InContext(ContextUse use) noexcept : use_(std::move(use)) {}
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  const ContextUse& use() const noexcept { return use_; }
  const ContextHandle& context() const noexcept { return use_.context(); }
  // What is gone with its context raises before a call reaches the driver.
  bool asks_driver() const noexcept { return context()->kind() != ContextKind::green; }
  void demand_live() const { context()->demand_there(); }
  const Driver& driver() const {
    demand_live();
    return context()->runtime().driver();
  }

 protected:
  ~InContext() = default;
  // Now, or when its driver is no longer set aside.
  template <typename Raw>
  void destroy(Raw handle, CUresult (CUDAAPI* DriverTable::*call)(Raw), const char* name) const noexcept {
    if (handle != nullptr) {
      const auto end = [context = context().get(), handle, call, name] {
        if (context->is_there()) {
          const Driver& driver = context->runtime().driver();
          std::optional<RelaxedThread> relaxed;
          if constexpr (std::is_same_v<Raw, CUgraphExec>) {
            relaxed.emplace(driver);  // garbage is collected at any time, and this call would end a capture
          }
          driver.note((driver.*call)(handle), name);
        }
      };
      context()->runtime().end_now_or_later(end, use_);
    }
  }

 private:
  ContextUse use_;
};

// Owned by its box.
template <typename Raw>
class ContextChild : public InContext {
 public:
  using InContext::InContext;
  void take(Raw handle) noexcept { handle_ = handle; }
  Raw handle() const noexcept { return handle_; }

 protected:
  ~ContextChild() = default;

 private:
  Raw handle_ = nullptr;
};

}  // namespace gctx
