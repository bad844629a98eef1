// A block as a language binding keeps it: its entry stays where it is until the list of its thread has given it back.
#pragma once

#include "handles/context.hpp"
#include "handles/current.hpp"

namespace gctx::test {

class Block {
 public:
  explicit Block(const ContextHandle& context, const void* task = nullptr) {
    enter_block(entry_, context, task);
    forget_blocks();  // those that were left elsewhere have gone from the list by it
  }
  ~Block() {
    if (!entry_.is_idle()) {
      try {
        leave(this);
      } catch (const Error&) {  // it was entered in another task
      }
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void leave(const void* task = nullptr) {
    ContextHandle context;
    if (!leave_block_at_once(entry_, task, context)) {
      try {
        leave_block(entry_, task);
      } catch (...) {
        forget_blocks();
        throw;
      }
      forget_blocks();
    }
  }

  static void forget_blocks() noexcept {
    while (take_left() != nullptr) {
    }
  }

 private:
  Entry entry_{this};
};

}  // namespace gctx::test
