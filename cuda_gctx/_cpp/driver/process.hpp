// The states of the process in which driver objects may no longer be touched: a forked child, and the way out.
#pragma once

#include <atomic>

namespace gctx {

// forked: of a process that had a driver in use, for good. exiting: on the way out, on which the driver may be gone at
// any moment.
enum class ProcessState : int { normal, forked, exiting };

// Every call asks it, so it is a plain load; one word for all modules, so it is not inline.
extern std::atomic<ProcessState> process_state_word;
inline ProcessState process_state() noexcept { return process_state_word.load(std::memory_order_relaxed); }

// Destructors ask before anything else: another thread of the parent may have held any lock when it forked, and here
// nobody ever gives it back.
inline bool is_forked() noexcept { return process_state() == ProcessState::forked; }

// From now on destructors leave driver objects alone: the process is ending and takes them along.
void begin_exit() noexcept;

// A driver is being opened or open, from before the first lock is taken: a child that is forked meanwhile is a forked
// one. Ends only where nothing was opened.
void begin_use() noexcept;
void end_use() noexcept;
void watch_exit();  // once a driver is open: begin_exit() comes before the end of what it has registered itself

// What failed where nothing can be thrown. Counted, and reported at the next opportunity.
void note_failure(const char* what) noexcept;
bool has_failure() noexcept;
bool take_failure(char* text, unsigned long size) noexcept;  // false if nothing failed since the last time

}  // namespace gctx
