// Memory of a machine, which is memory of the host.
#include "machine/objects.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace gctx::sim {
namespace {

constexpr std::size_t alignment = 512;
constexpr std::size_t page = 4096;

}  // namespace

Storage::Storage(std::size_t size) {
  if (size >= mapped_from) {
    mapped_ = (size + page - 1) / page * page;
    data_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      mapped_ = 0;
      throw std::bad_alloc();
    }
    return;
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, rounded);
  if (data_ == nullptr) {
    throw std::bad_alloc();
  }
  // What a fresh allocation holds is not defined; a pattern shows a program that relies on it.
  std::memset(data_, 0xa5, rounded);
}

Storage::~Storage() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace gctx::sim
