// The strategies to split one resource. Each gives all groups or an empty result.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "driver/driver.hpp"
#include "resources/outcome.hpp"
#include "resources/request.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class Splitter {
 public:
  // Keeps references to the driver, the input and requery.
  Splitter(const Driver& driver, const SmResourcePtr& input, Grain grain, bool dry_run, const Requery& requery)
      : driver_(&driver), input_(&input), grain_(grain), dry_run_(dry_run), requery_(&requery) {}

  Grain grain() const noexcept { return grain_; }
  unsigned sm_count() const noexcept { return input().sm_count; }

  // Gives every group its requested placement. An open group gets the SMs that the other groups leave.
  SplitResult as_asked(const Needs& needs) const;

  // Gives some groups pairs of SMs, if the aligned SMs are too few: the smallest groups first, because they lose least.
  SplitResult loosened(const Needs& needs) const;

  // Returns the actual grain of the driver if it is coarser than the reported one (seen: a card reports 8 and needs
  // 16).
  std::optional<Grain> real_grain() const;

  // Returns whether the driver can keep the co-scheduling of a group, given enough SMs.
  bool can_promise(const Need& need) const;

  // Returns the pieces of groups of pairs of SMs without a call of the driver, which could not refuse them.
  SplitResult known_pieces(const Needs& needs, Strategy strategy) const;

 private:
  using Order = InlineVector<std::uint32_t, 8>;
  using Resources = InlineVector<CUdevResource, 8>;
  using Params = CU_DEV_SM_RESOURCE_GROUP_PARAMS;
  struct Cut;
  class Pieces;
  // The use of SMs outside of co-scheduled sets. none: only if the count demands it. beyond_sets: in addition to at
  // least one set, as BACKFILL does. pairs: only such SMs.
  enum class Fill { none, beyond_sets, pairs };

  SplitResult at_once(const Needs& needs) const;
  SplitResult in_one_call(const Needs& needs) const;
  SplitResult structured(const Needs& needs, Fill fill) const;
  SplitResult composed(const Needs& needs) const;
  SplitResult composed_of(unsigned unit, const Needs& needs) const;
  SplitResult composed_of(unsigned unit, const Needs& needs, unsigned flags) const;
  SplitResult fine(const Needs& needs) const;
  SplitResult bisected(const Needs& needs) const;

  Splitter labelled(Strategy label) const;
  static Order service_order(const Needs& needs);
  Params params_of(const Need& need, Fill fill) const;
  bool is_whole_sets(const Need& need) const;
  bool units_suffice(const Needs& needs) const;
  Cut by_count(unsigned groups, unsigned size, unsigned flags) const;
  SplitResult assembled(const Cut& cut, const Needs& needs, Strategy strategy, bool is_loose) const;
  const SmResource& input() const noexcept { return **input_; }
  bool is_whole() const noexcept { return input().whole_device; }

  const Driver* driver_;
  const SmResourcePtr* input_;
  Grain grain_;
  bool dry_run_;
  const Requery* requery_;
  std::optional<Strategy> label_;  // the strategy that the pieces name instead of the one that served
};

}  // namespace gctx
