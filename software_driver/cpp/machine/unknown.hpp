// Answers to programs that read what was not executed: memory that kernels should have written, and times that include
// kernels of unknown duration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "abi/abi.hpp"
#include "machine/marks.hpp"
#include "machine/memory.hpp"

namespace software_driver {

// A read of what is unknown fails, is reported once for each kernel, or goes unnoticed.
enum class UnknownPolicy { error, warn, ignore };

// Work without its result. The first wait that covers the work reports the failure; later waits do not.
struct Failure {
  CUresult code;
  std::string reason;
  bool is_reported = false;
};
using FailurePtr = std::shared_ptr<Failure>;

class Unknown {
 public:
  explicit Unknown(UnknownPolicy policy) : policy_(policy) {}

  // The marked parts of `size` bytes from the byte `at` on.
  std::vector<MarkTable::Part> parts(const Bytes& bytes, std::uint64_t at, std::uint64_t size) const;
  void mark(const Bytes& bytes, std::uint64_t at, std::uint64_t size, const std::string& kernel);
  void clear(const Bytes& bytes, std::uint64_t at, std::uint64_t size);

  // Notes why a kernel is not executed. Marks keep the begin of long names.
  void note_reason(const std::string& kernel, std::string why) {
    reasons_[kernel.substr(0, named_by)] = std::move(why);
  }
  // Decides about a read of memory that a kernel should have written. Null where the program goes on.
  FailurePtr read(const std::string& kernel);
  // Decides about a time that includes a kernel of unknown duration. True where the call fails.
  bool refuses_time(const std::string& kernel, const char* function);

 private:
  MarkTable& of_host();
  bool is_refused(const std::string& reason);

  static constexpr std::size_t named_by = 100;

  UnknownPolicy policy_;
  std::unique_ptr<MarkTable> of_host_;  // made for the first mark
  std::set<std::string> warnings_;
  std::map<std::string, std::string> reasons_;  // why kernels are not executed
};

// Says on stderr why a call fails.
void say_failure(const char* function, const Failure& failure);

}  // namespace software_driver
