// What a split gives: all groups and the remainder, or a failure that names the nearest request that fits.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "resources/request.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

struct SplitResult {
  std::vector<SmResourcePtr> groups;
  SmResourcePtr remainder;
};

// A split that cannot be given, with the nearest one that can.
class SplitFailure : public Error {
 public:
  explicit SplitFailure(std::string text) : Error(ErrorKind::split, std::move(text)) {}
  std::optional<std::vector<GroupRequest>> suggestion;
};

// The suggestion of the SplitFailure in flight, inside a catch block; nothing if it has none, or is another error.
std::optional<std::vector<GroupRequest>> caught_suggestion();

}  // namespace gctx
