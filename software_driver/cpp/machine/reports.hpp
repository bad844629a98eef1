// What a test asks a machine about its objects and its memory, as JSON.
#pragma once

#include <string>

#include "machine/machine.hpp"

namespace software_driver {

std::string ledger_json(const Machine& machine);
std::string memory_json(const Machine& machine);

}  // namespace software_driver
