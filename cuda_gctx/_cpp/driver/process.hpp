// The states of the process in which driver objects may no longer be touched: a forked child, and the way out.
#pragma once

#include <atomic>

namespace gctx {

// exiting: Python is on its way out; over: exit() has begun, the driver and the interpreter may be gone at any moment.
enum class ProcessState : int { normal, forked, exiting, over };

// Every call asks it, so it is a plain load; one word for all modules, so it is not inline.
extern std::atomic<ProcessState> process_state_word;
inline ProcessState process_state() noexcept { return process_state_word.load(std::memory_order_relaxed); }

// Whether this is a child that was forked while the driver was in use. Destructors ask before anything else: another
// thread of the parent may have held any lock when it forked, and here nobody ever gives it back.
inline bool is_forked() noexcept { return process_state() == ProcessState::forked; }

// From now on destructors leave driver objects alone: the process is ending and takes them along.
void begin_exit() noexcept;

// A language binding whose threads must not come back into an interpreter that is gone asks for it: from then on a
// thread that meets an error after exit() has begun (the driver is shut down, and nobody can handle the error) waits
// for the end of the process. Without it, as in a C++ program whose static objects join their threads, errors are
// thrown.
void let_errors_wait_for_the_end() noexcept;
void wait_for_the_end_if_over() noexcept;  // called for each error before it is thrown

// Called once a driver is in use: from then on a forked child is distinguished from its parent.
void watch_forks();

// What failed where nothing can be thrown. Counted, and reported at the next opportunity.
void note_failure(const char* what) noexcept;
bool take_failure(char* text, unsigned long size) noexcept;  // false if nothing failed since the last time

}  // namespace gctx
