// A C++ program whose static object joins a thread that still calls the core, and meets errors, when exit() has begun.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "handles/opening.hpp"
#include "handles/runtime.hpp"
#include "tests/machine.hpp"

using namespace gctx;

namespace {

struct Worker {
  std::atomic<bool> is_over{false};
  std::atomic<int> errors{0};
  std::thread thread;

  void await_errors() const {
    for (const int before = errors; errors < before + 2;) {
      std::this_thread::yield();
    }
  }
  ~Worker() {
    await_errors();  // of the time after the beginning of exit()
    is_over = true;
    thread.join();
    std::puts("exit_test: all checks passed");
    std::fflush(stdout);
    std::_Exit(0);
  }
};

Worker worker;

}  // namespace

int main() {
  alarm(60);  // a program that hangs is killed
  Runtime& runtime = test::open_machine();
  GroupRequest too_many;
  too_many.count = 1000;
  worker.thread = std::thread([&runtime, too_many] {
    while (!worker.is_over) {
      try {
        split_resource(runtime, runtime.device_sm(0), {too_many}, false);
      } catch (const Error&) {
        ++worker.errors;
      }
    }
  });
  worker.await_errors();
  return 1;  // replaced by the static object
}
