// Marks on memory that kernels should have written and did not, because they were not executed.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace software_driver {

// Room for a MarkTable at the end of a file.
inline constexpr std::size_t mark_bytes = std::size_t{64} << 10;

// The marked ranges of a file, or of host memory. The table is plain memory, so that it can stand in the file itself:
// processes that share the memory then share its marks.
class MarkTable {
 public:
  struct Part {
    std::uint64_t offset;  // from the begin of the range
    std::uint64_t size;
    std::string kernel;
  };

  MarkTable();
  std::vector<Part> parts(std::uint64_t begin, std::uint64_t size);
  void mark(std::uint64_t begin, std::uint64_t size, const std::string& kernel);
  void clear(std::uint64_t begin, std::uint64_t size);

 private:
  struct Entry {
    std::uint64_t begin;
    std::uint64_t end;
    char kernel[112];
  };
  static constexpr std::size_t capacity = 500;

  class Lock;
  void remove(std::uint64_t begin, std::uint64_t end);
  void insert(const Entry& entry);
  void join_nearest();

  pthread_mutex_t mutex_;
  std::size_t count_ = 0;
  Entry entries_[capacity];  // in the order of their addresses, without overlaps
};
static_assert(sizeof(MarkTable) <= mark_bytes);

}  // namespace software_driver
