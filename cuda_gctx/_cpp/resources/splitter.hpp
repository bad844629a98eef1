// The ways to split one resource, each a strategy that gives all groups or nothing.
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
  // Refers to what it is given.
  Splitter(const Driver& driver, const SmResourcePtr& input, Grain grain, bool dry_run, const Requery& requery)
      : driver_(&driver), input_(&input), grain_(grain), dry_run_(dry_run), requery_(&requery) {}

  Grain grain() const noexcept { return grain_; }
  unsigned sm_count() const noexcept { return input().sm_count; }

  // With every group as it was asked for: an open group gets as much as leaves the others what they need.
  SplitResult as_asked(const Needs& needs) const;

  // Where the aligned SMs are too few for all groups: some get pairs of SMs, the smallest groups first, because they
  // lose least.
  SplitResult loosened(const Needs& needs) const;

  // The grain that the driver really has, where it is coarser than what it says (seen on a card that says 8 and needs
  // 16).
  std::optional<Grain> real_grain() const;

  // Whether the driver has a way to keep the co-scheduling of a group, if there are enough SMs for it.
  bool can_promise(const Need& need) const;

  // How many SMs one split gives in equal units of `size`, and how many sit in sets of `size` inside one cluster of the
  // chip.
  unsigned in_units_of(unsigned size) const;
  unsigned in_sets_of(unsigned size, std::optional<unsigned> locality_domain = std::nullopt) const;

  // The pieces that groups out of pairs of SMs become, without asking the driver: there is nothing it could refuse.
  SplitResult known_pieces(const Needs& needs, Strategy strategy) const;

 private:
  using Order = InlineVector<std::uint32_t, 8>;
  using Resources = InlineVector<CUdevResource, 8>;
  using Params = CU_DEV_SM_RESOURCE_GROUP_PARAMS;
  struct Cut;
  class Pieces;
  // How SMs outside of co-scheduled sets come in: where the count demands it; beyond at least one set, as BACKFILL has
  // it; in pairs alone.
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
  std::optional<Strategy> label_;  // what its pieces are called, in place of the strategy that served
};

}  // namespace gctx
