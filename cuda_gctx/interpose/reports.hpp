// Messages to the command that started the program, and to people.
#pragma once

namespace gctx::interpose {

// Sends one JSON object to the socket in CUDA_GCTX_REPORTS. `members`: its members, as a format of printf.
__attribute__((format(printf, 1, 2))) void report(const char* members, ...);

// Prints one line to the standard error stream: the package, the process, and a sentence.
__attribute__((format(printf, 1, 2))) void tell(const char* sentence, ...);

// The file name of the library or program that contains an address.
const char* caller_of(const void* address);

// Returns whether a call that leaves the part fails (--strict).
bool is_strict();

}  // namespace gctx::interpose
