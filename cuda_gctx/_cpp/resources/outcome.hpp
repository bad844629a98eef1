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
  std::string advice;  // what else the message says behind the request: why there is none, or what would help
};

// The SplitFailure in flight, inside a catch block and as long as that lasts; null if it is another error.
const SplitFailure* caught_split() noexcept;

}  // namespace gctx
