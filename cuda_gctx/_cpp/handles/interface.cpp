// The C interface on the handles: exceptions become numbers and a message of the thread.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/error.hpp"
#include "handles/closing.hpp"
#include "handles/context.hpp"
#include "handles/cuda_gctx.h"
#include "handles/event.hpp"
#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "handles/stream.hpp"
#include "resources/descriptor.hpp"
#include "resources/outcome.hpp"

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
struct gctx_event {
  gctx::EventHandle box;
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
    if (groups[i].sm_count == GCTX_REST) {
      gctx::fail_value("request " + std::to_string(i) +
                       " is GCTX_REST, which gctx_split does not take: it returns the "
                       "remaining SMs as the remainder");
    }
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
                     std::to_string(runtime.device_count()) + ", counted from 0");
  }
  return runtime.device_sm(device);
}

// Returns the groups of a device in the order of the requests. GCTX_REST is what a split for the others leaves.
std::vector<gctx::SmResourcePtr> groups_of(gctx::Runtime& runtime, int device, const gctx_group* requests,
                                           std::size_t count) {
  if (count == 0) {
    gctx::fail_value("count is 0: request at least one group");
  }
  demand(requests, "requests");
  std::vector<gctx_group> counted;
  std::size_t rest_at = count;
  for (std::size_t i = 0; i < count; ++i) {
    const gctx_group& request = requests[i];
    const std::string name = "request " + std::to_string(i);
    if (request.sm_count == 0) {
      gctx::fail_value(name + " is for 0 SMs: leave it out, or request all remaining SMs with GCTX_REST");
    }
    if (request.sm_count != GCTX_REST) {
      counted.push_back(request);
      continue;
    }
    if (rest_at != count) {
      gctx::fail_value(name + " is a second GCTX_REST: one request can take all remaining SMs");
    }
    if (request.coscheduled_sm_count != 0 || request.backfill != 0) {
      gctx::fail_value(name + " is GCTX_REST, which takes no other option");
    }
    rest_at = i;
  }
  const gctx::SmResourcePtr whole = device_sms(runtime, device);
  std::vector<gctx::SmResourcePtr> groups;
  gctx::SmResourcePtr remainder = whole;
  if (!counted.empty()) {
    const auto split = gctx::split_resource(runtime, whole, requests_of(counted.data(), counted.size()), false);
    for (std::size_t i = 0; i < counted.size(); ++i) {
      groups.push_back(split.group(i));
    }
    remainder = split.remainder();
  }
  if (rest_at != count) {
    if (remainder->sm_count == 0) {
      throw gctx::SplitFailure("the other requests take all " + std::to_string(whole->sm_count) +
                               " SMs, and none remain for GCTX_REST: request fewer");
    }
    groups.insert(groups.begin() + static_cast<std::ptrdiff_t>(rest_at), remainder);
  }
  return groups;
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
    const auto groups = groups_of(runtime, device, requests, count);
    std::vector<gctx::NewContext> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      wanted.push_back({names != nullptr && names[i] != nullptr ? names[i] : "", {groups[i]}, std::nullopt});
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

int gctx_sync_stream(const gctx_stream* stream) {
  return answer([&] {
    demand(stream, "stream");
    gctx::synchronize_stream(stream->box);
  });
}

int gctx_stream_is_done(const gctx_stream* stream, int* is_done) {
  return answer([&] {
    demand(stream, "stream");
    demand(is_done, "is_done");
    *is_done = gctx::stream_is_done(stream->box) ? 1 : 0;
  });
}

int gctx_create_event(const gctx_context* context, int timing, gctx_event** event) {
  return answer([&] {
    demand(context, "context");
    demand(event, "event");
    auto made = std::make_unique<gctx_event>();
    made->box = gctx::create_event(context->box, timing != 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
    *event = made.release();
  });
}

void* gctx_event_handle(const gctx_event* event) {
  if (event == nullptr) {
    return nullptr;
  }
  event->box->expose();
  return event->box->handle();
}

int gctx_record_event(const gctx_stream* stream, const gctx_event* event) {
  return answer([&] {
    demand(stream, "stream");
    demand(event, "event");
    gctx::record_event(stream->box, event->box);
  });
}

int gctx_wait_event(const gctx_stream* stream, const gctx_event* event) {
  return answer([&] {
    demand(stream, "stream");
    demand(event, "event");
    gctx::wait_event(stream->box, event->box);
  });
}

int gctx_wait_stream(const gctx_stream* stream, const gctx_stream* other) {
  return answer([&] {
    demand(stream, "stream");
    demand(other, "other");
    gctx::wait_stream(stream->box, other->box);
  });
}

int gctx_sync_event(const gctx_event* event) {
  return answer([&] {
    demand(event, "event");
    gctx::synchronize_event(event->box);
  });
}

int gctx_event_is_done(const gctx_event* event, int* is_done) {
  return answer([&] {
    demand(event, "event");
    demand(is_done, "is_done");
    *is_done = gctx::event_is_done(event->box) ? 1 : 0;
  });
}

int gctx_elapsed_ms(const gctx_event* start, const gctx_event* end, float* milliseconds) {
  return answer([&] {
    demand(start, "start");
    demand(end, "end");
    demand(milliseconds, "milliseconds");
    *milliseconds = gctx::elapsed_ms(start->box, end->box);
  });
}

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

void gctx_close_event(gctx_event* event) { delete event; }

}  // extern "C"
