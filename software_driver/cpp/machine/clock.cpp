// Carries out queued work in virtual time: a discrete-event simulation whose events are the ends of blocks and of
// copies.
#include "machine/clock.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <thread>
#include <utility>

#include "machine/host_threads.hpp"
#include "machine/observer.hpp"

namespace software_driver {
namespace {

// Another process writes without a word to this one.
constexpr std::chrono::milliseconds between_looks_at_memory{1};
constexpr std::chrono::milliseconds between_looks_at_threads{1};

bool is_ready(const Work& work, std::uint64_t time) {
  return work.submitted <= time &&
         std::all_of(work.after.begin(), work.after.end(), [](const WorkPtr& before) { return before->done; });
}

bool is_settled(const WorkPtr& work) {
  return work->done && std::ranges::all_of(work->failures, &Failure::is_reported);
}

// Those of a list that are meant, which are in it no more.
template <class Is>
std::vector<WorkPtr> taken_out(std::vector<WorkPtr>& list, Is&& is_meant) {
  std::vector<WorkPtr> found;
  std::erase_if(list, [&](const WorkPtr& work) { return is_meant(*work) && (found.push_back(work), true); });
  return found;
}

// How many blocks (of a cluster: clusters) follow each other in one place without being looked at in between. The more
// are `left` the longer the run, so that a launch costs the same however many blocks it has; the last four waves are
// dealt block by block.
std::uint64_t run_length(const Grid& grid, std::uint64_t left) {
  if (grid.count.placed() < grid.seen || grid.tiles > 0) {
    return 1;
  }
  return std::max<std::uint64_t>(1, left / (2 * grid.places));
}

// How many tiles a block takes at once. The last eight waves are dealt one by one.
std::uint64_t take_tiles(Grid& grid) {
  const std::uint64_t taken = std::min(grid.tiles, 1 + grid.tiles / (8 * grid.places));
  grid.tiles -= taken;
  return taken;
}

softwareDriverBlock describe(const Work& work, const Resident& resident, std::size_t sm, std::uint64_t end) {
  const Grid& grid = *work.grid;
  const std::uint64_t index = resident.index;
  softwareDriverBlock block{};
  block.block[0] = static_cast<unsigned>(index % grid.blocks[0]);
  block.block[1] = static_cast<unsigned>(index / grid.blocks[0] % grid.blocks[1]);
  block.block[2] = static_cast<unsigned>(index / grid.blocks[0] / grid.blocks[1]);
  std::copy(grid.blocks.begin(), grid.blocks.end(), block.grid);
  std::copy(grid.threads.begin(), grid.threads.end(), block.threads);
  block.index = static_cast<unsigned>(index);
  block.smid = static_cast<unsigned>(sm);
  block.device = work.device;
  block.start_ns = resident.started;
  block.end_ns = end;
  return block;
}

}  // namespace

bool Clock::has_reported(const WorkPtr& work) { return is_settled(work); }

// Queued work keeps its queue alive, and its followers, which keep it alive in turn: they are parted here.
Clock::~Clock() {
  std::vector<std::deque<WorkPtr>> parted;
  for (Connection* connection : busy_) {
    parted.push_back(std::exchange(connection->waiting, {}));
  }
  for (const auto& [sequence, work] : outstanding_) {
    work->followers.clear();
  }
}

void Clock::list(const WorkPtr& work, std::uint64_t context) {
  std::vector<WorkPtr>& known = by_context_[context];
  if (known.size() == known.capacity()) {
    std::erase_if(known, is_settled);
  }
  known.push_back(work);
}

std::vector<WorkPtr> Clock::outstanding_of(std::uint64_t context) {
  const auto found = by_context_.find(context);
  if (found == by_context_.end()) {
    return {};
  }
  std::erase_if(found->second, is_settled);
  return found->second;
}

void Clock::show_to_primary(const WorkPtr& work) {
  if (work && !work->done && work->seen == Seen::by_none) {
    work->seen = Seen::by_waits;
    list(work, work->owner.root);
  }
}

void Clock::expect_effect(Work& work) {
  work.shows = true;
  ++to_show_;
  host_threads_.expect(HostThreads::Expected::effect);
}

void Clock::share() {
  for (const auto& [sequence, work] : outstanding_) {
    if (!shared_ && !work->shows) {
      expect_effect(*work);
    }
  }
  shared_ = true;
}

void Clock::submit(const WorkPtr& work) {
  if (work->sequence != 0) {
    broken_law("work is queued twice");
  }
  work->submitted = times_.submit(time_);
  work->sequence = ++sequence_;
  std::erase_if(work->after, [&](const WorkPtr& before) {
    if (before && before->done) {
      work->inherit_failures(*before);
    }
    return !before || before->done;
  });
  // What only marks a place in an order is there at once where nothing stands before it.
  if (work->is_mark() && work->after.empty() && (work->connection == nullptr || work->connection->waiting.empty())) {
    work->done = true;
    work->ended = work->submitted;
    work->guesses = guesses_;
    work->queues.reset();
    return;
  }
  if (work->gathers) {
    by_context_.erase(work->owner.context);
  }
  list(work, work->owner.context);
  if (work->seen != Seen::by_none && work->owner.root != work->owner.context) {
    list(work, work->owner.root);
  }
  if (work->host) {
    host_threads_.expect(HostThreads::Expected::function);
  }
  if (work->shows || shared_) {
    expect_effect(*work);
  }
  outstanding_.emplace(work->sequence, work);
  if (work->connection == nullptr) {
    work->blockers = work->after.size();
    for (const WorkPtr& before : work->after) {
      before->followers.push_back(work);
    }
    if (work->blockers == 0) {
      unbound_.push_back(work);
    }
    return;
  }
  work->connection->waiting.push_back(work);
  if (!work->connection->listed) {
    work->connection->listed = true;
    busy_.push_back(work->connection);
  }
}

void Clock::begin(const WorkPtr& work) {
  work->started = time_;
  DeviceLoad& device = devices_[static_cast<std::size_t>(work->device)];
  if (work->grid) {
    begin_grid(work);
  } else if (work->until) {
    waits_.push_back(work);
  } else if (work->host) {
    host_calls_.push_back({work, Wall::now()});
    ++host_calls_made_;
    host_threads_.post(work);
  } else if (work->engine != Engine::none) {
    device.copies.push_back(work);
  } else if (work->duration > 0) {
    timers_.push({time_ + work->duration, work});
  } else if (work->bytes > 0) {
    device.sms.add_flow(work, work->bytes, time_);
  } else {
    complete(work);
  }
}

// Higher priorities (lower numbers) first; among equals the one that became ready first.
void Clock::queue_grid(DeviceLoad& device, const WorkPtr& work) {
  auto& grids = device.grids;
  const auto place = std::find_if(grids.begin(), grids.end(), [&](const WorkPtr& other) {
    const int own = work->grid->priority;
    return other->grid->priority > own || (other->grid->priority == own && other->sequence > work->sequence);
  });
  grids.insert(place, work);
}

void Clock::begin_grid(const WorkPtr& work) {
  DeviceLoad& device = devices_[static_cast<std::size_t>(work->device)];
  // Runs of blocks with less priority give way after the block that is running.
  device.sms.cut_short(
      work->grid->sms, time_, [&](const Work& other) { return other.grid->priority > work->grid->priority; },
      [&](const WorkPtr& other, std::uint64_t blocks) {
        if (other->grid->count.waiting() == 0) {
          queue_grid(device, other);
        }
        other->grid->count.give_back(blocks);
      });
  auto& grids = device.grids;
  const auto place = std::find_if(grids.begin(), grids.end(),
                                  [&](const WorkPtr& other) { return other->grid->priority > work->grid->priority; });
  grids.insert(place, work);
}

bool Clock::start_copies(DeviceLoad& device) {
  bool any = false;
  for (auto it = device.copies.begin();
       it != device.copies.end() && device.copying < device.sms.profile().copy_engines;) {
    const WorkPtr work = *it;
    bool& taken = device.engines[static_cast<std::size_t>(work->engine)];
    if (taken && work->engine != Engine::in_device) {
      ++it;
      continue;
    }
    taken = true;
    ++device.copying;
    it = device.copies.erase(it);
    work->started = time_;
    timers_.push({time_ + work->duration, work});
    any = true;
  }
  return any;
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
  for (const WorkPtr& work : taken_out(waits_, [](const Work& waiting) { return waiting.until(); })) {
    complete(work);
    any = true;
  }
  for (const WorkPtr& work : taken_out(unbound_, [&](const Work& waiting) { return is_ready(waiting, time_); })) {
    begin(work);
    any = true;
  }
  for (DeviceLoad& device : devices_) {
    any = start_copies(device) || any;
  }
  return any;
}

void Clock::place_blocks(DeviceLoad& device) {
  for (auto it = device.grids.begin(); it != device.grids.end();) {
    const WorkPtr work = *it;
    Grid& grid = *work->grid;
    if (grid.count.placed() == 0) {
      work->started = time_;  // unless no block finds room now
    }
    const bool is_plain = grid.cluster == 1 && grid.tiles == 0 && grid.seen == 0 && !grid.built_in &&
                          grid.function == nullptr && grid.count.placed() == 0;
    if (is_plain && device.sms.place_whole(work, grid.sms, grid.count.waiting(), grid.needs, grid.cost, time_)) {
      grid.count.place(grid.count.waiting());
      it = device.grids.erase(it);
      continue;
    }
    device.sms.unfold(grid.sms, time_, [&](const WorkPtr& other, std::uint64_t blocks) { end_blocks(other, blocks); });
    // Runs that begin together are of one length: where nothing else is in the way they end together.
    const auto place = [&, left = grid.count.waiting()](std::span<const std::size_t> sms) {
      const std::uint64_t length = run_length(grid, left);
      device.sms.place(
          sms, {.work = work, .index = grid.count.placed(), .count = length, .needs = grid.needs, .cost = grid.cost},
          time_);
      grid.count.place(length * sms.size());
      return grid.count.waiting() > 0;
    };
    if (grid.cluster > 1) {
      std::vector<std::size_t> sms;
      do {
        sms = device.sms.room_together(grid.parts, grid.needs, grid.cluster);
      } while (!sms.empty() && place(sms));
    } else {
      device.sms.deal(grid.sms, grid.needs, [&](std::size_t sm) { return place(std::array{sm}); });
    }
    it = grid.count.waiting() == 0 ? device.grids.erase(it) : it + 1;
  }
}

void Clock::end_blocks(std::size_t sm, const Resident& resident) {
  const WorkPtr& work = resident.work;
  Grid& grid = *work->grid;
  grid.count.end(resident.count);
  if (grid.function != nullptr || grid.built_in) {
    const softwareDriverBlock block = describe(*work, resident, sm, time_);
    if (grid.built_in) {
      grid.built_in(block);
    }
    // The grid is over when its last function has returned.
    if (grid.function != nullptr) {
      block_calls_.push_back({work, block});
      return;
    }
  }
  if (grid.count.is_over()) {
    complete(work);
  }
}

void Clock::end_blocks(const WorkPtr& work, std::uint64_t blocks) {
  work->grid->count.end(blocks);
  if (work->grid->count.is_over()) {
    complete(work);
  }
}

namespace {

void tell_observer(const Work& work) {
  const bool moves = work.engine != Engine::none || work.bytes > 0;
  if (observer.load(std::memory_order_relaxed) == nullptr || !(work.grid || moves || work.source.ends_launch)) {
    return;
  }
  softwareDriverActivity activity{};
  activity.kind = work.source.ends_launch       ? softwareDriverGraphActivity
                  : work.grid                   ? softwareDriverKernelActivity
                  : work.engine != Engine::none ? softwareDriverCopyActivity
                                                : softwareDriverFillActivity;
  activity.device = work.device;
  activity.context = work.source.context != 0 ? work.source.context : work.owner.context;
  activity.stream = work.source.stream;
  activity.launch = work.source.launch != 0 ? work.source.launch : work.sequence;
  activity.graph = work.source.graph;
  activity.started = work.started;
  activity.ended = work.ended;
  activity.bytes = static_cast<std::uint64_t>(work.bytes);
  activity.name = work.grid && work.grid->kernel ? work.grid->kernel->c_str() : "";
  observe(activity);
}

}  // namespace

void Clock::complete(const WorkPtr& work) {
  if (work->done) {
    broken_law("work is done twice");
  }
  if (work->grid && !work->grid->count.is_over()) {
    broken_law("a grid is done before its blocks");
  }
  if (const Effect effect = std::exchange(work->effect, nullptr)) {
    if (Rest rest = effect()) {
      unfinished_.push_back({work, std::move(rest)});
      return;
    }
  }
  for (const WorkPtr& before : work->after) {
    work->inherit_failures(*before);
  }
  work->done = true;
  work->ended = time_;
  tell_observer(*work);
  times_.wake(work, time_);
  for (WorkPtr& follower : std::exchange(work->followers, {})) {
    if (--follower->blockers == 0) {
      unbound_.push_back(std::move(follower));
    }
  }
  work->after.clear();
  outstanding_.erase(work->sequence);
  if (work->engine != Engine::none) {
    DeviceLoad& device = devices_[static_cast<std::size_t>(work->device)];
    device.engines[static_cast<std::size_t>(work->engine)] = false;
    --device.copying;
  }
  if (work->grid && work->grid->guessed) {
    guesses_ = {guesses_.count + 1, work->grid->guessed};
  }
  work->guesses = guesses_;
  const std::size_t inherited = work->failures.size();
  if (work->marks) {
    work->marks(*work);
  }
  if (work->failures.size() > inherited) {
    failed_.push_back(work);
  }
  work->marks = nullptr;
  if (work->shows) {
    --to_show_;
    host_threads_.shown();
  }
  work->host = nullptr;
  work->grid.reset();
  work->queues.reset();
}

void Clock::execute(DeviceLoad& device, std::size_t sm, Resident& resident) {
  if (resident.is_executed) {
    return;
  }
  executes_ = true;
  const Grid& grid = *resident.work->grid;
  const Execution::Step step = grid.execution->step(resident.index, sm, time_);
  resident.is_executed = step.is_over;
  idle_steps_ = step.is_idle ? idle_steps_ + 1 : 0;
  // The declared cost of a block is over when it is executed; if it waits, it goes on from there.
  if (!step.is_over || !grid.is_declared) {
    resident.go_on(device.sms, step.cost, 1);
  }
}

// Returns whether nothing is under way but kernels that wait.
bool Clock::waits_for_host_alone() const {
  return timers_.empty() && waits_.empty() && host_calls_.empty() &&
         std::ranges::all_of(devices_, [](const DeviceLoad& device) {
           return device.copies.empty() &&
                  device.sms.runs_only([](const Work& work) { return work.grid && work.grid->execution; });
         });
}

// Other threads come to their calls between the steps of kernels. Where all kernels wait for something that only the
// host can do, it gets time for it.
void Clock::let_others_in(Lock& lock) {
  constexpr std::chrono::milliseconds longest{5};
  constexpr std::uint64_t many_steps = 2048;
  const auto now = Wall::now();
  const bool all_wait = idle_steps_ >= many_steps && waits_for_host_alone();
  if (!all_wait && now - let_in_ < longest) {
    return;
  }
  if (all_wait) {
    std::vector<std::shared_ptr<Execution>> executions;
    for (const auto& [sequence, work] : outstanding_) {
      if (work->grid && work->grid->execution && work->grid->count.placed() > 0) {
        executions.push_back(work->grid->execution);
      }
    }
    idle_since_ = idle_since_ == Wall::time_point{} ? now : idle_since_;
    const bool is_first = idle_since_ == now;
    if (is_first || now - idle_since_ > patience_) {
      if (!std::ranges::all_of(executions, &Execution::is_stuck)) {
        idle_steps_ = 0;
      } else if (!is_first) {
        std::ranges::for_each(executions, &Execution::give_up);
        idle_steps_ = 0;
      }
    }
  }
  if (idle_steps_ < many_steps) {
    idle_since_ = {};
  }
  times_.end_driver_time();
  lock.unlock();
  advanced_.notify_all();
  if (all_wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } else {
    std::this_thread::yield();
  }
  lock.lock();
  times_.begin_driver_time();
  let_in_ = Wall::now();
}

bool Clock::run_unlocked(Lock& lock) {
  if (block_calls_.empty() && unfinished_.empty()) {
    return false;
  }
  const auto calls = std::exchange(block_calls_, {});
  auto unfinished = std::exchange(unfinished_, {});
  lock.unlock();
  for (Unfinished& work : unfinished) {
    std::exchange(work.rest, nullptr)();
  }
  {
    const HostThreads::InsideFunction inside;
    for (BlockCall call : calls) {
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
      if (!call.work->grid->failed && grid.function(grid.user, &call.block) != 0) {
        call.work->grid->failed = true;
      }
    }
  }
  lock.lock();
  for (const Unfinished& work : unfinished) {
    complete(work.work);
  }
  for (const BlockCall& call : calls) {
    if (call.work->grid && call.work->grid->count.is_over()) {
      complete(call.work);
    }
  }
  return true;
}

// Time stands still while a host function runs, but not for ever.
bool Clock::wait_for_host(Lock& lock) {
  const auto since = std::max_element(host_calls_.begin(), host_calls_.end(),
                                      [](const HostCall& a, const HostCall& b) { return a.since < b.since; });
  if (since == host_calls_.end()) {
    return false;
  }
  const auto until = since->since + host_patience;
  if (Wall::now() >= until) {
    return false;
  }
  times_.end_driver_time();
  advanced_.wait_until(lock, until);
  times_.begin_driver_time();
  return true;
}

void Clock::host_returned(const WorkPtr& work) {
  std::erase_if(host_calls_, [&](const HostCall& call) { return call.work == work; });
  complete(work);
  advanced_.notify_all();
}

std::uint64_t Clock::next_moment() {
  std::uint64_t moment = timers_.empty() ? never : timers_.top().end;
  for (DeviceLoad& device : devices_) {
    moment = std::min(moment, device.sms.next_end(time_));
  }
  const auto later = [&](const Work& work) {
    if (work.submitted > time_) {
      moment = std::min(moment, work.submitted);
    }
  };
  for (const Connection* connection : busy_) {
    later(*connection->waiting.front());
  }
  for (const WorkPtr& work : unbound_) {
    later(*work);
  }
  return moment;
}

// Up to `limit`, or until `reached`.
template <class Reached>
void Clock::advance(Lock& lock, std::uint64_t limit, Bound bound, Reached&& reached) {
  // Whatever happens here, others that wait for their turn get it.
  struct Turn {
    explicit Turn(Clock& of) : clock(of) {
      clock.advancing_ = true;
      clock.times_.begin_driver_time();
    }
    ~Turn() {
      clock.advancing_ = false;
      clock.times_.end_driver_time();
      clock.advanced_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Clock& clock;
  };
  const Turn turn(*this);
  while (true) {
    while (start_ready()) {
    }
    for (DeviceLoad& device : devices_) {
      place_blocks(device);
    }
    // Functions and large copies run unlocked: other threads may have queued more meanwhile.
    if (run_unlocked(lock)) {
      continue;
    }
    if (reached()) {
      break;
    }
    if (wait_for_host(lock)) {
      continue;
    }
    const std::uint64_t moment = next_moment();
    if (moment == never || moment > limit || (!bound.none && times_.expects_call_before(moment, bound.self))) {
      break;
    }
    if (moment < time_) {
      broken_law("time runs backwards");
    }
    if (std::exchange(executes_, false)) {
      let_others_in(lock);
      continue;
    }
    time_ = moment;
    while (!timers_.empty() && timers_.top().end <= time_) {
      const WorkPtr work = timers_.top().work;
      timers_.pop();
      if (work->bytes > 0) {
        devices_[static_cast<std::size_t>(work->device)].sms.add_flow(work, work->bytes, time_);
      } else {
        complete(work);
      }
    }
    for (DeviceLoad& device : devices_) {
      device.sms.collect(
          time_, [&](const WorkPtr& work, std::uint64_t blocks) { end_blocks(work, blocks); },
          [&](std::size_t sm, Resident& resident) {
            if (!resident.work->grid) {
              broken_law("a block ends after its grid");
            }
            Grid& grid = *resident.work->grid;
            if (grid.execution) {
              return execute(device, sm, resident);
            }
            if (const std::uint64_t tiles = take_tiles(grid); tiles > 0) {
              resident.go_on(device.sms, grid.tile, tiles);
            }
          },
          [&](std::size_t sm, const Resident& resident) { end_blocks(sm, resident); },
          [&](const WorkPtr& work) { complete(work); });
    }
  }
}

void Clock::catch_up(Lock& lock, const ThreadTime& thread) {
  if (advancing_ || HostThreads::is_inside_function()) {
    return;
  }
  const std::uint64_t limit = thread.now;
  if (!outstanding_.empty()) {
    advance(lock, limit, {&thread}, [] { return false; });
  }
  if (!advancing_ && !times_.expects_call_before(limit, &thread)) {
    // The host's clock decides which threads are expected: one may have been, for work before the limit.
    time_ = std::max(time_, outstanding_.empty() ? limit : std::min(limit, next_moment()));
  }
}

void Clock::poll(Lock& lock, ThreadTime& thread, const WorkPtr& work) {
  thread.now += unchanged_poll_ns;
  catch_up(lock, thread);
  if (!work || work->done) {
    return thread.polled.clear();
  }
  auto found = std::ranges::find(thread.polled, work, &ThreadTime::Polled::work);
  if (found == thread.polled.end()) {
    found = thread.polled.insert(found, {work, 0});
  }
  if (++found->count < unchanged_polls || advancing_ || HostThreads::is_inside_function()) {
    return;
  }
  const auto first_done = [&] {
    return std::ranges::find_if(thread.polled, [](const ThreadTime::Polled& polled) { return polled.work->done; });
  };
  const std::uint64_t limit = thread.now + longest_jump_ns;
  advance(lock, limit, {&thread}, [&] { return first_done() != thread.polled.end(); });
  if (const auto done = first_done(); done != thread.polled.end()) {
    thread.now = std::max(thread.now, done->work->ended);
    thread.polled.clear();
  } else if (next_moment() != never && !times_.expects_call_before(limit, &thread)) {
    thread.now = limit;
    thread.polled.clear();
  }
}

bool Clock::finish(Lock& lock, ThreadTime& thread, WorkPtr target) {
  // Whatever ends the wait, the thread may call again.
  struct Wait {
    Wait(ThreadTime& of, const WorkPtr& work) : waiting(of) { waiting.target = work; }
    ~Wait() { waiting.target = nullptr; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    ThreadTime& waiting;
  };
  thread.polled.clear();
  while (target && !target->done) {
    if (HostThreads::is_inside_function()) {
      return false;
    }
    const Wait wait(thread, target);
    if (advancing_) {
      advanced_.wait(lock);
      continue;
    }
    advance(lock, never, {&thread}, [&] { return target->done; });
    if (target->done) {
      break;
    }
    if (next_moment() != never) {
      // Another thread may call before that moment; it says nothing when it does not.
      advanced_.wait_for(lock, between_looks_at_threads);
    } else if (!waits_.empty()) {
      advanced_.wait_for(lock, between_looks_at_memory);
    } else if (host_calls_.empty()) {
      return false;
    } else {
      advanced_.wait(lock);
    }
  }
  if (target) {
    thread.now = std::max(thread.now, target->ended);
  }
  return true;
}

void Clock::advance_thread(Lock& lock, ThreadTime& thread, std::uint64_t ns) {
  thread.now = now(thread) + ns;
  if (!advancing_ && !HostThreads::is_inside_function()) {
    advance(lock, thread.now, {.none = true}, [] { return false; });
    time_ = std::max(time_, thread.now);
  }
}

template <class Reached>
void Clock::pass_until(Lock& lock, Bound bound, Reached&& reached) {
  if (!advancing_ && !outstanding_.empty() && !HostThreads::is_inside_function()) {
    advance(lock, never, bound, reached);
  }
}

void Clock::reach_host_function(Lock& lock) {
  pass_until(lock, {.none = true}, [&, made = host_calls_made_] { return host_calls_made_ != made; });
}

void Clock::reach_effects(Lock& lock) {
  pass_until(lock, {.none = true}, [&, made = host_calls_made_] { return to_show_ == 0 || host_calls_made_ != made; });
}

void Clock::relieve(Lock& lock, const ThreadTime& thread) {
  pass_until(lock, {&thread}, [&] { return !is_full(); });
}

}  // namespace software_driver
