// What is made in a context: streams, events and graphs.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "handles/capture.hpp"
#include "handles/context.hpp"

namespace gctx {

// Keeps the context. Some children are uses of its lease, the others outlive it. A box ends with destroy().
class InContext {
 public:
  // The box is made before what it will own, so that nothing is lost if memory runs out in between.
  explicit InContext(ContextUse use) noexcept : context_(use.context()), use_(std::move(use)) {}
  // is_child: the driver's object is tied to the context, which is not released before it is gone.
  explicit InContext(ContextHandle context, bool is_child = true) noexcept
      : context_(std::move(context)), is_child_(is_child) {
    if (is_child_) {
      in_driver().add_child();
    }
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  const ContextHandle& context() const noexcept { return context_; }
  // What is gone with its context raises before a call reaches the driver.
  bool asks_driver() const noexcept { return context_->kind() != ContextKind::green; }
  void demand_live() const { context_->demand_there(); }
  const Driver& driver() const {
    demand_live();
    return context_->runtime().driver();
  }

 protected:
  ~InContext() {
    if (is_child_) {
      in_driver().remove_child();
    }
  }
  // Now, or when its driver is no longer set aside.
  template <typename Raw>
  void destroy(Raw handle, CUresult (CUDAAPI* DriverTable::*call)(Raw), const char* name) const noexcept {
    if (handle != nullptr) {
      const auto end = [context = context_.get(), handle, call, name] {
        if (context->is_there()) {
          const Driver& driver = context->runtime().driver();
          std::optional<RelaxedThread> relaxed;
          if constexpr (std::is_same_v<Raw, CUgraphExec>) {
            relaxed.emplace(driver);  // garbage is collected at any time, and this call would end a capture
          }
          driver.note((driver.*call)(handle), name);
        }
      };
      context_->runtime().end_now_or_later(end, context_, use_);
    }
  }

 private:
  DriverContext& in_driver() const noexcept { return context_->in_driver(); }

  ContextHandle context_;
  std::optional<ContextUse> use_;
  const bool is_child_ = false;
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
