// The C++ interface of cuda_gctx: owners over the C interface. It is header-only, so that it works with every C++
// library and compiler.
#ifndef CUDA_GCTX_HPP
#define CUDA_GCTX_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_gctx.h"

namespace cuda_gctx {

// A failed call: the error, and the CUresult if it came from the driver (otherwise 0).
class error : public std::runtime_error {
 public:
  error(int number, const char* message, int cuda_result)
      : std::runtime_error(message), number_(number), cuda_result_(cuda_result) {}
  gctx_error number() const noexcept { return static_cast<gctx_error>(number_); }
  int cuda_result() const noexcept { return cuda_result_; }

 private:
  int number_;
  int cuda_result_;
};

inline void check(int answer) {
  if (answer != GCTX_SUCCESS) {
    int cuda_result = 0;
    const char* message = gctx_last_error(&cuda_result);
    throw error(answer, message, cuda_result);
  }
}

// The request for one group of a split.
using group = gctx_group;

// In partition(): all SMs that the other groups leave.
inline constexpr unsigned rest = GCTX_REST;

// An event, a CUevent and cudaEvent_t.
class event {
 public:
  void* handle() const noexcept { return gctx_event_handle(owned_.get()); }
  void sync() const { check(gctx_sync_event(owned_.get())); }
  bool is_done() const {
    int done = 0;
    check(gctx_event_is_done(owned_.get(), &done));
    return done != 0;
  }
  // The milliseconds since an earlier event; both were created with timing.
  float operator-(const event& start) const {
    float milliseconds = 0;
    check(gctx_elapsed_ms(start.owned_.get(), owned_.get(), &milliseconds));
    return milliseconds;
  }

 private:
  friend class context;
  friend class stream;
  struct closer {
    void operator()(gctx_event* owned) const noexcept { gctx_close_event(owned); }
  };
  explicit event(gctx_event* owned) : owned_(owned) {}
  std::unique_ptr<gctx_event, closer> owned_;
};

// A stream, a CUstream and cudaStream_t. It keeps its context alive.
class stream {
 public:
  void* handle() const noexcept { return gctx_stream_handle(owned_.get()); }
  void sync() const { check(gctx_sync_stream(owned_.get())); }
  bool is_done() const {
    int done = 0;
    check(gctx_stream_is_done(owned_.get(), &done));
    return done != 0;
  }
  void record(const event& at) const { check(gctx_record_event(owned_.get(), at.owned_.get())); }
  void wait(const event& at) const { check(gctx_wait_event(owned_.get(), at.owned_.get())); }
  void wait(const stream& other) const { check(gctx_wait_stream(owned_.get(), other.owned_.get())); }

 private:
  friend class context;
  struct closer {
    void operator()(gctx_stream* owned) const noexcept { gctx_close_stream(owned); }
  };
  explicit stream(gctx_stream* owned) : owned_(owned) {}
  std::unique_ptr<gctx_stream, closer> owned_;
};

// A green context. Its destructor closes it. A context that is current on a thread stays open.
class context {
 public:
  explicit context(gctx_context* owned) : owned_(owned) {}
  void* handle() const noexcept { return gctx_context_handle(owned_.get()); }
  unsigned sm_count() const noexcept { return gctx_context_sm_count(owned_.get()); }
  stream create_stream(int priority = 0) const {
    gctx_stream* made = nullptr;
    check(gctx_create_stream(owned_.get(), priority, &made));
    return stream(made);
  }
  event create_event(bool timing = false) const {
    gctx_event* made = nullptr;
    check(gctx_create_event(owned_.get(), timing ? 1 : 0, &made));
    return event(made);
  }
  void close() {
    check(gctx_close_context(owned_.get()));
    owned_.release();
  }

 private:
  struct closer {
    void operator()(gctx_context* owned) const noexcept { gctx_close_context(owned); }
  };
  std::unique_ptr<gctx_context, closer> owned_;
};

// A set of SMs. It reserves nothing.
class sms {
 public:
  explicit sms(gctx_sms* owned) : owned_(owned, &gctx_close_sms) {}
  static sms of_device(int device) {
    gctx_sms* found = nullptr;
    check(gctx_device(device, &found));
    return sms(found);
  }

  unsigned count() const noexcept { return gctx_sm_count(owned_.get()); }
  // The groups, and last the remaining SMs.
  std::vector<sms> split(const std::vector<group>& requests) const {
    std::vector<gctx_sms*> made(requests.size() + 1, nullptr);
    std::vector<sms> all;
    all.reserve(made.size());
    check(gctx_split(owned_.get(), requests.data(), requests.size(), made.data(), &made.back()));
    for (gctx_sms* one : made) {
      all.emplace_back(one);
    }
    return all;
  }
  context create_context(const std::string& name = {}, bool exclusive = false) const {
    const gctx_sms* one = owned_.get();
    gctx_context* made = nullptr;
    check(gctx_create_context(&one, 1, name.c_str(), exclusive ? 1 : 0, &made));
    return context(made);
  }

 private:
  std::shared_ptr<gctx_sms> owned_;
};

// Creates a context over each group of a device. At most one group has an sm_count of `rest`. names: for messages, one
// for each group, or none at all.
inline std::vector<context> partition(int device, const std::vector<group>& requests, bool exclusive = false,
                                      const std::vector<const char*>& names = {}) {
  if (!names.empty() && names.size() != requests.size()) {
    throw std::invalid_argument("names and requests differ in length");
  }
  std::vector<gctx_context*> made(requests.size(), nullptr);
  std::vector<context> all;
  all.reserve(made.size());
  check(gctx_partition(device, requests.data(), names.empty() ? nullptr : names.data(), requests.size(),
                       exclusive ? 1 : 0, made.data()));
  for (gctx_context* one : made) {
    all.emplace_back(one);
  }
  return all;
}

}  // namespace cuda_gctx
#endif
