// Names of the boxes and of the shared handles to them, for headers that need no more.
#pragma once

#include <memory>

namespace gctx {

class Runtime;

class DriverContext;
class Lease;
class ContextBox;
class StreamBox;
class EventBox;
using DriverContextHandle = std::shared_ptr<DriverContext>;
using LeaseHandle = std::shared_ptr<Lease>;
using ContextHandle = std::shared_ptr<ContextBox>;
using StreamHandle = std::shared_ptr<StreamBox>;
using EventHandle = std::shared_ptr<EventBox>;

enum class ContextKind : int { primary, green, foreign };

}  // namespace gctx
