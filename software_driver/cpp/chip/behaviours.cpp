// The list of what the model of a chip does.
#include "chip/chip.hpp"

namespace gctx::sim {

std::span<const Behaviour> chip_behaviours() {
  static constexpr Behaviour list[] = {
#define GCTX_SIM_BEHAVIOUR(subject, drivers, known, source, text) {subject, drivers, text, Known::known, source},
#include "chip/behaviours.def"
#undef GCTX_SIM_BEHAVIOUR
  };
  return list;
}

}  // namespace gctx::sim
