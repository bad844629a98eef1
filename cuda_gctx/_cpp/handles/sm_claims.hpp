// Claims: which leases have which SMs of a device.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "handles/runtime.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

inline std::string label_of_context(const std::string& name) {
  return name.empty() ? "an unnamed context" : "context '" + name + "'";
}

class Claim;
class LeaseGroup;

class SmClaims {
 public:
  static constexpr Runtime::Place place = Runtime::Place::claims;
  explicit SmClaims(const Runtime& runtime) : devices_(static_cast<std::size_t>(runtime.device_count())) {}

  // Returns for each resource whether no claim is known to have its SMs, or may have them.
  std::vector<int> are_free(int ordinal, const std::vector<SmResourcePtr>& sms);

 private:
  friend class Claim;
  struct Device {
    std::mutex mutex;
    std::vector<const Claim*> claims;
  };

  std::vector<Device> devices_;
};

inline SmClaims& sm_claims(Runtime& runtime) { return runtime.part<SmClaims>(); }

// The SMs of one lease, until it is released.
class Claim {
 public:
  struct Terms {
    bool exclusive = false;             // refuses SMs that other claims have, and tells later claims
    bool only_free = false;             // refuses SMs that other claims have
    const LeaseGroup* group = nullptr;  // claims of one group may share SMs: they are used one at a time
    const Claim* inside = nullptr;      // the claim whose SMs are split
    std::string advice{};               // ends the report about SMs that other claims have
  };

  // Compares the SMs with all other claims and makes this one, in one step. `names` go with `sms`. Throws where the
  // terms refuse SMs.
  Claim(Runtime& runtime, int device, std::vector<SmResourcePtr> sms, std::vector<std::string> names, Terms terms);
  ~Claim() { release(); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // The claims that share SMs with this one, or may, in one sentence; empty if there are none.
  const std::string& overlap_report() const noexcept { return overlap_report_; }

  void note_closed() noexcept;  // the lease lingers
  void release() noexcept;      // twice does nothing

 private:
  friend class SmClaims;

  SmClaims::Device& device_;
  const std::vector<SmResourcePtr> sms_;
  const std::vector<std::string> names_;
  const Terms terms_;
  bool is_closed_ = false;
  std::string overlap_report_;
};

}  // namespace gctx
