// The state of the process. In a forked child and at exit, driver objects must not be used.
#pragma once

#include <atomic>

namespace gctx {

// forked: a child of a process that used a driver, for the rest of its life. exiting: the driver may disappear at any
// moment.
enum class ProcessState : int { normal, forked, exiting };

// Each call reads the state, so the read is a plain load. All modules share one variable, so it is not inline.
extern std::atomic<ProcessState> process_state_word;
inline ProcessState process_state() noexcept { return process_state_word.load(std::memory_order_relaxed); }

// Destructors call this first. A thread of the parent may have held a lock during the fork, and the child never unlocks
// it.
inline bool is_forked() noexcept { return process_state() == ProcessState::forked; }

// Makes destructors leave driver objects alone. The end of the process frees them.
void begin_exit() noexcept;

// Marks a driver as used, before the first lock is taken. A child that is forked from then on has the state forked.
// end_use() undoes this if opening the driver failed.
void begin_use() noexcept;
void end_use() noexcept;
void watch_exit();  // calls begin_exit() at exit, before the exit handlers of an open driver run

// Counts failures in places that cannot throw, such as destructors. A later call reports them.
void note_failure(const char* what) noexcept;
bool has_failure() noexcept;
bool take_failure(char* text, unsigned long size) noexcept;  // false if no call failed since the last report

}  // namespace gctx
