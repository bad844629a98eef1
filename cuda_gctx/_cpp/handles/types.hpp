// Names of the boxes and of the shared handles to them, for headers that need no more.
#pragma once

#include <memory>

namespace gctx {

class Runtime;

class GreenCtxBox;
class ContextBox;
class StreamBox;
class EventBox;
using GreenCtxHandle = std::shared_ptr<GreenCtxBox>;
using ContextHandle = std::shared_ptr<ContextBox>;
using StreamHandle = std::shared_ptr<StreamBox>;
using EventHandle = std::shared_ptr<EventBox>;

}  // namespace gctx
