// The C interface on the handles: exceptions become numbers and a message of the thread.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/error.hpp"
#include "handles/closing.hpp"
#include "handles/context.hpp"
#include "handles/cuda_gctx.h"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "handles/stream.hpp"
#include "resources/descriptor.hpp"

struct gctx_sms {
  gctx::Runtime* runtime;
  gctx::SmResourcePtr sms;
};
struct gctx_context {
  gctx::ContextHandle box;
  unsigned sm_count;
};
struct gctx_stream {
  gctx::StreamHandle box;
};

namespace {

using gctx::ErrorKind;

thread_local std::unique_ptr<gctx::Error> last_error;

gctx_error number_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::driver:
      return GCTX_ERROR_DRIVER;
    case ErrorKind::not_found:
      return GCTX_ERROR_NOT_FOUND;
    case ErrorKind::not_supported:
      return GCTX_ERROR_NOT_SUPPORTED;
    case ErrorKind::bad_value:
      return GCTX_ERROR_VALUE;
    case ErrorKind::bad_state:
    case ErrorKind::closed:
    case ErrorKind::current:
    case ErrorKind::forked:
    case ErrorKind::capturing:
      return GCTX_ERROR_STATE;
    case ErrorKind::split:
      return GCTX_ERROR_SPLIT;
    case ErrorKind::overlap:
      return GCTX_ERROR_OVERLAP;
    case ErrorKind::out_of_memory:
      return GCTX_ERROR_MEMORY;
    case ErrorKind::unknown:
      break;
  }
  return GCTX_ERROR_UNKNOWN;
}

template <typename Action>
int answer(Action&& action) noexcept {
  try {
    action();
    return GCTX_SUCCESS;
  } catch (...) {
    try {
      last_error = gctx::caught_error();
      return number_of(last_error->kind);
    } catch (...) {  // no memory for the message
      last_error.reset();
      return GCTX_ERROR_MEMORY;
    }
  }
}

template <typename Pointer>
void demand(Pointer given, const char* name) {
  if (given == nullptr) {
    gctx::fail_value(std::string(name) + " is NULL");
  }
}

std::vector<gctx::GroupRequest> requests_of(const gctx_group* groups, std::size_t count) {
  demand(groups, "requests");
  if (count == 0) {
    gctx::fail_value("count is 0: request at least one group");
  }
  std::vector<gctx::GroupRequest> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (groups[i].sm_count != 0) {
      requests[i].count = groups[i].sm_count;
    }
    requests[i].coscheduled = groups[i].coscheduled_sm_count;
    requests[i].backfill = groups[i].backfill != 0;
  }
  return requests;
}

gctx::SmResourcePtr device_sms(gctx::Runtime& runtime, int device) {
  if (device < 0 || device >= runtime.device_count()) {
    gctx::fail_value("there is no device " + std::to_string(device) + ": this machine has " +
                     std::to_string(runtime.device_count()));
  }
  return runtime.device_sm(device);
}

// Opens each context with a lease of its own, or none.
std::vector<std::unique_ptr<gctx_context>> open(gctx::Runtime& runtime, int device,
                                                std::vector<gctx::NewContext> requests, bool exclusive) {
  std::vector<std::unique_ptr<gctx_context>> made;
  for (const gctx::NewContext& request : requests) {
    unsigned sm_count = 0;
    for (const auto& part : request.groups) {
      gctx::demand_sms(*part);
      sm_count += part->sm_count;
    }
    made.push_back(std::make_unique<gctx_context>(gctx_context{nullptr, sm_count}));
  }
  for (std::size_t at = 0; at < requests.size(); ++at) {
    gctx::Opening opening(runtime, device, {std::move(requests[at])},
                          {exclusive, false, false, nullptr, nullptr, "close the other one first, or split once"});
    made[at]->box = opening.lease().contexts.front();
  }
  return made;
}

}  // namespace

extern "C" {

int gctx_version() { return GCTX_VERSION; }

const char* gctx_last_error(int* cuda_result) {
  if (cuda_result != nullptr) {
    *cuda_result = last_error ? static_cast<int>(last_error->code) : 0;
  }
  return last_error ? last_error->what() : "";
}

int gctx_open(const char* driver) {
  return answer([&] {
    if (driver == nullptr || gctx::Runtime::is_any_open()) {
      gctx::Runtime::active();
    } else {
      gctx::Runtime::open(driver);
    }
  });
}

int gctx_device(int device, gctx_sms** sms) {
  return answer([&] {
    demand(sms, "sms");
    gctx::Runtime& runtime = gctx::Runtime::active();
    *sms = new gctx_sms{&runtime, device_sms(runtime, device)};
  });
}

unsigned gctx_sm_count(const gctx_sms* sms) { return sms != nullptr ? sms->sms->sm_count : 0; }

int gctx_split(const gctx_sms* sms, const gctx_group* requests, size_t count, gctx_sms** groups, gctx_sms** remainder) {
  return answer([&] {
    demand(sms, "sms");
    demand(groups, "groups");
    sms->runtime->demand_usable();
    const gctx::SplitResult split = gctx::split_resource(*sms->runtime, sms->sms, requests_of(requests, count), false);
    std::vector<std::unique_ptr<gctx_sms>> made;
    for (std::size_t i = 0; i < count; ++i) {
      made.push_back(std::make_unique<gctx_sms>(gctx_sms{sms->runtime, split.group(i)}));
    }
    if (remainder != nullptr) {
      *remainder = new gctx_sms{sms->runtime, split.remainder()};
    }
    for (auto& group : made) {
      *groups++ = group.release();
    }
  });
}

int gctx_create_context(const gctx_sms* const* sms, size_t count, const char* name, int exclusive,
                        gctx_context** context) {
  return answer([&] {
    demand(sms, "sms");
    demand(context, "context");
    if (count == 0) {
      gctx::fail_value("count is 0: a context needs SMs");
    }
    std::vector<gctx::SmResourcePtr> parts;
    for (std::size_t i = 0; i < count; ++i) {
      demand(sms[i], "one of sms");
      parts.push_back(sms[i]->sms);
    }
    sms[0]->runtime->demand_usable();
    const int device = parts.front()->device;
    std::vector<gctx::NewContext> request;
    request.push_back({name != nullptr ? name : "", std::move(parts), std::nullopt});
    *context = open(*sms[0]->runtime, device, std::move(request), exclusive != 0).front().release();
  });
}

int gctx_partition(int device, const gctx_group* requests, const char* const* names, size_t count, int exclusive,
                   gctx_context** contexts) {
  return answer([&] {
    demand(contexts, "contexts");
    gctx::Runtime& runtime = gctx::Runtime::active();
    const auto groups = requests_of(requests, count);
    const gctx::SplitResult split = gctx::split_resource(runtime, device_sms(runtime, device), groups, false);
    std::vector<gctx::NewContext> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      wanted.push_back({names != nullptr && names[i] != nullptr ? names[i] : "", {split.group(i)}, std::nullopt});
    }
    for (auto& context : open(runtime, device, std::move(wanted), exclusive != 0)) {
      *contexts++ = context.release();
    }
  });
}

void* gctx_context_handle(const gctx_context* context) { return context != nullptr ? context->box->handle() : nullptr; }

unsigned gctx_context_sm_count(const gctx_context* context) { return context != nullptr ? context->sm_count : 0; }

int gctx_create_stream(const gctx_context* context, int priority, gctx_stream** stream) {
  return answer([&] {
    demand(context, "context");
    demand(stream, "stream");
    auto made = std::make_unique<gctx_stream>();
    made->box = gctx::create_stream(context->box, priority, true);
    *stream = made.release();
  });
}

void* gctx_stream_handle(const gctx_stream* stream) { return stream != nullptr ? stream->box->handle() : nullptr; }

void gctx_close_sms(gctx_sms* sms) { delete sms; }

int gctx_close_context(gctx_context* context) {
  return answer([&] {
    if (context != nullptr) {
      gctx::close_together({context->box});
      delete context;
    }
  });
}

void gctx_close_stream(gctx_stream* stream) { delete stream; }

}  // extern "C"
