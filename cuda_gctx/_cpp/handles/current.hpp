// The contexts that each thread made current through this package. The driver keeps a stack per thread, but shows only
// its top, and only to that thread. With this record, close() can refuse while another thread uses the context, and a
// block removes its own entry and no other.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "handles/types.hpp"

namespace gctx {

class Driver;

// Makes a context current on the calling thread during one call of this package, in which no other code runs. `leave`
// ends the scope, and throws if that fails. The destructor ends it while another error propagates, and counts a failure
// as other destructors do. Both restore the previous context.
class CurrentScope {
 public:
  CurrentScope(const Driver& driver, CUcontext context);
  explicit CurrentScope(const ContextBox& context);
  // For destructors: does not throw, and `is_entered` says whether the context is current.
  CurrentScope(const ContextBox& context, std::nothrow_t) noexcept;
  ~CurrentScope();
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

  bool is_entered() const noexcept { return is_entered_; }
  void leave();

 private:
  CUresult enter(CUcontext context) noexcept;
  CUresult pop() noexcept;

  const Driver& driver_;
  CUcontext before_ = nullptr;
  bool is_before_known_ = false;
  bool is_pushed_ = false;
  bool is_entered_ = false;
};

// Identifies the entry of a block in the list of its thread.
struct CurrentToken {
  std::uint64_t thread = 0;
  std::uint64_t entry = 0;
  bool is_new_thread = false;  // as the function below
};

// The task that enters a block, if the thread runs an event loop: only one task can have open blocks on a thread.
struct BlockOwner {
  std::uint64_t task = 0;
  std::string place;  // where it enters, for messages
};

// The entry owns the context: the handle is moved into it if this succeeds.
CurrentToken push_current(ContextHandle& context, const BlockOwner* owner = nullptr);

// Restores the previous context, whatever ran inside the block and whichever call fails. Throws if a block that was
// entered inside is still open, or on another thread; the entry then keeps its context, and is removed once it is the
// innermost of its own thread. Returns the handle that push_current took, or null after a fork.
ContextHandle pop_current(CurrentToken token);

ContextHandle set_current(const ContextHandle& context);  // returns what was current, or null

void forget_current_of(const Runtime& runtime);  // removes all contexts of that driver from this thread
void forget_replaced_current();                  // drops what this thread set and others have replaced since

long thread_of_current(const ContextBox& context) noexcept;  // the system's id of a thread that made it current, or 0

// For a language binding whose threads end before those of the system: true at the first call on a thread, and the end.
bool is_new_thread();
void end_this_thread() noexcept;  // removes what was made current through this package

// Takes the latest token of the calling thread out of the tokens of a block; if it has none, the latest of all.
CurrentToken take_token(std::vector<CurrentToken>& tokens);

}  // namespace gctx
