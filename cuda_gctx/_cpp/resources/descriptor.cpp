#include "resources/descriptor.hpp"

namespace gctx {

void demand_sms(const SmResource& resource) {
  if (resource.dry_run) {
    fail_value("a dry-run SMResource cannot be used: repeat the split without dry_run");
  }
  if (resource.sm_count == 0) {
    fail_value("an SMResource has no SMs: the split that created it left no remainder");
  }
}

CUdevResourceDesc descriptor_of(const Driver& driver, const SmResource& resource) {
  demand_sms(resource);
  CUdevResourceDesc descriptor{};
  auto units = resource.units;  // a copy, because the parameter of the driver is not const
  GCTX_CALL(driver, cuDevResourceGenerateDesc, &descriptor, units.data(), static_cast<unsigned>(units.size()));
  return descriptor;
}

}  // namespace gctx
