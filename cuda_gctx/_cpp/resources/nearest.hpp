// What to say where a split does not fit: the nearest request that does, and what would make this one fit.
#pragma once

#include <functional>
#include <vector>

#include "driver/driver.hpp"
#include "resources/request.hpp"
#include "resources/splitter.hpp"

namespace gctx {

// What a refusal knows of the resource. `splitter` asks the driver; null where counting decides alone.
struct Refused {
  const Driver& driver;
  Grain grain;
  unsigned sm_count = 0;
  const Splitter* splitter = nullptr;
  std::function<bool(const std::vector<GroupRequest>&)> fits;
};

[[noreturn]] void refuse(const Refused& refused, const std::vector<GroupRequest>& requests);

}  // namespace gctx
