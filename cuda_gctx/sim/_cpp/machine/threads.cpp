// Gives names to threads, and takes note of their ends.
#include "machine/threads.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace gctx::sim {
namespace {

struct ThreadIndex {
  ThreadIndex();
  ~ThreadIndex();
  ThreadName name{};
};

std::atomic<std::uint64_t> thread_count{0};

// Indices of ended threads are used again, so that a program of many short threads does not grow the machine.
struct FreeIndices {
  std::mutex mutex;
  std::vector<std::size_t> free;
  std::size_t next = 0;
};

FreeIndices& free_indices() {
  static auto& indices = *std::make_unique<FreeIndices>().release();
  return indices;
}

ThreadIndex::ThreadIndex() {
  name.serial = ++thread_count;
  FreeIndices& indices = free_indices();
  const std::scoped_lock lock(indices.mutex);
  if (indices.free.empty()) {
    name.index = indices.next++;
  } else {
    name.index = indices.free.back();
    indices.free.pop_back();
  }
}

std::atomic<bool (*)(const ThreadName& name)> on_end{nullptr};

ThreadIndex::~ThreadIndex() {
  const auto ended = on_end.load();
  if (ended != nullptr && !ended(name)) {
    return;
  }
  FreeIndices& indices = free_indices();
  const std::scoped_lock lock(indices.mutex);
  indices.free.push_back(name.index);
}

}  // namespace

ThreadName this_thread() {
  thread_local const ThreadIndex index;
  return index.name;
}

void when_threads_end(bool (*ended)(const ThreadName& name)) { on_end = ended; }

}  // namespace gctx::sim
