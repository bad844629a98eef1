// The threads of the program, by numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gctx::sim {

// A thread's serial number (never used again) and its index (used again after the thread's end).
struct ThreadName {
  std::uint64_t serial;
  std::size_t index;
};

ThreadName this_thread();
// `ended` runs at the end of each thread that has a name; it returns whether the index may be used again.
void when_threads_end(bool (*ended)(const ThreadName& name));

}  // namespace gctx::sim
