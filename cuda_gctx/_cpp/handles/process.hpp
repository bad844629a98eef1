// The states of the process in which driver objects may no longer be touched: a forked child, and the way out.
#pragma once

#include <atomic>

namespace gctx {

enum class ProcessState : int { normal, forked, exiting };

// Every call asks it, so it is a plain load.
inline std::atomic<ProcessState> process_state_word{ProcessState::normal};
inline ProcessState process_state() noexcept { return process_state_word.load(std::memory_order_relaxed); }

// From now on destructors leave driver objects alone: the process is ending and takes them along.
void begin_exit() noexcept;

// Called once a driver is in use: from then on a forked child is told from its parent.
void watch_forks();

// What failed where nothing can be thrown. Counted, and told by whoever asks next.
void note_failure(const char* what) noexcept;
bool take_failure(char* text, unsigned long size) noexcept;  // false if nothing failed since the last time

}  // namespace gctx
