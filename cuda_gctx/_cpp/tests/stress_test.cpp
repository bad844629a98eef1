// Many threads at one context: closers that are refused, makers of streams, threads that make it current. Built with
// the sanitizers, too (.ci/sanitize), where it runs longer.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "handles/closing.hpp"
#include "handles/current.hpp"
#include "handles/given.hpp"
#include "handles/runtime.hpp"
#include "handles/slot.hpp"
#include "handles/split_contexts.hpp"
#include "handles/stream.hpp"
#include "tests/block.hpp"
#include "tests/check.hpp"
#include "tests/machine.hpp"

using namespace gctx;
using gctx::test::Block;
using gctx::test::message_of;

namespace {

#ifdef CUDA_GCTX_LONG_STRESS
constexpr int streams_made = 20000;
constexpr int rounds = 300;
#else
constexpr int streams_made = 3000;
constexpr int rounds = 40;
#endif
constexpr int closers = 48;

class Machine {
 public:
  Machine() : runtime_(test::open_machine()) {
    GroupRequest request;
    request.count = 16;
    group_ = split_resource(runtime_, runtime_.device_sm(0), {request}, false).group(0);
  }
  ~Machine() { close_driver(runtime_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Runtime& runtime() { return runtime_; }
  ContextHandle context() { return claim_context(runtime_, 0, {group_}, std::nullopt, "busy", true, true)->create(); }

 private:
  Runtime& runtime_;
  SmResourcePtr group_;
};

void a_refused_close_shows_to_nobody() {
  Machine machine;
  const ContextHandle context = machine.context();
  Block block(context);  // for the whole test
  std::atomic<bool> is_over{false};
  std::atomic<int> closed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < closers; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        const std::string said = message_of<Error>([&] { context->close(); });
        closed += said.empty() ? 1 : 0;
        std::this_thread::yield();
      }
    });
  }
  std::atomic<int> refused{0};
  std::thread pusher([&] {
    while (!is_over) {
      refused += message_of<Error>([&] { Block(context).leave(); }).empty() ? 0 : 1;
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < streams_made; ++i) {
    refused += message_of<Error>([&] { create_stream(context, std::nullopt, true); }).empty() ? 0 : 1;
  }
  is_over = true;
  pusher.join();
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(closed == 0);
  CHECK(refused == 0);
  CHECK(!context->is_closed());
  CHECK(live_contexts(machine.runtime()).counts(0).destroyed == 0);
  block.leave();
  context->close();
  CHECK(live_contexts(machine.runtime()).counts(0).destroyed == 1);
}

// Whoever comes first: it is closed once, and destroyed once, with the last stream.
void closing_making_and_pushing_are_one_after_the_other() {
  Machine machine;
  for (int round = 0; round < rounds; ++round) {
    const ContextHandle context = machine.context();
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    const auto start = [&](auto work) {
      threads.emplace_back([&ready, work] {
        ++ready;
        while (ready < 7) {
          std::this_thread::yield();
        }
        for (int i = 0; i < 20; ++i) {
          message_of<Error>(work);
        }
      });
    };
    start([&] { context->close(); });
    start([&] { context->close(); });
    start([&] { Block(context).leave(); });
    start([&] { ThreadEntries::here().set(context, nullptr); });
    start([&] { synchronize_stream(create_stream(context, std::nullopt, true)); });
    start([&] { adopt_stream(machine.runtime(), create_stream(context, std::nullopt, true)->handle()); });
    start([&] {
      const auto group = std::make_shared<SmResource>(sm_resource(context));
      group->origin = &group->dealt;  // as another split gives it
      serve_as(context, group);
    });
    for (std::thread& thread : threads) {
      thread.join();
    }
    context->close();
    CHECK(context->state().is_gone());
    CHECK(live_contexts(machine.runtime()).counts(0).destroyed == static_cast<std::uint64_t>(round) + 1);
  }
}

// Streams of many threads in one registry, found while others come and go.
void the_registry_finds_the_living_and_only_them() {
  Machine machine;
  const ContextHandle context = machine.context();
  const StreamHandle mine = create_stream(context, std::nullopt, true);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < rounds * 10; ++n) {
        std::vector<StreamHandle> made;
        for (int k = 0; k < 12; ++k) {
          made.push_back(create_stream(context, std::nullopt, true));
        }
        for (const StreamHandle& stream : made) {
          wrong += adopt_stream(machine.runtime(), stream->handle()) == stream ? 0 : 1;
        }
        wrong += adopt_stream(machine.runtime(), mine->handle()) == mine ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
}

// One thread closes an object while others use it: each call has the stream whole, or is refused.
void a_slot_is_emptied_under_its_users() {
  Machine machine;
  const ContextHandle context = machine.context();
  for (int round = 0; round < rounds; ++round) {
    Slot<StreamBox> slot;
    slot.put(create_stream(context, std::nullopt, true));
    const CUstream handle = slot.get()->handle();
    std::atomic<int> wrong{0};
    std::atomic<int> used{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&] {
        for (bool is_open = true; is_open;) {
          const std::string said = message_of<Error>([&] {
            const StreamHandle stream = slot.get();
            if (!stream) {
              slot.fail_empty();
            }
            wrong += stream->handle() == handle ? 0 : 1;
            synchronize_stream(stream);
          });
          is_open = said.empty();
          wrong += is_open || said == "the stream has been closed" ? 0 : 1;
          ++used;
        }
      });
    }
    while (used < 20) {
      std::this_thread::yield();
    }
    slot.take();
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(wrong == 0);
    CHECK(slot.was_filled() && !slot.borrow());
  }
}

// A context is set, entered, left elsewhere and closed, while its threads enter and leave blocks.
void blocks_and_what_is_set_are_seen_by_others() {
  Machine machine;
  const ContextHandle context = machine.context();
  std::atomic<int> left{0};
  std::vector<std::thread> threads;
  std::atomic<bool> is_over{false};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        Block outer(context);
        Block(context).leave();
        ThreadEntries::here().set(context, nullptr);
        outer.leave();
        ThreadEntries::here().set(primary_context(machine.runtime(), 0), nullptr);
        ThreadEntries::here().set(context, nullptr);
        ++left;
      }
    });
  }
  for (int n = 0; n < rounds || left < 20; ++n) {
    Block mine(context);
    std::thread([&] { message_of<Error>([&] { context->close(); }); }).join();
    std::thread([&] { message_of<Error>([&] { mine.leave(); }); }).join();
    message_of<Error>([&] { mine.leave(); });
    ThreadEntries::here().leave_what_was_left();
    Block::forget_blocks();
  }
  is_over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  context->close();
  CHECK(live_contexts(machine.runtime()).counts(0).destroyed == 1);
}

}  // namespace

int main() {
  a_refused_close_shows_to_nobody();
  closing_making_and_pushing_are_one_after_the_other();
  the_registry_finds_the_living_and_only_them();
  a_slot_is_emptied_under_its_users();
  blocks_and_what_is_set_are_seen_by_others();
  return gctx::test::summary("stress_test");
}
