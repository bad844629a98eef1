#include "handles/owner_lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace gctx {
namespace {

long membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0); }

constexpr long needed = MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;

}  // namespace

// Linux has both since 4.14; a sandbox may refuse them.
const bool no_barriers_on_demand =
    membarrier(MEMBARRIER_CMD_QUERY) < 0 || (membarrier(MEMBARRIER_CMD_QUERY) & needed) != needed;

void make_all_threads_pass_a_barrier() noexcept {
  if (no_barriers_on_demand) {
    return;
  }
  // Not when the library is loaded: it takes milliseconds in a process that has threads.
  static const bool is_registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  if (!is_registered || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    // A sandbox that was entered since: no store stays unseen for so long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace gctx
