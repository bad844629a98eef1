// A memory that is as weak as that of the GPU may be, for the kernels on the CPU. Nothing here depends on luck with the
// host's own order of accesses:
// - Words of a protocol keep what was stored there lately. A relaxed load may return anything but what is older than
//   what its thread has to know, so it may be stale; what it returns hands nothing on.
// - Of tensors, tiles and pieces, each access is checked against those before it. If one of the two is a store, and the
//   order of accesses that the model grants does not have the earlier one before the later one, it is a race: on a GPU
//   either could come first, so the run counts as wrong, whatever bits it had.
//
// Who has to know what is handed on by releases and acquires of a scope, by fences, by barriers of block and warp, by
// mbarriers and by the ends of kernels, and by nothing else. Bulk copies are accesses of another proxy, which know what
// a proxy fence has told them; the other way round, what is complete for a proxy is known to ordinary accesses only
// behind a proxy fence. A thread performs its own accesses in order, and a store is there for all who know of it.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpu_primitives.hpp"

// The choices of a seed. There is one for each thread of each kernel, so that it has to begin at once.
class Random {
 public:
  using result_type = u32;

  explicit Random(u64 seed) : state_(seed) {}
  static constexpr u32 min() { return 0; }
  static constexpr u32 max() { return ~0u; }
  // As in splitmix64.
  u32 operator()() {
    u64 mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return static_cast<u32>(mixed >> 32);
  }

 private:
  u64 state_;
};

// What is done in one order: the ordinary accesses of a thread, the copies that complete on a barrier, the stores of a
// thread's bulk copies, and what those read.
constexpr u32 NOBODY = ~0u;
struct Event {
  u32 actor = NOBODY, number = 0;
};

using Numbers = std::vector<u32>;  // by actor: the last event that is known

inline void join(Numbers& into, const Numbers& more) {
  for (size_t at = 0; at < into.size(); ++at) {
    into[at] = std::max(into[at], more[at]);
  }
}

// What is before the accesses that a thread makes from now on: the ordinary ones, those of its bulk copies, and those
// of its bulk copies to shared memory.
struct Knowledge {
  Numbers ordinary, bulk, bulk_shared;

  explicit Knowledge(size_t actors = 0) : ordinary(actors), bulk(actors), bulk_shared(actors) {}
  void learn(const Knowledge& more) {
    join(ordinary, more.ordinary);
    join(bulk, more.bulk);
    join(bulk_shared, more.bulk_shared);
  }
};
using Snapshot = std::shared_ptr<const Knowledge>;

// A thread of a kernel, or a stream.
struct Agent {
  u32 actor, rank;
  Knowledge knows;
  Snapshot released_on_device, released;       // by the last fences
  std::vector<Snapshot> seen_on_device, seen;  // by relaxed loads, and not yet acquired by a fence
  Snapshot learned;                            // lately

  Event event() const { return {actor, knows.ordinary[actor]}; }
  void next() { ++knows.ordinary[actor]; }
  void learn(const Snapshot& more) {
    if (more && more != learned) {
      knows.learn(*more);
      learned = more;
    }
  }
  Snapshot snapshot() {
    auto made = std::make_shared<const Knowledge>(knows);
    next();
    return made;
  }
  void fence(bool is_of_system) {
    for (auto* list : {&seen_on_device, is_of_system ? &seen : nullptr}) {
      for (; list && !list->empty(); list->pop_back()) {
        learn(list->back());
      }
    }
    released_on_device = snapshot();
    if (is_of_system) {
      released = released_on_device;
    }
  }
  void fence_bulk() {
    join(knows.bulk, knows.ordinary);
    join(knows.bulk_shared, knows.ordinary);
    join(knows.ordinary, knows.bulk);
    next();
  }
  void fence_bulk_shared() {
    join(knows.bulk_shared, knows.ordinary);
    next();
  }
};

class Memory {
 public:
  explicit Memory(u32 ranks) : ranks_(ranks) {}

  const std::string& race() const { return race_; }
  void fail(const std::string& what) {
    if (race_.empty()) {
      race_ = what;
    }
  }

  // ---- ordinary and bulk accesses, which are checked

  void read(const Numbers& known, Event event, u64 address, u64 bytes) {
    for_places(address, bytes, [&](u64, Place& place) {
      demand(known, place.written, "a load", "a store");
      demand(known, place.words_written, "a load", "a store of a word");
      note(place.read, event);
    });
  }
  // Before the bytes are there.
  void write(const Numbers& known, Event event, u64 address, u64 bytes) {
    for_places(address, bytes, [&](u64, Place& place) {
      demand(known, place.written, "a store", "a store");
      demand(known, place.words_written, "a store", "a store of a word");
      demand(known, place.read, "a store", "a load");
      demand(known, place.words_read, "a store", "a load of a word");
      bool has_words = place.has_words;
      place = {event};
      place.has_words = has_words;
    });
  }
  // After them: words that lie there are stored as well.
  void wrote(Event event, u32 rank, u64 address, u64 bytes) {
    for_places(address, bytes, [&](u64 first, Place& place) {
      for (u64 at = first; place.has_words && at < first + GRAIN; at += 4) {
        auto found = words_.find(at);
        if (found != words_.end()) {
          put(found->second, {contents(at, found->second.bytes), event, rank});
        }
      }
    });
  }
  // Memory that is used for something else from now on.
  void forget(u64 address, u64 bytes) {
    for (u64 at = address / GRAIN; at <= (address + bytes) / GRAIN; ++at) {
      places_.erase(at);
    }
  }

  // ---- words, which are stored and loaded as a whole

  Vector load(Agent& agent, u64 address, u32 bytes, bool acquires, Random& random) {
    Place& place = places_[address / GRAIN];
    demand(agent.knows.ordinary, place.written, "a load of a word", "a store");
    note(place.words_read, agent.event());
    Word& word = word_at(address, bytes, place);
    u64 oldest = std::max(word.first, word.seen[agent.rank]), last = word.first + word.messages.size() - 1;
    for (u64 at = last; at > oldest; --at) {
      if (is_known(agent.knows.ordinary, word.messages[at - word.first].by)) {
        oldest = at;
      }
    }
    u64 chosen = random() % 2 ? last : oldest + random() % (last - oldest + 1);
    word.seen[agent.rank] = chosen;
    const Message& message = word.messages[chosen - word.first];
    bool is_own = message.rank == agent.rank;
    const Snapshot& handed = is_own ? message.on_device : message.to_all;
    auto& seen = is_own ? agent.seen_on_device : agent.seen;
    if (acquires) {
      agent.learn(handed);
    } else if (handed && (seen.empty() || seen.back() != handed)) {
      seen.push_back(handed);
    }
    return message.value;
  }

  void store(Agent& agent, u64 address, u32 bytes, Vector value, bool releases) {
    Place& place = places_[address / GRAIN];
    demand_word_store(agent, place);
    Word& word = word_at(address, bytes, place);
    std::memcpy(reinterpret_cast<void*>(address), &value, bytes);
    Message message{value, agent.event(), agent.rank, agent.released_on_device, agent.released};
    if (releases) {
      message.on_device = message.to_all = agent.snapshot();
    }
    put(word, message);
  }

  // An atomic operation: what it reads is the newest, and what that released is released with it.
  template <class Change>
  u64 change(Agent& agent, u64 address, u32 bytes, bool releases, Change change) {
    Place& place = places_[address / GRAIN];
    demand_word_store(agent, place);
    Word& word = word_at(address, bytes, place);
    Message before = word.messages.back();
    u64 old = 0;
    std::memcpy(&old, &before.value, bytes);
    for (const auto& [handed, seen] :
         {std::pair{before.on_device, &agent.seen_on_device}, {before.to_all, &agent.seen}}) {
      if (handed) {
        seen->push_back(handed);
      }
    }
    u64 changed = change(old);
    Vector value{};
    std::memcpy(&value, &changed, bytes);
    std::memcpy(reinterpret_cast<void*>(address), &changed, bytes);
    Event event = agent.event();
    Snapshot own = releases ? agent.snapshot() : nullptr;
    put(word, {value, event, agent.rank, both(before.on_device, own ? own : agent.released_on_device),
               both(before.to_all, own ? own : agent.released)});
    return old;
  }

 private:
  static constexpr u64 GRAIN = 16, KEPT = 6;
  struct Place {
    Event written;
    std::vector<Event> read, words_written, words_read;
    bool has_words = false;
  };
  struct Message {
    Vector value;
    Event by;
    u32 rank = NOBODY;
    Snapshot on_device, to_all;
  };
  struct Word {
    u32 bytes;
    u64 first = 0;  // the number of the oldest message that is kept
    std::vector<Message> messages;
    std::vector<u64> seen;  // by rank: its device has that one, and does not go back
  };

  template <class Do>
  void for_places(u64 address, u64 bytes, Do work) {
    for (u64 at = address / GRAIN; at * GRAIN < address + bytes; ++at) {
      work(at * GRAIN, places_[at]);
    }
  }
  static bool is_known(const Numbers& known, Event event) {
    return event.actor == NOBODY || known[event.actor] >= event.number;
  }
  void demand(const Numbers& known, Event event, const char* later, const char* earlier) {
    if (!is_known(known, event)) {
      fail(std::string(later) + " is not ordered behind " + earlier);
    }
  }
  void demand(const Numbers& known, const std::vector<Event>& events, const char* later, const char* earlier) {
    for (Event event : events) {
      demand(known, event, later, earlier);
    }
  }
  void demand_word_store(Agent& agent, Place& place) {
    demand(agent.knows.ordinary, place.written, "a store of a word", "a store");
    demand(agent.knows.ordinary, place.read, "a store of a word", "a load");
    note(place.words_written, agent.event());
  }
  static void note(std::vector<Event>& events, Event event) {
    for (Event& one : events) {
      if (one.actor == event.actor) {
        one = event;
        return;
      }
    }
    events.push_back(event);
  }
  static Vector contents(u64 address, u32 bytes) {
    Vector value{};
    std::memcpy(&value, reinterpret_cast<const void*>(address), bytes);
    return value;
  }
  Word& word_at(u64 address, u32 bytes, Place& place) {
    place.has_words = true;
    auto [found, is_new] = words_.try_emplace(address, Word{bytes});
    if (is_new) {
      found->second.messages.push_back({contents(address, bytes), {}});
      found->second.seen.assign(ranks_, 0);
    }
    return found->second;
  }
  static void put(Word& word, Message message) {
    word.messages.push_back(std::move(message));
    if (word.messages.size() > KEPT) {
      word.messages.erase(word.messages.begin());
      ++word.first;
    }
  }
  static Snapshot both(const Snapshot& one, const Snapshot& other) {
    if (!one || !other || one == other) {
      return one ? one : other;
    }
    auto made = std::make_shared<Knowledge>(*one);
    made->learn(*other);
    return made;
  }

  u32 ranks_;
  std::string race_;
  std::unordered_map<u64, Place> places_;
  std::unordered_map<u64, Word> words_;
};
