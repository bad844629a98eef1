// Splits SMs. A request means the same on every driver, whatever functions the driver has.
#pragma once

#include <vector>

#include "driver/driver.hpp"
#include "resources/outcome.hpp"
#include "resources/request.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

SplitResult split(const Driver& driver, const SmResourcePtr& input, const std::vector<GroupRequest>& requests,
                  bool dry_run, const Requery& requery);

}  // namespace gctx
