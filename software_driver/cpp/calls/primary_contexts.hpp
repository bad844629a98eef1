// Primary contexts.
#pragma once

#include "calls/entry.hpp"

namespace software_driver {

// Makes the primary context exist, for a retain or a green context.
Context& activate_primary(Call& call, Device& device);
void deactivate_primary_if_unused(Call& call, Device& device);

}  // namespace software_driver
