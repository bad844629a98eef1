// The names of misuse.
#include "machine/ledger.hpp"

namespace gctx::sim {

const char* name(Misuse kind) {
  switch (kind) {
    case Misuse::use_after_destroy:
      return "use after destroy";
    case Misuse::double_destroy:
      return "double destroy";
    case Misuse::wrong_order:
      return "wrong order";
    case Misuse::wrong_thread:
      return "wrong thread";
    case Misuse::unknown_handle:
      return "unknown handle";
  }
  return "";
}

}  // namespace gctx::sim
