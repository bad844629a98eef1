// Refuses a split: suggests a smaller request that fits, and names the option or driver that would serve this one.
#pragma once

#include <functional>
#include <vector>

#include "driver/driver.hpp"
#include "resources/request.hpp"
#include "resources/splitter.hpp"

namespace gctx {

// The resource of a refused split. `splitter` asks the driver; null where counting decides alone. `fits` is a dry run.
struct Refused {
  const Driver& driver;
  Grain grain;
  unsigned sm_count = 0;
  const Splitter* splitter = nullptr;
  std::function<bool(const std::vector<GroupRequest>&)> fits;
};

[[noreturn]] void refuse(const Refused& refused, const std::vector<GroupRequest>& requests);

}  // namespace gctx
