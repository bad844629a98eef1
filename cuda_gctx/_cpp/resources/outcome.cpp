#include "resources/outcome.hpp"

namespace gctx {

const SplitFailure* caught_split() noexcept {
  try {
    throw;
  } catch (const SplitFailure& failure) {
    return &failure;
  } catch (...) {
    return nullptr;
  }
}

}  // namespace gctx
