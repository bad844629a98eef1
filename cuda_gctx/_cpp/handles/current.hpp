// Which contexts a thread made current through this package. The driver keeps a stack per thread but shows only its
// top, and only to that thread; what is remembered here lets close() refuse while another thread still uses the
// context, and lets a block take away what it entered and nothing else.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "handles/types.hpp"

namespace gctx {

class Driver;

// Puts a context on top of the calling thread's stack for the length of a call of this package, in which no other code
// runs. `leave` ends it and throws if that fails; the destructor ends it where another error is on its way, and counts
// such a failure as those of destructors are. What was current before is current after either.
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

// Names an entry of a thread's list: what a block has entered, and will leave.
struct CurrentToken {
  std::uint64_t thread = 0;
  std::uint64_t entry = 0;
};

// The task that enters a block, where a thread runs several in turns: blocks of two cannot be open on one thread.
struct BlockOwner {
  std::uint64_t task = 0;
  std::string place;  // where it enters, for messages
};

CurrentToken push_current(ContextBox& context);
CurrentToken push_current(ContextBox& context, BlockOwner owner);

// Left in order, what was current before is current afterwards, whatever ran inside and whichever call fails. Left
// before a block that was entered inside it, or on another thread, it throws; the entry keeps its context then, and
// goes when it is the innermost of its own thread.
void pop_current(CurrentToken token);

ContextHandle set_current(Runtime& runtime, const ContextHandle& context);  // returns what was current, or null

void forget_current_of(const Runtime& runtime);  // leaves nothing of that driver current on this thread
void forget_replaced_current();                  // drops what this thread set and others have replaced since

long thread_of_current(const ContextBox& context) noexcept;  // the system's id of one that made it current, or 0

// For a language binding whose threads end before the system's do: true at the first call on a thread, and the end.
bool is_new_thread();
void end_this_thread() noexcept;  // leaves nothing current that was made so through this package

// Of the tokens of one block, takes the one that the calling thread got last; if it got none, the last of all.
CurrentToken take_token(std::vector<CurrentToken>& tokens);

}  // namespace gctx
