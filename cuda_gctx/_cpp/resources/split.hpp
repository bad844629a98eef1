// Splitting SMs: one meaning on every driver, whatever means the driver offers.
#pragma once

#include <functional>
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

// The driver splits only what a device or context query returned. This asks a context over a group or a remainder (see
// handles/split_contexts.hpp).
using Requery = std::function<SmResourcePtr(const SmResourcePtr&)>;

SplitResult split(const Driver& driver, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                  bool dry_run, const Requery& requery);

}  // namespace gctx
