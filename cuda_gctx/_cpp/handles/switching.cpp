#include "handles/switching.hpp"

#include <algorithm>
#include <utility>

#include "handles/capture.hpp"
#include "handles/captures.hpp"
#include "handles/context.hpp"
#include "handles/runtime.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

template <typename Context>
const Driver& driver_of(const Context& context) {
  return context->runtime().driver();
}

// Asked in the middle of other calls, which may be made during a capture.
CUresult ask(const EventBox& event) noexcept {
  const Driver& driver = driver_of(event.context());
  const RelaxedThread relaxed(driver);
  return driver.cuEventQuery(event.handle());
}

bool is_done(const EventBox& event) { return driver_of(event.context()).check_done(ask(event), "cuEventQuery"); }

template <typename Items, typename Item>
bool contains(const Items& items, const Item& item) noexcept {
  return std::find(items.begin(), items.end(), item) != items.end();
}

}  // namespace

// ---- places and arrangements

bool Switching::may_share(const Place& one, const Place& other) {
  if (one.stream || other.stream) {
    return true;  // the whole device
  }
  return std::none_of(one.sms.begin(), one.sms.end(), [&](const SmResourcePtr& mine) {
    return std::any_of(other.sms.begin(), other.sms.end(),
                       [&](const SmResourcePtr& theirs) { return overlaps(*mine, *theirs) == false; });
  });
}

void Switching::note_sharing(const Place& place) {
  for (const auto& other : places_) {
    if (other) {
      const bool answer = other.get() == &place || may_share(place, *other);
      other->shares[place.number] = places_[place.number]->shares[other->number] = answer;
    }
  }
}

Switching::Place& Switching::place_of(const NewUse& use) {
  const auto is_it = [&](const auto& known) {
    return known && (use.stream ? known->stream == use.stream
                                : !known->stream && known->context == use.context->driver_handle());
  };
  auto found = std::find_if(places_.begin(), places_.end(), is_it);
  if (found == places_.end()) {
    auto made = std::make_unique<Place>();
    const ContextHandle& box = use.stream ? use.stream->context() : use.context;
    made->context = box->driver_handle();
    made->stream = use.stream;
    made->event = create_event(box, CU_EVENT_DISABLE_TIMING);
    found = std::find(places_.begin(), places_.end(), nullptr);
    if (found == places_.end()) {
      for (const auto& other : places_) {
        if (other) {
          for (auto* const known : {&other->shares, &other->waits, &other->covers}) {
            known->resize(places_.size() + 1);
          }
        }
      }
      found = places_.emplace(places_.end());
    }
    made->number = static_cast<Number>(found - places_.begin());
    for (auto* const known : {&made->shares, &made->waits, &made->covers}) {
      known->resize(places_.size());
    }
    *found = std::move(made);
    forget_waits(**found);
  }
  Place& place = **found;
  if (use.sms && !contains(place.sms, use.sms)) {
    place.sms.push_back(use.sms);
  }
  note_sharing(place);
  return place;
}

// Parts are compared by their objects: equal names of parts that are known have one.
Switching::Part Switching::part_of(const std::string& name) const {
  for (const auto& arrangement : arrangements_) {
    for (const Use& use : arrangement ? arrangement->uses : std::vector<Use>{}) {
      if (*use.part == name) {
        return use.part;
      }
    }
  }
  for (const auto& place : places_) {
    for (const Part& part : place ? place->behind : std::vector<Part>{}) {
      if (*part == name) {
        return part;
      }
    }
  }
  return std::make_shared<const std::string>(name);
}

Switching::Number Switching::add_arrangement(std::vector<NewUse>& given) {
  const std::vector<NewUse> uses = std::move(given);
  demand_not_forked();
  const std::lock_guard lock(mutex_);
  sweep();
  Arrangement arrangement;
  for (const NewUse& use : uses) {
    Place& place = place_of(use);
    arrangement.uses.push_back({part_of(use.part), &place});
    if (!contains(arrangement.places, &place)) {
      arrangement.places.push_back(&place);
    }
    arrangement.contexts.push_back(use.stream ? use.stream->context() : use.context);
  }
  sources_.resize(std::max(sources_.size(), places_.size()));
  for (Source& source : sources_) {
    source.followers.reserve(places_.size());
  }
  auto found =
      std::find_if(arrangements_.begin(), arrangements_.end(), [](const auto& known) { return !known.has_value(); });
  if (found == arrangements_.end()) {
    found = arrangements_.emplace(arrangements_.end());
  }
  *found = std::move(arrangement);
  return static_cast<Number>(found - arrangements_.begin());
}

bool Switching::remove_arrangement(Number arrangement) {
  demand_not_forked();
  const std::lock_guard lock(mutex_);
  if (current_.load() == arrangement + 1) {
    return false;
  }
  if (arrangement < arrangements_.size()) {
    arrangements_[arrangement].reset();
    sweep();
  }
  return true;
}

void Switching::clear() noexcept {
  if (is_forked()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  current_.store(0);
  arrangements_.clear();
  places_.clear();
}

std::uint64_t Switching::last_switch(Number arrangement) {
  demand_not_forked();
  const std::lock_guard lock(mutex_);
  return arrangement < arrangements_.size() && arrangements_[arrangement] ? arrangements_[arrangement]->last_switch : 0;
}

// The places that no arrangement has, once nothing has to wait for their work any more.
void Switching::sweep() noexcept {
  for (auto& place : places_) {
    const auto uses_it = [&](const auto& arrangement) {
      return arrangement && contains(arrangement->places, place.get());
    };
    if (place && std::none_of(arrangements_.begin(), arrangements_.end(), uses_it)) {
      if (place->behind.empty() || !place->context->runtime().is_usable() || !place->context->is_there() ||
          ask(*place->event) != CUDA_ERROR_NOT_READY) {
        place.reset();
      }
    }
  }
}

// ---- what the driver is asked

void Switching::demand_no_capture(const Arrangement& arrangement) {
  for (Place* place : arrangement.places) {
    if (std::exchange(place->was_asked, true)) {
      continue;
    }
    DriverContext& context = *place->context;
    const bool captures =
        place->stream ? place->stream->may_capture() && is_capturing(driver_of(place->context), place->stream->handle())
                      : context.streams().may_capture() && context.streams().has_capture(driver_of(place->context));
    if (captures) [[unlikely]] {
      fail(ErrorKind::capturing,
           "a stream of the current or the next layout of the pool is capturing a graph: switch before or after the "
           "capture; a captured graph runs in other partitions by graph.in_partition()");
    }
  }
}

// Of the event that was recorded before, or of the place that had this number.
void Switching::forget_waits(const Place& source) noexcept {
  for (const auto& place : places_) {
    if (place) {
      place->waits[source.number] = place->covers[source.number] = false;
    }
  }
}

void Switching::record(Place& place) {
  const Driver& driver = driver_of(place.context);
  if (place.stream) {
    if (place.stream->may_capture()) {
      place.event->expose();
    }
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuEventRecord, place.event->handle(), place.stream->handle());
  } else {
    record_all(*place.context, place.event->handle());
  }
  forget_waits(place);
  place.covers = place.waits;
}

void Switching::wait(const Place& place, const EventHandle& event) {
  const Driver& driver = driver_of(place.context);
  if (place.stream) {
    if (event->may_capture()) {
      place.stream->expose();
    }
    GCTX_CALL_WITHOUT_CAPTURE(driver, cuStreamWaitEvent, place.stream->handle(), event->handle(),
                              CU_EVENT_WAIT_DEFAULT);
  } else {
    let_all_wait(*place.context, event->handle());
  }
}

// ---- the order

bool Switching::has(const Arrangement& arrangement, const Part& part, const Place* place) noexcept {
  return std::any_of(arrangement.uses.begin(), arrangement.uses.end(),
                     [&](const Use& use) { return use.part == part && use.place == place; });
}

// Whether all that runs in a place of one arrangement runs there in the other one too.
bool Switching::goes_on(const Arrangement& from, const Arrangement& to, const Place* place) noexcept {
  return std::all_of(from.uses.begin(), from.uses.end(),
                     [&](const Use& use) { return use.place != place || has(to, use.part, place); });
}

// Whether the work of a place of the next arrangement has to wait for the event of a source.
bool Switching::has_to_wait(const Place& source, const Place& later, const Arrangement& next) noexcept {
  const auto ran_there = [&](const Use& use) { return use.place == &later && contains(source.behind, use.part); };
  if (&source == &later) {
    // The same parts in the same place may run at once, as they do in one arrangement.
    return !std::all_of(source.behind.begin(), source.behind.end(),
                        [&](const Part& part) { return has(next, part, &later); });
  }
  return source.shares[later.number] || std::any_of(next.uses.begin(), next.uses.end(), ran_there);
}

void Switching::note_wait(Place& place, const Place& source) {
  if (!place.keeps_a_stream) {
    place.keeps_a_stream = place.stream || place.context->streams().any() != nullptr;
  }
  if (place.keeps_a_stream) {
    place.waits[source.number] = true;
    for (std::size_t number = 0; number < place.waits.size(); ++number) {
      place.waits[number] = place.waits[number] || source.covers[number];
    }
  }
}

// Whether the later place waits for one that is behind the source already. A source that is asked instead whether it is
// done costs more than all other calls while there is work on the device.
bool Switching::is_covered(const Place& source, const Place& later, const Arrangement& old, const Arrangement& next) {
  return std::any_of(old.places.begin(), old.places.end(), [&](const Place* between) {
    return between->was_recorded && between->covers[source.number] && has_to_wait(*between, later, next);
  });
}

void Switching::switch_to(Number next_number) {
  demand_not_forked();
  const std::lock_guard lock(mutex_);
  if (next_number >= arrangements_.size() || !arrangements_[next_number]) {
    fail(ErrorKind::closed, "the layout has been dropped by the pool");
  }
  Arrangement& next = *arrangements_[next_number];
  const Number current = current_.load();
  if (current == next_number + 1) {
    return;
  }
  const DriverContext* there = nullptr;
  for (const ContextHandle& context : next.contexts) {
    context->demand_live();
    // A primary context goes with a reset of its device: one question for all of its streams.
    if (std::exchange(there, &context->in_driver()) != &context->in_driver()) {
      context->demand_there();
    }
  }
  if (current != 0) {
    const Arrangement& old = *arrangements_[current - 1];
    for (const auto& place : places_) {
      if (place) {
        place->was_asked = false;
      }
    }
    const CaptureGate::Pass pass(*next.contexts.front());
    demand_no_capture(next);
    demand_no_capture(old);
    leave(old, next);
  }
  next.last_switch = ++switches_;
  current_.store(next_number + 1, std::memory_order_release);
}

void Switching::leave(const Arrangement& old, const Arrangement& next) {
  for (const auto& place : places_) {
    if (place) {
      place->was_recorded = false;
    }
  }
  for (Place* place : old.places) {
    // Recording a place that goes on would replace the event of an older part there, for which nobody waits then.
    if (goes_on(old, next, place)) {
      continue;
    }
    const auto is_of_old = [&](const Part& part) { return has(old, part, place); };
    if (!std::all_of(place->behind.begin(), place->behind.end(), is_of_old) && is_done(*place->event)) {
      place->behind.clear();
    }
    record(*place);
    place->was_recorded = true;
    for (const Use& use : old.uses) {
      if (use.place == place && !contains(place->behind, use.part)) {
        place->behind.push_back(use.part);
      }
    }
  }
  source_count_ = 0;
  for (const auto& source : places_) {
    if (!source || source->behind.empty()) {
      continue;
    }
    std::vector<Place*>& followers = sources_[source_count_].followers;
    followers.clear();
    for (Place* later : next.places) {
      // What goes on waited for older work when it began, and ran next to all else of the old arrangement.
      if (!goes_on(next, old, later) && has_to_wait(*source, *later, next) &&
          (source->was_recorded || !is_covered(*source, *later, old, next))) {
        followers.push_back(later);
      }
    }
    if (followers.empty()) {
      continue;
    }
    if (!source->was_recorded && is_done(*source->event)) {
      source->behind.clear();
      continue;
    }
    sources_[source_count_++].place = source.get();
  }
  let_wait(old);
}

void Switching::let_wait(const Arrangement& old) {
  const bool was_relayed = relayed(old);
  for (std::size_t at = 0; at < source_count_; ++at) {
    for (Place* follower : sources_[at].followers) {
      if (!was_relayed) {
        wait(*follower, sources_[at].place->event);
      }
      note_wait(*follower, *sources_[at].place);
    }
  }
}

// Where all wait for all: one of the next places waits, and the others wait for one event of it. That is as many calls
// as there are places, and not as pairs of them. The event is of a stream: one of a context without any is done at
// once.
bool Switching::relayed(const Arrangement& old) {
  if (source_count_ == 0) {
    return false;
  }
  const std::vector<Place*>& followers = sources_[0].followers;
  if (source_count_ * followers.size() <= source_count_ + followers.size()) {
    return false;
  }
  for (std::size_t at = 1; at < source_count_; ++at) {
    if (sources_[at].followers != followers) {
      return false;
    }
  }
  for (Place* first : followers) {
    const CUstream stream = first->stream ? first->stream->handle() : first->context->streams().any();
    // Not one that is in use: its work goes on, and the others have nothing to do with it.
    if (stream == nullptr || contains(old.places, first)) {
      continue;
    }
    if (!first->relay) {
      first->relay = create_event_beside(first->event, CU_EVENT_DISABLE_TIMING);
    }
    for (std::size_t at = 0; at < source_count_; ++at) {
      wait(*first, sources_[at].place->event);
    }
    GCTX_CALL_WITHOUT_CAPTURE(driver_of(first->context), cuEventRecord, first->relay->handle(), stream);
    for (const Place* other : followers) {
      if (other != first) {
        wait(*other, first->relay);
      }
    }
    return true;
  }
  return false;
}

}  // namespace gctx
