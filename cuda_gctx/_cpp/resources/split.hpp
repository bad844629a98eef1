// Splitting SMs: one meaning on every driver, whatever means the driver offers.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "driver/driver.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

struct GroupRequest {
  std::optional<unsigned> count;  // nothing: everything left
  unsigned coscheduled = 0;       // 0: the alignment of what is split
  unsigned preferred = 0;         // 0: no preference
  bool backfill = false;
  std::optional<unsigned> locality_domain;
};

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

// Makes a group or remainder splittable, by asking a context over it (see hidden_query in handles/).
using Requery = std::function<SmResourcePtr(const SmResourcePtr&)>;

SplitResult split(const Driver& driver, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                  bool dry_run, const Requery& requery);

}  // namespace gctx
