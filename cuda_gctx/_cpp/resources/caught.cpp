#include "resources/caught.hpp"

#include <new>

namespace gctx {

CaughtError caught_error() {
  CaughtError caught;
  try {
    throw;
  } catch (const Error& error) {
    caught.caught = CaughtKind::core;
    caught.kind = error.kind;
    caught.code = error.code;
    caught.message = error.message;
    caught.code_name = error.code_name;
    caught.call = error.call;
    caught.needs = error.needs;
    caught.found = error.found;
    if (const auto* failure = dynamic_cast<const SplitFailure*>(&error); failure != nullptr && failure->suggestion) {
      caught.has_suggestion = true;
      caught.suggestion = *failure->suggestion;
    }
  } catch (const std::bad_alloc&) {
    caught.caught = CaughtKind::out_of_memory;
  } catch (const std::exception& error) {
    caught.message = error.what();
  }
  return caught;
}

}  // namespace gctx
