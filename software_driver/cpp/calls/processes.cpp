// Memory and events of one process in others. A handle names a file that its process has open, so that nobody serves
// it and nothing is left of it when that process ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "calls/allocations.hpp"
#include "calls/events.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
namespace {

// What is in a handle that another process gets.
struct Token {
  std::uint64_t magic = 0x67637478'69706331;
  std::uint64_t id = 0;     // of the object, never used again in its process
  std::uint64_t inode = 0;  // of the file
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::int32_t process = 0;
  std::int32_t descriptor = 0;
  std::int32_t device = 0;
  bool is_event = false;
};
static_assert(sizeof(Token) <= CU_IPC_HANDLE_SIZE);

std::uint64_t inode_of(int descriptor) {
  struct stat status{};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

template <class Handle>
void give_token(Call& c, Handle* out, Token token, const File& file) {
  token.process = getpid();
  token.descriptor = file.descriptor();
  token.inode = inode_of(token.descriptor);
  file.marks();  // before another process looks for them
  c.machine.clock.share();
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &token, sizeof token);
}

// What a handle of another process says, and the file that it names.
template <class Handle>
std::pair<Token, std::shared_ptr<File>> open_token(Call& c, const Handle& handle, bool is_event) {
  Token token;
  std::memcpy(static_cast<void*>(&token), &handle, sizeof token);
  refuse_if(token.magic != Token{}.magic || token.is_event != is_event, CUDA_ERROR_INVALID_VALUE);
  // Known of cards: a handle is for other processes.
  refuse_if(token.process == getpid(), CUDA_ERROR_INVALID_CONTEXT);
  refuse_if(token.device < 0 || token.device >= static_cast<int>(c.machine.devices.size()), CUDA_ERROR_INVALID_DEVICE);
  const std::string path = "/proc/" + std::to_string(token.process) + "/fd/" + std::to_string(token.descriptor);
  const int found = open(path.c_str(), O_RDWR | O_CLOEXEC);
  refuse_if(found < 0, CUDA_ERROR_MAP_FAILED);  // its process has ended, or belongs to somebody else
  auto file = std::make_shared<File>(found);
  refuse_if(inode_of(found) != token.inode, CUDA_ERROR_MAP_FAILED);
  c.machine.clock.share();
  return {token, std::move(file)};
}

void open_memory(Call& c, CUdeviceptr* out, CUipcMemHandle handle) {
  auto [token, file] = open_token(c, handle, false);
  const std::string key(reinterpret_cast<const char*>(&token), sizeof token);
  for (auto& [address, allocation] : c.machine.allocations) {
    if (allocation.opened_as == key && allocation.context_id == c.current->id) {
      ++allocation.opened;
      return give(out, CUdeviceptr{address});
    }
  }
  const std::uint64_t before = token.offset % page_bytes;
  const std::uint64_t size = (before + token.size + page_bytes - 1) / page_bytes * page_bytes;
  auto range = std::make_shared<Reservation>(size, granularity);
  range->map(range->address(), *file, token.offset - before, size);
  const std::uint64_t at = range->address() + before;
  Allocation made;
  made.size = token.size;
  made.device = token.device;
  made.context_id = c.current->id;
  made.opened = 1;
  made.opened_as = key;
  made.storage = {at, range->host(at), std::move(file), token.offset, std::move(range)};
  give(out, add_allocation(c, std::move(made)));
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuIpcGetMemHandle, Call& c, CUipcMemHandle* out, CUdeviceptr address) {
  const auto found = c.machine.allocations.find(address);
  refuse_if(found == c.machine.allocations.end() || !is_plain(found->second), CUDA_ERROR_INVALID_VALUE);
  const Allocation& memory = found->second;
  Token token;
  token.id = memory.id;
  token.offset = memory.storage.offset;
  token.size = memory.size;
  token.device = memory.device;
  return give_token(c, out, token, *memory.storage.file);
}

SOFTWARE_DRIVER_ROW(cuIpcOpenMemHandle, open_memory)
SOFTWARE_DRIVER_ROW(cuIpcOpenMemHandle_v2, open_memory)

SOFTWARE_DRIVER_CALL(cuIpcCloseMemHandle, Call& c, CUdeviceptr address) {
  const auto find_opened = [&]() -> Allocation& {
    const auto found = c.machine.allocations.find(address);
    refuse_if(found == c.machine.allocations.end() || found->second.opened == 0, CUDA_ERROR_INVALID_VALUE);
    return found->second;
  };
  wait_for_device(c, find_opened().device);
  // Looked up again: another thread may have closed it meanwhile.
  if (--find_opened().opened == 0) {
    c.machine.freed.insert(address);
    c.machine.allocations.erase(address);
  }
}

SOFTWARE_DRIVER_CALL(cuIpcGetEventHandle, Call& c, CUipcEventHandle* out, Event& event) {
  refuse_if(!event.shared, CUDA_ERROR_INVALID_HANDLE);
  Token token;
  token.id = event.id;
  token.device = event.device;
  token.is_event = true;
  return give_token(c, out, token, *event.shared->file);
}

SOFTWARE_DRIVER_CALL(cuIpcOpenEventHandle, Call& c, CUevent* out, CUipcEventHandle handle) {
  const auto file = open_token(c, handle, true).second;
  Event& event = add_event(c, CU_EVENT_DISABLE_TIMING);
  event.shared = std::make_shared<SharedRecord>(file);
  give(out, event);
}
