// Events as other files make, record and wait for them.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// In the current context.
Event& add_event(Call& call, unsigned flags);
// What the work does that a record of the event is: tells other processes, where they have the event.
Effect mark_recorded(Event& event);
// Its record tells the host nothing: it is hidden from the primary context (see hides_from_primary).
bool is_silent(const Event& event);
// The work that whoever waits for the event waits for; null if there is none.
WorkPtr awaited(Call& call, const Event& event);

}  // namespace software_driver
