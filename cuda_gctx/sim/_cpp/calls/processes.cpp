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

namespace gctx::sim {
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
  c.machine.clock.share();
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &token, sizeof token);
}

// The file that a handle of another process names.
void open_token(Call& c, const void* handle, bool is_event, Token& token, std::shared_ptr<File>& file) {
  std::memcpy(&token, handle, sizeof token);
  refuse_if(token.magic != Token{}.magic || token.is_event != is_event, CUDA_ERROR_INVALID_VALUE);
  // Known of cards: a handle is for other processes.
  refuse_if(token.process == getpid(), CUDA_ERROR_INVALID_CONTEXT);
  refuse_if(token.device < 0 || token.device >= static_cast<int>(c.machine.devices.size()), CUDA_ERROR_INVALID_DEVICE);
  const std::string path = "/proc/" + std::to_string(token.process) + "/fd/" + std::to_string(token.descriptor);
  const int found = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (found < 0) {
    refuse(CUDA_ERROR_MAP_FAILED);  // its process has ended, or belongs to somebody else
  }
  file = std::make_shared<File>(found);
  refuse_if(inode_of(found) != token.inode, CUDA_ERROR_MAP_FAILED);
  c.machine.clock.share();
}

void open_memory(Call& c, const CUipcMemHandle& handle, CUdeviceptr* out) {
  Token token;
  std::shared_ptr<File> file;
  open_token(c, &handle, false, token, file);
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
  Allocation made;
  c.made(made);
  made.handle = range->address() + before;
  made.size = token.size;
  made.device = token.device;
  made.context_id = c.current->id;
  made.opened = 1;
  made.opened_as = key;
  made.storage = {made.handle, range->host(made.handle), std::move(file), token.offset, std::move(range)};
  const CUdeviceptr address = made.handle;
  c.machine.freed.erase(address);
  c.machine.allocations.emplace(address, std::move(made));
  give(out, address);
}

}  // namespace
}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuIpcGetMemHandle, Call& c, CUipcMemHandle* out, CUdeviceptr address) {
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

GCTX_SIM_CALL(cuIpcOpenMemHandle, Call& c, CUdeviceptr* out, CUipcMemHandle handle, unsigned) {
  return open_memory(c, handle, out);
}

GCTX_SIM_SAME(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle)

GCTX_SIM_CALL(cuIpcCloseMemHandle, Call& c, CUdeviceptr address) {
  const auto find_opened = [&] {
    const auto found = c.machine.allocations.find(address);
    return found == c.machine.allocations.end() || found->second.opened == 0 ? nullptr : &found->second;
  };
  Allocation* memory = find_opened();
  refuse_if(memory == nullptr, CUDA_ERROR_INVALID_VALUE);
  wait_for_device(c, memory->device);
  // Looked up again: another thread may have closed it meanwhile.
  memory = find_opened();
  refuse_if(memory == nullptr, CUDA_ERROR_INVALID_VALUE);
  if (--memory->opened == 0) {
    c.machine.freed.insert(address);
    c.machine.allocations.erase(address);
  }
}

GCTX_SIM_CALL(cuIpcGetEventHandle, Call& c, CUipcEventHandle* out, Event& event) {
  refuse_if(!event.shared, CUDA_ERROR_INVALID_HANDLE);
  Token token;
  token.id = event.id;
  token.device = event.device;
  token.is_event = true;
  return give_token(c, out, token, *event.shared->file);
}

GCTX_SIM_CALL(cuIpcOpenEventHandle, Call& c, CUevent* out, CUipcEventHandle handle) {
  Token token;
  std::shared_ptr<File> file;
  open_token(c, &handle, true, token, file);
  Event& event = add_event(c, CU_EVENT_DISABLE_TIMING);
  event.shared = std::make_shared<SharedRecord>(std::move(file));
  give(out, as_handle<CUevent>(event));
}
