// Leases: who has which SMs. A lease has one state word, a claim on SMs, and the contexts over them. Context objects,
// the partitions of a layout and the layouts of a pool each have one; blocks, streams and executable graphs are uses.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "handles/lease_state.hpp"
#include "handles/runtime.hpp"
#include "handles/sm_claims.hpp"
#include "handles/types.hpp"

namespace gctx {

// The leases of one pool of layouts, which are used one at a time: they may share SMs and contexts, and close together.
class LeaseGroup {
 public:
  bool is_open() const noexcept { return state_.is_open(); }
  // Closes all leases of the group, and refuses later ones. Returns false and changes nothing while a context of one of
  // them is current on a thread. Closing twice does nothing.
  bool close() noexcept;

 private:
  friend class Lease;
  LeaseState state_;  // counts threads on which a context of the group is current
  std::mutex mutex_;
  std::vector<Lease*> leases_;
};
using LeaseGroupHandle = std::shared_ptr<LeaseGroup>;

// Takes the contexts of leases that end.
class LeasedContexts {
 public:
  virtual void give_back(const Lease& lease) noexcept = 0;

 protected:
  ~LeasedContexts() = default;
};

class Lease : public std::enable_shared_from_this<Lease> {
 public:
  explicit Lease(Runtime& runtime) noexcept : runtime_(runtime) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Fills the lease: it has the SMs of the claim, and one context for each. Throws if the group is closed.
  void take(LeasedContexts& home, std::shared_ptr<Claim> claim, std::vector<DriverContextHandle> contexts,
            LeaseGroupHandle group);

  Runtime& runtime() const noexcept { return runtime_; }
  const std::vector<DriverContextHandle>& contexts() const noexcept { return contexts_; }
  bool is_open() const noexcept { return state_.is_open() && (!group_ || group_->is_open()); }
  const Claim* claim() const noexcept { return claim_.get(); }  // null for a primary context or other code

  // Begin and end uses: see LeaseState.
  bool enter() noexcept { return (!group_ || group_->is_open()) && state_.enter(); }
  bool enter_lingering() noexcept { return state_.enter_lingering(); }
  void enter_again() noexcept { state_.enter_again(); }
  void leave() noexcept {
    if (state_.leave()) {
      end();
    }
  }
  bool make_current() noexcept;
  void make_not_current() noexcept;

  // Closes the lease. Returns false and changes nothing while one of its contexts is current on a thread.
  bool close() noexcept;
  // Closes the lease of an owner that is gone. Contexts that are current keep it lingering.
  void abandon() noexcept { finish(state_.abandon()); }

 private:
  friend class LeaseGroup;
  void finish(LeaseState::Closing closing) noexcept;
  void end() noexcept;

  Runtime& runtime_;
  LeaseState state_;
  LeasedContexts* home_ = nullptr;
  LeaseGroupHandle group_;
  std::shared_ptr<Claim> claim_;
  std::vector<DriverContextHandle> contexts_;
};

}  // namespace gctx
