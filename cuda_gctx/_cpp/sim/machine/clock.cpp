// Carries out queued work in virtual time: a discrete-event simulation whose events are the ends of blocks and of
// copies.
#include "sim/machine/clock.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace gctx::sim {
namespace {

constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

bool is_ready(const Work& work, std::uint64_t time) {
  return work.submitted <= time &&
         std::all_of(work.after.begin(), work.after.end(), [](const WorkPtr& before) { return before->done; });
}

// Blocks go breadth first: to the SM with the fewest blocks. Assumed; hardware recordings show only that every SM of a
// partition is used by a grid that fills it.
int least_loaded(const std::vector<SmLoad>& loads, const SmSet& sms, unsigned threads, const Profile& profile) {
  int best = -1;
  for (std::size_t sm = 0; sm < loads.size(); ++sm) {
    if (!sms.test(sm)) continue;
    const SmLoad& load = loads[sm];
    if (load.blocks >= static_cast<unsigned>(profile.max_blocks_per_sm)) continue;
    if (load.threads + threads > static_cast<unsigned>(profile.max_threads_per_sm)) continue;
    if (best < 0 || load.blocks < loads[static_cast<std::size_t>(best)].blocks) best = static_cast<int>(sm);
  }
  return best;
}

// The SMs for the blocks of the next cluster: all of one part, and there is room for all at once.
std::vector<int> room_for_cluster(const std::vector<SmLoad>& loads, const Grid& grid, const Profile& profile) {
  std::vector<int> best;
  unsigned best_load = 0;
  for (const SmSet& part : grid.parts) {
    std::vector<SmLoad> trial = loads;
    std::vector<int> chosen;
    unsigned load = 0;
    while (chosen.size() < grid.cluster) {
      const int sm = least_loaded(trial, part, grid.block_threads, profile);
      if (sm < 0) break;
      SmLoad& here = trial[static_cast<std::size_t>(sm)];
      load = std::max(load, ++here.blocks);
      here.threads += grid.block_threads;
      chosen.push_back(sm);
    }
    if (chosen.size() < grid.cluster || (!best.empty() && load >= best_load)) continue;
    best = std::move(chosen);
    best_load = load;
  }
  return best;
}

// The SMs for the next blocks of a grid that have to start together; none if there is no room.
std::vector<int> room_for_next(const std::vector<SmLoad>& loads, const Grid& grid, const Profile& profile) {
  if (grid.cluster > 1) return room_for_cluster(loads, grid, profile);
  const int sm = least_loaded(loads, grid.sms, grid.block_threads, profile);
  return sm < 0 ? std::vector<int>{} : std::vector<int>{sm};
}

}  // namespace

// Queued work and the queue that it stands in keep each other alive: they are parted here.
Clock::~Clock() {
  std::vector<std::deque<WorkPtr>> parted;
  for (Connection* connection : busy_) parted.push_back(std::exchange(connection->waiting, {}));
}

void Clock::submit(const WorkPtr& work) {
  work->submitted = now_;
  work->sequence = ++sequence_;
  std::erase_if(work->after, [](const WorkPtr& before) { return !before || before->done; });
  ++outstanding_;
  if (work->connection == nullptr) {
    unbound_.push_back(work);
    return;
  }
  work->connection->waiting.push_back(work);
  if (!work->connection->listed) {
    work->connection->listed = true;
    busy_.push_back(work->connection);
  }
}

void Clock::begin(const WorkPtr& work) {
  if (!work->grid) {
    if (work->duration == 0) {
      complete(work);
    } else {
      running_.push({time_ + work->duration, work->sequence, -1, work});
    }
    return;
  }
  auto& grids = devices_[static_cast<std::size_t>(work->device)].grids;
  // Higher priorities (lower numbers) first; among equals the one that became ready first.
  const auto place = std::find_if(grids.begin(), grids.end(),
                                  [&](const WorkPtr& other) { return other->grid->priority > work->grid->priority; });
  grids.insert(place, work);
}

bool Clock::start_heads() {
  bool any = false;
  for (std::size_t i = 0; i < busy_.size();) {
    Connection& connection = *busy_[i];
    // The last work on a connection may be all that keeps it alive.
    const std::shared_ptr<QueueSet> keep = connection.waiting.empty() ? nullptr : connection.waiting.front()->queues;
    while (!connection.waiting.empty() && is_ready(*connection.waiting.front(), time_)) {
      const WorkPtr work = connection.waiting.front();
      connection.waiting.pop_front();
      begin(work);
      any = true;
    }
    if (connection.waiting.empty()) {
      connection.listed = false;
      busy_[i] = busy_.back();
      busy_.pop_back();
    } else {
      ++i;
    }
  }
  return any;
}

bool Clock::start_ready() {
  bool any = start_heads();
  for (std::size_t i = 0; i < unbound_.size();) {
    if (!is_ready(*unbound_[i], time_)) {
      ++i;
      continue;
    }
    const WorkPtr work = unbound_[i];
    unbound_.erase(unbound_.begin() + static_cast<std::ptrdiff_t>(i));
    begin(work);
    any = true;
  }
  return any;
}

void Clock::place_block(DeviceLoad& device, const WorkPtr& work, int sm) {
  Grid& grid = *work->grid;
  SmLoad& load = device.sms[static_cast<std::size_t>(sm)];
  ++load.blocks;
  load.threads += grid.block_threads;
  const unsigned index = grid.placed++;
  ++grid.running;
  gctxSimBlock block{};
  block.block[0] = index % grid.blocks[0];
  block.block[1] = index / grid.blocks[0] % grid.blocks[1];
  block.block[2] = index / grid.blocks[0] / grid.blocks[1];
  std::copy(grid.blocks.begin(), grid.blocks.end(), block.grid);
  std::copy(grid.threads.begin(), grid.threads.end(), block.threads);
  block.index = index;
  block.smid = static_cast<unsigned>(sm);
  block.device = work->device;
  block.start_ns = time_;
  block.end_ns = time_ + grid.block_ns;
  if (grid.built_in) grid.built_in(block);
  if (grid.function != nullptr) block_calls_.push_back({work, block});
  running_.push({block.end_ns, work->sequence, sm, work});
}

void Clock::place_blocks(DeviceLoad& device) {
  for (auto it = device.grids.begin(); it != device.grids.end();) {
    const WorkPtr work = *it;
    const Grid& grid = *work->grid;
    while (grid.placed < grid.total) {
      const std::vector<int> sms = room_for_next(device.sms, grid, device.chip->profile());
      if (sms.empty()) break;
      for (const int sm : sms) place_block(device, work, sm);
    }
    it = grid.placed == grid.total ? device.grids.erase(it) : it + 1;
  }
}

void Clock::complete(const WorkPtr& work) {
  work->done = true;
  work->ended = time_;
  work->after.clear();
  --outstanding_;
  if (work->effect) work->effect();
  if (work->host) host_calls_.push_back(std::move(work->host));
  work->effect = nullptr;
  work->grid.reset();
  work->queues.reset();
}

bool Clock::call_host(Lock& lock) {
  if (block_calls_.empty() && host_calls_.empty()) return false;
  const auto blocks = std::exchange(block_calls_, {});
  const auto calls = std::exchange(host_calls_, {});
  lock.unlock();
  for (HostCall call : blocks) {
    const Grid& grid = *call.work->grid;
    std::vector<void*> values;
    std::vector<std::size_t> sizes;
    for (const auto& argument : grid.arguments) {
      values.push_back(const_cast<unsigned char*>(argument.data()));
      sizes.push_back(argument.size());
    }
    call.block.arguments = values.data();
    call.block.argument_sizes = sizes.data();
    call.block.argument_count = static_cast<unsigned>(values.size());
    grid.function(grid.user, &call.block);
  }
  for (const auto& call : calls) call();
  lock.lock();
  return true;
}

std::uint64_t Clock::next_moment() const {
  std::uint64_t moment = running_.empty() ? never : running_.top().end;
  const auto later = [&](const Work& work) {
    if (work.submitted > time_) moment = std::min(moment, work.submitted);
  };
  for (const Connection* connection : busy_) later(*connection->waiting.front());
  for (const WorkPtr& work : unbound_) later(*work);
  return moment;
}

void Clock::run(Lock& lock, std::uint64_t limit, const Work* target) {
  while (true) {
    while (start_ready()) {
    }
    for (DeviceLoad& device : devices_) place_blocks(device);
    // Host functions run unlocked: other threads may have queued more meanwhile.
    if (call_host(lock)) continue;
    if (target != nullptr && target->done) return;
    const std::uint64_t moment = next_moment();
    if (moment == never || (target == nullptr && moment > limit)) break;
    time_ = std::max(time_, moment);
    while (!running_.empty() && running_.top().end <= time_) {
      const Block block = running_.top();
      running_.pop();
      if (!block.work->grid) {
        complete(block.work);
        continue;
      }
      Grid& grid = *block.work->grid;
      SmLoad& load = devices_[static_cast<std::size_t>(block.work->device)].sms[static_cast<std::size_t>(block.sm)];
      --load.blocks;
      load.threads -= grid.block_threads;
      if (--grid.running == 0 && grid.placed == grid.total) complete(block.work);
    }
  }
  if (target == nullptr) time_ = std::max(time_, limit);
}

void Clock::catch_up(Lock& lock) {
  if (advancing_) return;
  if (outstanding_ == 0) {
    time_ = std::max(time_, now_);
    return;
  }
  advancing_ = true;
  advancing_thread_ = std::this_thread::get_id();
  run(lock, now_, nullptr);
  advancing_ = false;
  advanced_.notify_all();
}

bool Clock::finish(Lock& lock, WorkPtr target) {
  while (target && !target->done) {
    if (advancing_) {
      if (advancing_thread_ == std::this_thread::get_id()) return false;
      advanced_.wait(lock);
      continue;
    }
    advancing_ = true;
    advancing_thread_ = std::this_thread::get_id();
    run(lock, never, target.get());
    advancing_ = false;
    advanced_.notify_all();
    if (!target->done && next_moment() == never) return false;
  }
  if (target) now_ = std::max(now_, target->ended);
  return true;
}

WorkPtr Clock::oldest() const {
  WorkPtr found;
  for (const Connection* connection : busy_) {
    const WorkPtr& head = connection->waiting.front();
    if (!found || head->sequence < found->sequence) found = head;
  }
  return found;
}

}  // namespace gctx::sim
