// The making of contexts, and their end.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

Holding whole_device(const Call& call, const Device& device);
// With its default stream.
// Tells a profiler of a context that was made.
void show_context(const Context& context);
std::unique_ptr<Context> make_context(Call& call, ContextKind kind, const Holding& part, unsigned flags);
// Releases what goes with a context: code and memory. Modules of one that cuCtxCreate made are
// remembered, by their handles (recorded).
void destroy_owned(Machine& machine, std::uint64_t owner, bool remembered);
// Takes a context's streams and events away from it, and notes those that should have gone first.
void detach_children(Call& call, Context& context);

}  // namespace software_driver
