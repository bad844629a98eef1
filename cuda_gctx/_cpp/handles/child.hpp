// What is made in a context: streams, events and graphs.
#pragma once

#include <memory>
#include <utility>

#include "handles/context.hpp"

namespace gctx {

// Keeps the context.
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

 private:
  ContextUse use_;
};

// Owned by its box. `Box` ends with destroy(), or with keep_for_later() while its driver is set aside.
template <typename Box, typename Raw>
class ContextChild : public InContext {
 public:
  using InContext::InContext;
  void take(Raw handle) noexcept { handle_ = handle; }
  Raw handle() const noexcept { return handle_; }

 protected:
  ~ContextChild() = default;
  template <typename Destroy>
  void destroy(Destroy DriverTable::* call, const char* name) noexcept {
    if (handle_ == nullptr || is_forked()) {
      return;
    }
    Runtime& runtime = context()->runtime();
    const bool is_kept = runtime.keep_for_later([this] {
      auto later = std::make_shared<Box>(use());
      later->take(handle_);
      return later;
    });
    if (!is_kept && runtime.is_usable() && context()->is_there()) {
      runtime.driver().note((runtime.driver().*call)(handle_), name);
    }
  }

 private:
  Raw handle_ = nullptr;
};

}  // namespace gctx
