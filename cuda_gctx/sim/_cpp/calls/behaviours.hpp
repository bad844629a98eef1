// The modelled behaviours as data, each with where it is known from.
#pragma once

#include <span>

#include "abi/abi.hpp"
#include "chip/chip.hpp"

namespace gctx::sim {

struct DriverBehaviour {
  const char* subject;
  const char* drivers;
  const char* text;
  Known known;
  const char* source;
};

std::span<const DriverBehaviour> driver_behaviours();

}  // namespace gctx::sim
