// Keeps the marked ranges of memory in order.
#include "machine/marks.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace software_driver {

// Holds the table. A process that dies with the lock leaves a table that the next process can use.
class MarkTable::Lock {
 public:
  explicit Lock(MarkTable& table) : mutex_(table.mutex_) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
      pthread_mutex_consistent(&mutex_);
    }
  }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

MarkTable::MarkTable() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

std::vector<MarkTable::Part> MarkTable::parts(std::uint64_t begin, std::uint64_t size) {
  const Lock lock(*this);
  std::vector<Part> found;
  const std::uint64_t end = begin + size;
  for (const Entry& entry : std::span(entries_, count_)) {
    const std::uint64_t from = std::max(entry.begin, begin);
    const std::uint64_t to = std::min(entry.end, end);
    if (from < to) {
      found.push_back({from - begin, to - from, entry.kernel});
    }
  }
  return found;
}

void MarkTable::mark(std::uint64_t begin, std::uint64_t size, const std::string& kernel) {
  if (size == 0) {
    return;
  }
  const Lock lock(*this);
  remove(begin, begin + size);
  Entry entry{begin, begin + size, {}};
  kernel.copy(entry.kernel, sizeof entry.kernel - 1);
  insert(entry);
}

void MarkTable::clear(std::uint64_t begin, std::uint64_t size) {
  const Lock lock(*this);
  remove(begin, begin + size);
}

void MarkTable::remove(std::uint64_t begin, std::uint64_t end) {
  for (std::size_t i = 0; i < count_;) {
    Entry& entry = entries_[i];
    if (entry.end <= begin || entry.begin >= end) {
      ++i;
    } else if (entry.begin < begin && entry.end > end) {
      Entry rest = entry;
      entry.end = begin;
      rest.begin = end;
      return insert(rest);
    } else if (entry.begin < begin) {
      entry.end = begin;
    } else if (entry.end > end) {
      entry.begin = end;
    } else {
      std::copy(entries_ + i + 1, entries_ + count_, entries_ + i);
      --count_;
    }
  }
}

void MarkTable::insert(const Entry& entry) {
  if (count_ == capacity) {
    join_nearest();
  }
  Entry* const end = entries_ + count_;
  Entry* const place = std::lower_bound(entries_, end, entry.begin,
                                        [](const Entry& one, std::uint64_t begin) { return one.begin < begin; });
  std::copy_backward(place, end, end + 1);
  *place = entry;
  ++count_;
}

// Makes room in a full table: the two ranges with the smallest gap become one, and the gap counts as unknown too.
void MarkTable::join_nearest() {
  std::size_t nearest = 0;
  for (std::size_t i = 1; i + 1 < count_; ++i) {
    if (entries_[i + 1].begin - entries_[i].end < entries_[nearest + 1].begin - entries_[nearest].end) {
      nearest = i;
    }
  }
  entries_[nearest].end = entries_[nearest + 1].end;
  std::copy(entries_ + nearest + 2, entries_ + count_, entries_ + nearest + 1);
  --count_;
}

}  // namespace software_driver
