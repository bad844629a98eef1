// Many threads at one context: closers that are refused, makers of streams, threads that make it current. Built with
// the sanitizers, too (.ci/sanitize), where it runs longer.
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "handles/blocks.hpp"
#include "handles/closing.hpp"
#include "handles/runtime.hpp"
#include "handles/slot.hpp"
#include "handles/stream.hpp"
#include "tests/check.hpp"
#include "tests/machine.hpp"

using namespace gctx;
using gctx::test::close_context;
using gctx::test::message_of;
using gctx::test::open_context;

namespace {

#ifdef CUDA_GCTX_LONG_STRESS
constexpr int streams_made = 20000;
constexpr int rounds = 300;
#else
constexpr int streams_made = 3000;
constexpr int rounds = 40;
#endif
constexpr int closers = 48;

// A context that nobody shares.
class Shop : public test::Machine {
 public:
  Shop() : group_(test::split(runtime(), {16}).group(0)) {}
  ContextHandle context() { return open_context(runtime(), group_, true); }

 private:
  SmResourcePtr group_;
};

ThreadBlocks& here() { return ThreadBlocks::here(); }

void enter_and_leave(const ContextHandle& context) { here().leave(here().enter(context, nullptr), nullptr); }

void a_refused_close_shows_to_nobody() {
  Shop machine;
  const ContextHandle context = machine.context();
  const BlockHandle block = here().enter(context, nullptr);  // for the whole test
  std::atomic<bool> is_over{false};
  std::atomic<int> closed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < closers; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        const std::string said = message_of<Error>([&] { close_context(context); });
        closed += said.empty() ? 1 : 0;
        std::this_thread::yield();
      }
    });
  }
  std::atomic<int> refused{0};
  std::thread pusher([&] {
    while (!is_over) {
      refused += message_of<Error>([&] { enter_and_leave(context); }).empty() ? 0 : 1;
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
  here().leave(block, nullptr);
  close_context(context);
  CHECK(context_pool(machine.runtime()).counts(0).idle == 1);
}

// Whoever comes first: it is closed once, its SMs are free after the last stream, and the next lease has its context.
void closing_making_and_pushing_are_one_after_the_other() {
  Shop machine;
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
    start([&] { close_context(context); });
    start([&] { close_context(context); });
    start([&] { enter_and_leave(context); });
    start([&] { here().set(context); });
    start([&] { synchronize_stream(create_stream(context, std::nullopt, true)); });
    start([&] { adopt_stream(machine.runtime(), create_stream(context, std::nullopt, true)->handle()); });
    start([&] {
      const auto group = std::make_shared<SmResource>(sm_resource(context));
      group->origin = &group->dealt;  // as another split gives it
      serve_as(context->in_driver(), group);
    });
    for (std::thread& thread : threads) {
      thread.join();
    }
    close_context(context);
    CHECK(context_pool(machine.runtime()).counts(0).contexts == 1);
    CHECK(context_pool(machine.runtime()).counts(0).idle == 1);
  }
}

// Streams of many threads in one registry, found while others come and go.
void the_registry_finds_the_living_and_only_them() {
  Shop machine;
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
  Shop machine;
  const ContextHandle context = machine.context();
  for (int round = 0; round < rounds; ++round) {
    Slot<StreamBox> slot;
    StreamHandle made = create_stream(context, std::nullopt, true);
    CHECK(slot.put(made));
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
    CHECK(slot.was_filled());
  }
}

// Threads enter, set and hand their blocks to each other, while others close the contexts, and open them again.
void blocks_are_handed_over_while_contexts_are_closed() {
  Shop machine;
  constexpr int thread_count = 6;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<BlockHandle> handed_over;
  std::atomic<int> left{0};
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds * 5; ++round) {
        message_of<Error>([&] {
          const ContextHandle context = machine.context();
          const BlockHandle mine = here().enter(context, nullptr);
          BlockHandle other;
          {
            const std::lock_guard lock(mutex);
            if (i % 2 == 0) {
              handed_over.push_back(mine);
            }
            if (!handed_over.empty() && round % 3 == 0) {
              other = handed_over.back();
              handed_over.pop_back();
            }
          }
          if (other) {
            message_of<Error>([&] { here().leave(other, nullptr); });
          }
          message_of<Error>([&] { here().leave(mine, nullptr); });
          message_of<Error>([&] { close_context(context); });
          message_of<Error>([&] { here().set(context); });
        });
        ++left;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  handed_over.clear();
  CHECK(left == thread_count * rounds * 5);
  machine.context();  // nothing keeps the SMs claimed
}

}  // namespace

int main() {
  a_refused_close_shows_to_nobody();
  closing_making_and_pushing_are_one_after_the_other();
  the_registry_finds_the_living_and_only_them();
  a_slot_is_emptied_under_its_users();
  blocks_are_handed_over_while_contexts_are_closed();
  return gctx::test::summary("stress_test");
}
