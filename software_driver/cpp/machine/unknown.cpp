// Marks on ranges of memory, and the counts of what was read of them.
#include "machine/unknown.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace software_driver {
namespace {

// The first entry that may reach into what begins at an address.
template <class Marks>
auto first_at(Marks& marks, std::uint64_t address) {
  const auto next = marks.upper_bound(address);
  return next == marks.begin() ? next : std::prev(next);
}

}  // namespace

std::vector<Unknown::Part> Unknown::parts(std::uint64_t address, std::uint64_t size) const {
  std::vector<Part> found;
  const std::uint64_t end = address + size;
  for (auto at = first_at(marks_, address); at != marks_.end() && at->first < end; ++at) {
    const std::uint64_t from = std::max(at->first, address);
    const std::uint64_t to = std::min(at->second.end, end);
    if (from < to) {
      found.push_back({from - address, to - from, at->second.kernel});
    }
  }
  return found;
}

void Unknown::mark(std::uint64_t address, std::uint64_t size, const std::string& kernel) {
  clear(address, size);
  marks_.insert_or_assign(address, Mark{address + size, kernel});
}

void Unknown::clear(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t end = address + size;
  for (auto at = first_at(marks_, address); at != marks_.end() && at->first < end;) {
    if (at->second.end <= address) {
      ++at;
      continue;
    }
    const std::uint64_t from = at->first;
    const Mark cut = std::move(at->second);
    at = marks_.erase(at);
    if (from < address) {
      marks_.emplace(from, Mark{address, cut.kernel});
    }
    if (cut.end > end) {
      at = marks_.emplace(end, cut).first;
    }
  }
}

void Unknown::count_result(const std::string& kernel) {
  if (++results_[kernel] == 1) {
    std::fprintf(stderr,
                 "software driver (simulated): the program reads memory that kernel %s writes, but kernels "
                 "are not executed: register a function for it, or the arguments that it writes\n",
                 kernel.c_str());
  }
}

void Unknown::count_time(const std::string& kernel) {
  if (++times_[kernel] == 1) {
    std::fprintf(stderr,
                 "software driver (simulated): the program reads a time that includes kernel %s, whose cost "
                 "is not registered: it is not a time of any card\n",
                 kernel.c_str());
  }
}

}  // namespace software_driver
