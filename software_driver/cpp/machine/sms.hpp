// The SMs of one device while kernels run: what is on each of them, who shares it, and how fast it goes.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "chip/chip.hpp"

namespace software_driver {

class Sms;
struct Work;
using WorkPtr = std::shared_ptr<Work>;

// Of moments.
inline constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

// What one block takes of an SM while it is there: threads in whole warps.
struct BlockNeeds {
  unsigned threads = 0;
  unsigned registers = 0;
  std::size_t shared_bytes = 0;  // what the system reserves for each block included
};

// What one block costs. `compute_ns` is its time alone on an SM, `throughput` the part of the SM's throughput that it
// uses then (0: it only waits, as a spinning kernel does), `bytes` what it moves to and from device memory, of which no
// more than `in_flight` are under way at once.
struct BlockCost {
  double compute_ns = 0;
  double throughput = 1;
  double bytes = 0;
  double in_flight = 0;
};

// A run: blocks of one grid that follow each other in one place of an SM. The blocks of a cluster are as many runs of
// one length, which share their number.
struct Resident {
  WorkPtr work;
  std::uint64_t index = 0;  // of the first block
  std::uint64_t count = 1;
  std::uint64_t run = 0;
  std::size_t places = 1;  // of all runs with this number
  BlockNeeds needs;
  BlockCost cost;
  double alone_ns = 0;  // of one block, alone on the device
  double left_ns = 0;   // of all of them, at full speed
  double rate = 1;
  std::uint64_t started = 0;
  bool is_executed = false;  // to its end, whose time has not come

  // Goes on with so many more pieces of work in its place, each of this cost.
  void go_on(const Sms& sms, const BlockCost& piece, std::uint64_t pieces);
};

class Sms {
 public:
  explicit Sms(const Chip& chip);

  const Profile& profile() const noexcept { return chip_->profile(); }
  // How many such blocks fit on an empty SM.
  static unsigned capacity(const Profile& profile, const BlockNeeds& needs);
  // The time of a block that has the device to itself.
  double alone_ns(const BlockCost& cost) const;

  // Offers the SMs of `among` on which one more such block fits, each time the one with the fewest blocks, as long as
  // `take` places one there and wants more. Blocks go breadth first: assumed; recordings show only that every SM of a
  // partition is used by a grid that fills it.
  void deal(const SmSet& among, const BlockNeeds& needs, const std::function<bool(std::size_t sm)>& take) const;
  // SMs for `count` blocks at once, all in one of `parts`; empty if there is no room.
  std::vector<std::size_t> room_together(const std::vector<SmSet>& parts, const BlockNeeds& needs,
                                         unsigned count) const;
  // Places all blocks of a grid as one event, where that makes no difference: they fit at once on SMs that are empty,
  // and use no memory. Returns false where it does.
  bool place_whole(const WorkPtr& work, const SmSet& among, std::uint64_t blocks, const BlockNeeds& needs,
                   const BlockCost& cost, std::uint64_t now);
  // Turns grids that are placed whole on some of these SMs into blocks, for others to come beside them. `ended` gets
  // the number of blocks that have ended by now.
  void unfold(const SmSet& among, std::uint64_t now,
              const std::function<void(const WorkPtr&, std::uint64_t blocks)>& ended);
  // Begins a run in each of the places: several are those of a cluster.
  void place(std::span<const std::size_t> places, Resident run, std::uint64_t now);

  // Copies and fills inside device memory take their part of its bandwidth.
  void add_flow(const WorkPtr& work, double bytes, std::uint64_t now);

  // The next moment at which something ends; `never` if nothing runs.
  std::uint64_t next_end(std::uint64_t now);
  // Takes away what has ended by `now` and is given nothing more to do. The blocks are asked in the order of their
  // beginning, so that those on other SMs come before those that share one.
  void collect(std::uint64_t now, const std::function<void(const WorkPtr&, std::uint64_t blocks)>& whole_ended,
               const std::function<void(std::size_t sm, Resident&)>& give_more,
               const std::function<void(std::size_t sm, const Resident&)>& ended,
               const std::function<void(const WorkPtr&)>& flow_ended);
  // Returns whether all that runs are blocks of such work.
  bool runs_only(const std::function<bool(const Work&)>& is_meant) const;
  // Ends the runs that reach into a set of SMs after the blocks that are running, where `gives_way`, and reports how
  // many blocks are given back. The runs of a cluster are cut to one length, so that whole clusters are given back;
  // they are left alone once one of them has ended.
  void cut_short(const SmSet& among, std::uint64_t now, const std::function<bool(const Work&)>& gives_way,
                 const std::function<void(const WorkPtr&, std::uint64_t blocks)>& given_back);

 private:
  struct Sm {
    unsigned blocks = 0;
    unsigned threads = 0;
    unsigned registers = 0;
    std::size_t shared_bytes = 0;
    double demand = 0;  // bytes per ns that it would move if memory had no limit but the SM's own
    std::vector<Resident> residents{};
    std::uint64_t updated = 0;  // up to here its residents have gone on
    std::uint64_t end = 0;      // when the first of them is over, while the rates hold
    bool stale = false;         // they do not fit what runs

    void take(const BlockNeeds& needs) {
      ++blocks;
      threads += needs.threads;
      registers += needs.registers;
      shared_bytes += needs.shared_bytes;
    }
    void lose(const BlockNeeds& needs) {
      --blocks;
      threads -= needs.threads;
      registers -= needs.registers;
      shared_bytes -= needs.shared_bytes;
    }
  };
  struct Flow {
    WorkPtr work;
    double left_bytes;
    double rate = 0;
  };
  // A grid whose blocks are placed as one. Some SMs have one block more than the others, and end later.
  struct Whole {
    WorkPtr work;
    SmSet sms;
    std::uint64_t blocks;
    std::uint64_t fewer;  // blocks on most SMs
    std::uint64_t more;   // SMs with one block more
    BlockNeeds needs;
    BlockCost cost;
    std::uint64_t started;

    std::uint64_t on(std::uint64_t place) const noexcept { return fewer + (place < more ? 1 : 0); }
  };
  std::uint64_t end_of(const Whole& whole, std::uint64_t on_sm) const;
  double rate_of(const BlockCost& cost, double alone_ns, double used) const;
  bool fits(const Sm& sm, const BlockNeeds& needs) const;
  template <class Visit>
  void each_busy(Visit&& visit);
  void touch(Sm& sm, std::uint64_t now);
  void touch_flows(std::uint64_t now);
  void share_throughput(Sm& sm) const;
  void set_rates(std::uint64_t now);

  const Chip* chip_;
  std::vector<Sm> sms_;
  SmSet busy_;
  std::vector<Flow> flows_;
  std::vector<Whole> wholes_;
  std::vector<std::pair<std::size_t, Resident*>> over_;  // in collect(), kept for its memory alone
  std::uint64_t runs_ = 0;                               // begun
  std::uint64_t flows_updated_ = 0;
  bool stale_ = false;  // some SM is, or the flows are others
};

}  // namespace software_driver
