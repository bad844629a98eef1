// The threads of the program, by numbers.
#pragma once

#include <cstdint>

namespace software_driver {

// The number of the calling thread, never used again.
std::uint64_t this_thread();
// `ended` runs at the end of each thread that has a number.
void when_threads_end(void (*ended)(std::uint64_t thread));

}  // namespace software_driver
