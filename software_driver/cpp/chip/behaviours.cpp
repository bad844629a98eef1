// The list of what the model of a chip does.
#include "chip/chip.hpp"

namespace software_driver {

std::span<const Behaviour> chip_behaviours() {
  static constexpr Behaviour list[] = {
#define SOFTWARE_DRIVER_BEHAVIOUR(subject, drivers, known, source, text) {subject, drivers, text, Known::known, source},
#include "chip/behaviours.def"
#undef SOFTWARE_DRIVER_BEHAVIOUR
  };
  return list;
}

}  // namespace software_driver
