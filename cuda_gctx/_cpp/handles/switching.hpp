// The order between the arrangements of one pool: which events a switch records, and which work of the next arrangement
// waits for them. This is the only place that decides about it.
//
// Two orders hold. Work on SMs that two places share, or may share, runs in the order of the arrangements. And so does
// the work of one part, wherever it runs: a step that moved to other SMs waits for the step before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "handles/event.hpp"
#include "handles/types.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

class Switching {
 public:
  using Number = std::uint32_t;
  using Part = std::shared_ptr<const std::string>;  // the name, one object for equal names

  // A part of the program, and where it runs: a whole context, or a stream on the whole device.
  struct NewUse {
    std::string part{};
    ContextHandle context{};  // null for a stream
    StreamHandle stream{};    // null for a context
    SmResourcePtr sms{};      // of the context, as the split of this arrangement knows them
  };

  // Takes the uses. Throws and changes nothing if one of the contexts is closed.
  Number add_arrangement(std::vector<NewUse>& uses);
  // Forgets an arrangement, and keeps the order behind its work. Returns false for the current one.
  bool remove_arrangement(Number arrangement);
  void clear() noexcept;

  // Puts all later work of an arrangement behind that of the current one, and makes it current. Throws and changes
  // nothing while a stream of the two captures. After another error it can be repeated.
  void switch_to(Number next);
  // Its number plus 1; 0 before the first switch.
  Number current() const noexcept { return current_.load(std::memory_order_acquire); }
  std::uint64_t last_switch(Number arrangement);  // the number of the last switch to it; 0: none

 private:
  struct Place {
    DriverContextHandle context;
    StreamHandle stream;  // null for a whole context
    EventHandle event;    // made once
    EventHandle relay;    // see `relayed`
    std::vector<SmResourcePtr> sms;
    std::vector<bool> shares;  // by the number of the other place
    std::vector<Part> behind;  // the parts whose work here the event stands for; empty if nothing has to wait for it
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
    Part part;
    Place* place;
  };
  struct Arrangement {
    std::vector<Use> uses;
    std::vector<Place*> places;
    std::vector<ContextHandle> contexts;
    std::uint64_t last_switch = 0;
  };
  struct Source {
    Place* place = nullptr;
    std::vector<Place*> followers;
  };

  static bool has(const Arrangement& arrangement, const Part& part, const Place* place) noexcept;
  static bool goes_on(const Arrangement& from, const Arrangement& to, const Place* place) noexcept;
  static bool has_to_wait(const Place& source, const Place& later, const Arrangement& next) noexcept;
  static bool may_share(const Place& one, const Place& other);
  void record(Place& place);
  void forget_waits(const Place& source) noexcept;
  static void wait(const Place& place, const EventHandle& event);
  static void note_wait(Place& place, const Place& source);
  static bool is_covered(const Place& source, const Place& later, const Arrangement& old, const Arrangement& next);
  Part part_of(const std::string& name) const;
  Place& place_of(const NewUse& use);
  void note_sharing(const Place& place);
  void sweep() noexcept;
  void demand_no_capture(const Arrangement& arrangement);
  void leave(const Arrangement& old, const Arrangement& next);
  void let_wait(const Arrangement& old);
  bool relayed(const Arrangement& old);

  std::mutex mutex_;
  std::atomic<Number> current_{0};
  std::uint64_t switches_ = 0;
  std::vector<std::unique_ptr<Place>> places_;  // by number; null: the number is free
  std::vector<std::optional<Arrangement>> arrangements_;
  std::vector<Source> sources_;  // kept, so that a switch allocates nothing
  std::size_t source_count_ = 0;
};

}  // namespace gctx
