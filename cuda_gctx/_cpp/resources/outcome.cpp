#include "resources/outcome.hpp"

namespace gctx {

std::optional<std::vector<GroupRequest>> caught_suggestion() {
  try {
    throw;
  } catch (const SplitFailure& failure) {
    return failure.suggestion;
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace gctx
