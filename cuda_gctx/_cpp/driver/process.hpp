// The states of the process in which driver objects may no longer be touched: a forked child, and the way out.
#pragma once

#include <atomic>

namespace gctx {

// exiting: Python is on its way out; over: exit() has begun, the driver and the interpreter may be gone at any moment.
enum class ProcessState : int { normal, forked, exiting, over };

// Every call asks it, so it is a plain load; one word for all modules, so it is not inline.
extern std::atomic<ProcessState> process_state_word;
inline ProcessState process_state() noexcept { return process_state_word.load(std::memory_order_relaxed); }

// From now on destructors leave driver objects alone: the process is ending and takes them along.
void begin_exit() noexcept;

// Called before an error is thrown. Where the process is over, a thread that still works finds a driver that is shut
// down, and has nobody left to tell: it waits for the end, as the interpreter lets its own daemon threads do.
void wait_for_the_end_if_over() noexcept;

// Called once a driver is in use: from then on a forked child is told from its parent.
void watch_forks();

// What failed where nothing can be thrown. Counted, and told by whoever asks next.
void note_failure(const char* what) noexcept;
bool take_failure(char* text, unsigned long size) noexcept;  // false if nothing failed since the last time

}  // namespace gctx
