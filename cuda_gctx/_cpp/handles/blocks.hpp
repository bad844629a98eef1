// Blocks and set_current: contexts that a thread makes current through this package.
//
// A block remembers what is current, pushes its context, takes it off at its end, and restores what it remembered. So
// no context of a block stays on the driver's stack, whatever other code has pushed, popped or set inside.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "handles/context.hpp"

namespace gctx {

class Block {
 public:
  explicit Block(long thread) noexcept : thread_(thread) {}

 private:
  friend class ThreadBlocks;
  // left: the block ends with the blocks that were entered inside it, or with its thread. Other threads change nothing
  // but open to left.
  enum class State : int { open, left, over };

  std::string name() const { return "the block of " + context_->label(); }

  std::atomic<State> state_{State::open};
  ContextHandle context_;       // null when the block is over
  CUcontext before_ = nullptr;  // current when the block began; null: nothing was
  std::uint64_t before_id_ = 0;
  const void* task_ = nullptr;  // tells tasks of one thread apart
  const long thread_;           // the system's number
};
using BlockHandle = std::shared_ptr<Block>;

// The blocks of one thread. The caller is that thread.
class ThreadBlocks {
 public:
  ThreadBlocks();
  ~ThreadBlocks() { end(); }
  ThreadBlocks(const ThreadBlocks&) = delete;
  ThreadBlocks& operator=(const ThreadBlocks&) = delete;

  static ThreadBlocks& here();

  // Begins a block; all or nothing. Refuses while a block of another task is open on the thread.
  BlockHandle enter(ContextHandle context, const void* task);
  // Ends a block. Throws if a block that was entered inside is still open, or on another thread; the block is then
  // marked as left. Throws as well, after the end, if the block was entered in another task, or if what was current
  // before is gone.
  void leave(const BlockHandle& block, const void* task);
  // Makes a context current outside of blocks. Returns what was current, or null.
  ContextHandle set(const ContextHandle& context);

  // Forgets what set_current has made current and other code has replaced since.
  void forget_replaced(const Runtime& runtime) noexcept;
  void forget(const Runtime& runtime);  // ends everything of that driver
  void end() noexcept;                  // ends everything, with the thread

 private:
  void demand_task(const void* task) const;
  BlockHandle unused_block();
  ContextHandle& set_of(const Runtime& runtime);
  void end_left();
  void end_last();

  const long system_id_;
  std::vector<BlockHandle> open_;   // the innermost last
  BlockHandle spare_;               // over: used again once nobody else holds it
  std::vector<ContextHandle> set_;  // by set_current, one of each driver
};

}  // namespace gctx
