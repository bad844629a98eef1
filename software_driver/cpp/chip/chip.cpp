// The layout of a chip's SMs.
#include "chip/chip.hpp"

#include <algorithm>
#include <stdexcept>

namespace software_driver {

// SM ids count across the GPCs, a pair at a time, as long as a cluster has pairs; pairs that belong to
// no large cluster come last (recorded: %smid on the H200).
Chip::Chip(const Profile& profile) : profile_(profile), gpc_sms_(profile.sms_per_gpc.size()) {
  for (const int sms : profile.sms_per_gpc) {
    sm_count_ += static_cast<unsigned>(sms);
  }
  if (sm_count_ > max_sms) {
    throw std::length_error("a chip has more SMs than the model holds");
  }
  gpcs_.resize(gpc_sms_.size());
  int next = 0;
  const auto number_pair = [&](std::size_t gpc) {
    for (unsigned i = 0; i < pair_size; ++i, ++next) {
      gpc_sms_[gpc].push_back(next);
      gpcs_[gpc].set(static_cast<std::size_t>(next));
    }
  };
  const int largest = *std::max_element(profile.sms_per_gpc.begin(), profile.sms_per_gpc.end());
  for (int round = 0; round < largest; round += static_cast<int>(pair_size)) {
    for (std::size_t gpc = 0; gpc < gpcs_.size(); ++gpc) {
      const int sms = profile.sms_per_gpc[gpc];
      if (sms > static_cast<int>(pair_size) && round < sms) {
        number_pair(gpc);
      }
    }
  }
  for (std::size_t gpc = 0; gpc < gpcs_.size(); ++gpc) {
    if (profile.sms_per_gpc[gpc] == static_cast<int>(pair_size)) {
      number_pair(gpc);
    }
  }
  for (const SmSet& gpc : gpcs_) {
    all_ |= gpc;
  }

  // Domains are runs of large clusters, and pairs outside of them belong to no domain: assumed. With one domain, it is
  // the whole chip.
  domains_.resize(static_cast<std::size_t>(profile.locality_domains));
  domain_of_.assign(sm_count_, domains_.size() == 1 ? 0 : -1);
  domain_sms_ = sm_count_;
  if (domains_.size() == 1) {
    domains_[0] = all_;
    return;
  }
  for (std::size_t domain = 0; domain < domains_.size(); ++domain) {
    const std::size_t first = domain * gpcs_.size() / domains_.size();
    const std::size_t last = (domain + 1) * gpcs_.size() / domains_.size();
    for (std::size_t gpc = first; gpc < last; ++gpc) {
      if (gpc_sms_[gpc].size() == pair_size) {
        continue;
      }
      domains_[domain] |= gpcs_[gpc];
      for (const int sm : gpc_sms_[gpc]) {
        domain_of_[static_cast<std::size_t>(sm)] = static_cast<int>(domain);
      }
    }
    domain_sms_ = std::min(domain_sms_, static_cast<unsigned>(domains_[domain].count()));
  }
  domain_sms_ -= domain_sms_ % profile_.domain_alignment;
  for (const SmSet& domain : domains_) {
    supplemental_ |= domain & ~take(domain, domain_sms_);
  }
}

SmSet Chip::take(const SmSet& from, std::size_t gpc, unsigned count) const { return take(from & gpcs_[gpc], count); }

SmSet Chip::take(const SmSet& from, unsigned count) const {
  SmSet taken;
  for (std::size_t sm = 0; sm < sm_count_ && count != 0; ++sm) {
    taken[sm] = from[sm];
    count -= from[sm] ? 1 : 0;
  }
  return taken;
}

SmSet Chip::leftovers(const SmSet& from, unsigned size) const {
  SmSet left;
  for (std::size_t gpc = 0; gpc < gpcs_.size(); ++gpc) {
    const SmSet here = from & gpcs_[gpc];
    const auto count = static_cast<unsigned>(here.count());
    if (count % size != 0) {
      left |= here & ~take(here, gpc, count - count % size);
    }
  }
  return left;
}

SmSet Chip::locality_domain(unsigned id) const {
  if (id < domains_.size()) {
    return domains_[id];
  }
  SmSet any;
  if (id == CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY) {
    for (const SmSet& domain : domains_) {
      any |= domain;
    }
  }
  return any;
}

}  // namespace software_driver
