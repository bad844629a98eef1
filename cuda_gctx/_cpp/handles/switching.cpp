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

const Driver& driver_of(const ContextHandle& context) { return context->runtime().driver(); }

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

bool have_common(const std::vector<unsigned>& one, const std::vector<unsigned>& other) noexcept {
  auto a = one.begin();
  auto b = other.begin();
  while (a != one.end() && b != other.end()) {
    if (*a == *b) {
      return true;
    }
    *a < *b ? ++a : ++b;
  }
  return false;
}

}  // namespace

// ---- places and arrangements

bool Switching::may_share(const Place& one, const Place& other) {
  if (one.stream || other.stream) {
    return true;  // the whole device
  }
  if (!one.ids.empty() && !other.ids.empty()) {
    return have_common(one.ids, other.ids);
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
    return known && (use.stream ? known->stream == use.stream : !known->stream && known->context == use.context);
  };
  auto found = std::find_if(places_.begin(), places_.end(), is_it);
  if (found == places_.end()) {
    auto made = std::make_unique<Place>();
    made->context = use.stream ? use.stream->context() : use.context;
    made->stream = use.stream;
    made->event = use.stream ? create_event(use.stream, CU_EVENT_DISABLE_TIMING)
                             : create_event(use.context, CU_EVENT_DISABLE_TIMING);
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
  if (!use.ids.empty()) {
    place.ids = use.ids;
  }
  note_sharing(place);
  return place;
}

Switching::Number Switching::add_arrangement(std::vector<NewUse>& given) {
  const std::vector<NewUse> uses = std::move(given);
  sweep();
  Arrangement arrangement;
  for (const NewUse& use : uses) {
    Place& place = place_of(use);
    arrangement.uses.push_back({use.part, &place});
    if (!contains(arrangement.places, &place)) {
      arrangement.places.push_back(&place);
    }
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

void Switching::remove_arrangement(Number arrangement) noexcept {
  arrangements_[arrangement].reset();
  sweep();
}

void Switching::clear() noexcept {
  arrangements_.clear();
  places_.clear();
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

std::vector<Switching::Number> Switching::places_of(Number arrangement) const {
  std::vector<Number> numbers;
  for (const Use& use : arrangements_[arrangement]->uses) {
    numbers.push_back(use.place->number);
  }
  return numbers;
}

std::vector<Switching::Number> Switching::parts() const {
  std::vector<Number> parts;
  for (const auto& arrangement : arrangements_) {
    for (const Use& use : arrangement ? arrangement->uses : std::vector<Use>{}) {
      parts.push_back(use.part);
    }
  }
  for (const auto& place : places_) {
    if (place) {
      parts.insert(parts.end(), place->behind.begin(), place->behind.end());
    }
  }
  return parts;
}

void Switching::note_sm_ids(const ContextHandle& context, const std::vector<unsigned>& ids) {
  for (const auto& place : places_) {
    if (place && !place->stream && place->context == context) {
      place->ids = ids;
      note_sharing(*place);
    }
  }
}

// ---- what the driver is asked

bool Switching::captures(const Arrangement& arrangement) {
  return std::any_of(arrangement.places.begin(), arrangement.places.end(), [](Place* place) {
    if (std::exchange(place->was_asked, true)) {
      return false;
    }
    return place->stream
               ? place->stream->may_capture() && is_capturing(driver_of(place->context), place->stream->handle())
               : has_capture(*place->context);
  });
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
    GCTX_CALL(driver, cuEventRecord, place.event->handle(), place.stream->handle());
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
    GCTX_CALL(driver, cuStreamWaitEvent, place.stream->handle(), event->handle(), CU_EVENT_WAIT_DEFAULT);
  } else {
    let_all_wait(*place.context, event->handle());
  }
}

// ---- the order

bool Switching::has(const Arrangement& arrangement, Number part, const Place* place) noexcept {
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
                        [&](Number part) { return has(next, part, &later); });
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

bool Switching::order(const std::vector<Number>& left, Number next_number) {
  const Arrangement& next = *arrangements_[next_number];
  const ContextBox* there = nullptr;
  for (const auto& place : places_) {
    if (place) {
      place->was_asked = false;
    }
  }
  for (const Place* place : next.places) {
    // A primary context goes with a reset of its device: one question for all of its streams.
    if (!place->stream) {
      place->context->demand_live();
    } else if (std::exchange(there, place->context.get()) != place->context.get()) {
      place->stream->demand_live();
    }
  }
  if (captures(next) ||
      std::any_of(left.begin(), left.end(), [&](Number number) { return captures(*arrangements_[number]); })) {
    return false;
  }
  for (const Number number : left) {
    if (number != next_number) {
      leave(*arrangements_[number], next);
    }
  }
  return true;
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
    const auto is_of_old = [&](Number part) { return has(old, part, place); };
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
      first->relay = create_event(first->context, CU_EVENT_DISABLE_TIMING);
    }
    for (std::size_t at = 0; at < source_count_; ++at) {
      wait(*first, sources_[at].place->event);
    }
    GCTX_CALL(driver_of(first->context), cuEventRecord, first->relay->handle(), stream);
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
