// What nobody computed: the memory that kernels without a function should have written, and the times that hold
// guesses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace software_driver {

class Unknown {
 public:
  // Of a range: bytes that a kernel should have written.
  struct Part {
    std::uint64_t offset;
    std::uint64_t size;
    std::string kernel;
  };
  using Counts = std::map<std::string, std::uint64_t>;  // by kernel

  bool is_empty() const noexcept { return marks_.empty(); }
  std::vector<Part> parts(std::uint64_t address, std::uint64_t size) const;
  void mark(std::uint64_t address, std::uint64_t size, const std::string& kernel);
  void clear(std::uint64_t address, std::uint64_t size);

  // The host reads what a kernel should have written, or a time that includes one of an assumed cost. Counted, and said
  // once of each kernel.
  void count_result(const std::string& kernel);
  void count_time(const std::string& kernel);
  const Counts& results() const noexcept { return results_; }
  const Counts& times() const noexcept { return times_; }

 private:
  struct Mark {
    std::uint64_t end;
    std::string kernel;
  };
  std::map<std::uint64_t, Mark> marks_;  // by their first byte; they do not overlap
  Counts results_;
  Counts times_;
};

}  // namespace software_driver
