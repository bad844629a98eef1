// A block as a language binding keeps it: its entry stays where it is until the list of its thread has given it back.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handles/context.hpp"
#include "handles/current.hpp"

namespace gctx::test {

class Block {
 public:
  explicit Block(const ContextHandle& context, const void* task = nullptr)
      : entry_(std::make_unique<Entry>(this, context)) {
    while (!ThreadEntries::here().enter(*entry_, task)) {
      ThreadEntries::here().leave_what_was_left();
    }
    forget_blocks();  // those that were left elsewhere have gone from the list by it
  }
  ~Block() {
    if (!entry_->is_idle()) {
      try {
        leave(this);
      } catch (const Error&) {  // it was entered in another task, or has been left
      }
    }
    if (!entry_->is_idle()) {  // other code has put its context on the stack again
      static std::mutex mutex;
      static auto* const on_the_stack = new std::vector<std::unique_ptr<Entry>>;
      const std::lock_guard lock(mutex);
      on_the_stack->push_back(std::move(entry_));
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void leave(const void* task = nullptr) {
    if (ThreadEntries::here().leave_at_once(*entry_, task)) {
      entry_->context().reset();
    } else {
      try {
        ThreadEntries::here().leave(*entry_, task);
      } catch (...) {
        forget_blocks();
        throw;
      }
      forget_blocks();
    }
  }

  static void forget_blocks() noexcept {
    while (Entry* const left = ThreadEntries::here().take_left()) {
      left->context().reset();
    }
  }

 private:
  std::unique_ptr<Entry> entry_;
};

}  // namespace gctx::test
