// The order between the arrangements of one pool: what a switch records, and what of the next arrangement waits for it.
//
// Two orders hold. Work on SMs that two places share, or may share, runs in the order of the arrangements. And so does
// the work of one part, wherever it runs: a step that moved to other SMs waits for the step before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "handles/event.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// Not for several threads at once: the pool has a lock.
class Switching {
 public:
  using Number = std::uint32_t;

  // A part of the program, and where it runs: a whole context, or a stream on the whole device.
  struct NewUse {
    Number part = 0;
    ContextHandle context;        // null for a stream
    StreamHandle stream;          // null for a context
    SmResourcePtr sms;            // of the context, as the split of this arrangement knows them
    std::vector<unsigned> ids{};  // of its SMs, ascending; empty if no kernel has seen them
  };

  // Takes the uses. Throws and changes nothing if one of the contexts is closed.
  Number add_arrangement(std::vector<NewUse>& uses);
  void remove_arrangement(Number arrangement) noexcept;
  void clear() noexcept;
  // The places of an arrangement, in the order of its uses, and whether two places share SMs or may.
  std::vector<Number> places_of(Number arrangement) const;
  bool may_share(Number one, Number other) const { return places_[one]->shares[other]; }
  // The parts of all arrangements, and the parts whose work a switch may still have to wait for.
  std::vector<Number> parts() const;
  void note_sm_ids(const ContextHandle& context, const std::vector<unsigned>& ids);

  // All later work of the next arrangement behind that of the arrangements in `left`, the last of which is current now.
  // False, and nothing has been done, while a stream of one of them captures. After an error it can be repeated.
  bool order(const std::vector<Number>& left, Number next);

 private:
  struct Place {
    ContextHandle context;
    StreamHandle stream;
    EventHandle event;  // made once, and keeps the context alive
    EventHandle relay;  // see `relayed`
    std::vector<SmResourcePtr> sms;
    std::vector<unsigned> ids;
    std::vector<bool> shares;    // by the number of the other place
    std::vector<Number> behind;  // the parts whose work here the event stands for; empty if nothing has to wait for it
    // By the number of the other place: whether a stream that stays waits for the other one's event, and whether it did
    // when the event was recorded. Whatever waits for this event is then behind the other one too.
    std::vector<bool> waits;
    std::vector<bool> covers;
    Number number = 0;
    bool keeps_a_stream = false;  // as long as the place is there, and other code can use it
    bool was_recorded = false;    // by the step that is under way
    bool was_asked = false;
  };
  struct Use {
    Number part;
    Place* place;
  };
  struct Arrangement {
    std::vector<Use> uses;
    std::vector<Place*> places;
  };
  struct Source {
    Place* place = nullptr;
    std::vector<Place*> followers;
  };

  static bool has(const Arrangement& arrangement, Number part, const Place* place) noexcept;
  static bool goes_on(const Arrangement& from, const Arrangement& to, const Place* place) noexcept;
  static bool has_to_wait(const Place& source, const Place& later, const Arrangement& next) noexcept;
  static bool may_share(const Place& one, const Place& other);
  void record(Place& place);
  void forget_waits(const Place& source) noexcept;
  static void wait(const Place& place, const EventHandle& event);
  static void note_wait(Place& place, const Place& source);
  static bool is_covered(const Place& source, const Place& later, const Arrangement& old, const Arrangement& next);
  Place& place_of(const NewUse& use);
  void note_sharing(const Place& place);
  void sweep() noexcept;
  bool captures(const Arrangement& arrangement);
  void leave(const Arrangement& old, const Arrangement& next);
  void let_wait(const Arrangement& old);
  bool relayed(const Arrangement& old);

  std::vector<std::unique_ptr<Place>> places_;  // by number; null: the number is free
  std::vector<std::optional<Arrangement>> arrangements_;
  std::vector<Source> sources_;  // kept, so that a switch allocates nothing
  std::size_t source_count_ = 0;
};

}  // namespace gctx
