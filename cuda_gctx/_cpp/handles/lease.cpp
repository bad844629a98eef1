#include "handles/lease.hpp"

#include <vector>

namespace gctx {

bool LeaseGroup::close() noexcept {
  if (state_.close() == LeaseState::Closing::refused) {
    return false;
  }
  // No context of the group can become current any more, and no lease can be added. A lease that ends takes itself off
  // the list, so that the list is walked by its last entry.
  for (;;) {
    LeaseHandle last;
    {
      const std::lock_guard lock(mutex_);
      while (!leases_.empty() && !(last = leases_.back()->weak_from_this().lock())) {
        leases_.pop_back();
      }
      if (!last) {
        return true;
      }
      leases_.pop_back();
    }
    last->abandon();
  }
}

Lease::~Lease() {
  if (state_.abandon() == LeaseState::Closing::ended) {
    end();
  }
}

void Lease::take(LeasedContexts& home, std::shared_ptr<Claim> claim, std::vector<DriverContextHandle> contexts,
                 LeaseGroupHandle group) {
  if (group) {
    const std::lock_guard lock(group->mutex_);
    group->leases_.push_back(this);
    if (!group->is_open()) {
      group->leases_.pop_back();
      fail(ErrorKind::closed, "the pool has been closed");
    }
  }
  home_ = &home;
  group_ = std::move(group);
  claim_ = std::move(claim);
  contexts_ = std::move(contexts);
}

bool Lease::make_current() noexcept {
  if (group_ && !group_->state_.make_current()) {
    return false;
  }
  if (!state_.make_current()) {
    if (group_) {
      group_->state_.make_not_current();
    }
    return false;
  }
  return true;
}

void Lease::make_not_current() noexcept {
  if (group_) {
    group_->state_.make_not_current();
  }
  if (state_.make_not_current()) {
    end();
  }
}

bool Lease::close() noexcept {
  const LeaseState::Closing closing = state_.close();
  finish(closing);
  return closing != LeaseState::Closing::refused;
}

void Lease::finish(LeaseState::Closing closing) noexcept {
  if (closing == LeaseState::Closing::ended) {
    end();
  } else if (closing == LeaseState::Closing::lingering && claim_ && !is_forked()) {
    claim_->note_closed();
  }
}

// Called once, by whoever closed the lease or ended its last use.
void Lease::end() noexcept {
  if (is_forked()) {
    return;
  }
  if (group_) {
    const std::lock_guard lock(group_->mutex_);
    std::erase(group_->leases_, this);
  }
  // The contexts go back first: who finds the SMs free finds their contexts idle.
  if (home_ != nullptr) {
    home_->give_back(*this);
  }
  if (claim_) {
    claim_->release();
  }
}

}  // namespace gctx
