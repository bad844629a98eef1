// Memory of a machine. That of devices stands in sparse files, which other processes can map too, and at addresses that
// the host's own pointers cannot use; zeros take no pages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/marks.hpp"

namespace software_driver {

inline constexpr std::size_t page_bytes = 4096;
// Memory of devices is given to virtual addresses in pieces of this.
inline constexpr std::uint64_t granularity = std::uint64_t{2} << 20;

// An anonymous file of zeros.
class File {
 public:
  explicit File(std::uint64_t size);                                            // throws std::bad_alloc
  explicit File(int descriptor) : descriptor_(descriptor), is_opened_(true) {}  // closes the descriptor
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  void read(std::uint64_t at, void* to, std::size_t size) const;
  void write(std::uint64_t at, const void* from, std::size_t size) const;
  void clear(std::uint64_t at, std::uint64_t size) const;
  std::uint64_t resident() const;
  std::uint64_t missing(std::uint64_t at, std::uint64_t size) const;  // bytes that take no pages yet
  // Marks on its bytes. The table is made for the first mark; null before.
  MarkTable& marks() const;
  MarkTable* existing_marks() const;

 private:
  MarkTable* map_marks() const;

  int descriptor_;
  bool is_opened_;  // another process made it, and may have marked its bytes
  mutable std::atomic<MarkTable*> marks_{nullptr};
  mutable std::mutex marking_;
};

// Reserved addresses, and others at which the library itself reaches the same bytes.
class Reservation {
 public:
  // At `hint` where that is free. Throws std::bad_alloc.
  explicit Reservation(std::uint64_t size, std::uint64_t alignment = page_bytes, std::uint64_t hint = 0);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  std::uint64_t address() const noexcept { return address_; }
  std::uint64_t size() const noexcept { return size_; }
  bool contains(std::uint64_t address) const noexcept { return address - address_ < size_; }
  char* host(std::uint64_t address) const noexcept { return host_ + (address - address_); }
  void map(std::uint64_t address, const File& file, std::uint64_t offset, std::uint64_t size) const;
  void unmap(std::uint64_t address, std::uint64_t size) const;

 private:
  std::uint64_t size_;
  std::uint64_t address_ = 0;
  char* host_ = nullptr;
};

// Of an event that other processes have too: how often it was recorded, and which of the records has taken place.
struct SharedRecord {
  struct Counts {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> done;
  };
  explicit SharedRecord(std::shared_ptr<File> opened);
  ~SharedRecord();
  SharedRecord(const SharedRecord&) = delete;
  SharedRecord& operator=(const SharedRecord&) = delete;

  bool is_done(std::uint64_t number) const noexcept { return counts->done >= number; }

  std::shared_ptr<File> file;
  Counts* counts = nullptr;
};

// A piece of memory, and what keeps it.
struct Storage {
  std::uint64_t address = 0;
  char* host = nullptr;        // the same bytes where the library reaches them
  std::shared_ptr<File> file;  // null for memory of the host
  std::uint64_t offset = 0;    // in the file
  std::shared_ptr<void> owner;
};

// Fresh allocations below this have a pattern, which shows a program that relies on zeros; larger ones are zero.
inline constexpr std::size_t zero_from = std::size_t{1} << 18;

// Memory of the host that the driver gives out.
Storage take_from_host(std::size_t size);

// The memory of one device.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  explicit Arena(std::uint64_t size);
  Storage take(std::uint64_t size);
  bool contains(std::uint64_t address) const noexcept { return range_.contains(address); }
  const File& file() const noexcept { return *file_; }

 private:
  void give_back(std::uint64_t offset, std::uint64_t size);

  Reservation range_;
  std::shared_ptr<File> file_;
  std::mutex mutex_;                             // copies give memory back without the lock of the machine
  std::map<std::uint64_t, std::uint64_t> free_;  // sizes by offset
};

// Bytes at consecutive addresses, whatever they stand in.
class Bytes {
 public:
  // Of `storage`, from its byte `at` on.
  void add(const Storage& storage, std::uint64_t at, std::uint64_t size);
  bool is_empty() const noexcept { return pieces_.empty(); }
  // Where the library reaches the first.
  char* host() const noexcept { return pieces_.front().host; }
  // Where the host's own pointers reach them; null for memory of a device.
  char* pointer(std::uint64_t at) const noexcept;
  void read(std::uint64_t at, void* to, std::uint64_t size) const;
  void write(std::uint64_t at, const void* from, std::uint64_t size) const;
  void clear(std::uint64_t at, std::uint64_t size) const;
  std::uint64_t size() const noexcept;
  std::uint64_t missing() const;  // bytes that take no pages of files yet
  // Visits where `size` bytes from `at` on stand: in a file, or at an address of the host (the file is null then).
  void each_place(std::uint64_t at, std::uint64_t size,
                  const std::function<void(const File* file, std::uint64_t begin, std::uint64_t size)>& visit) const;

 private:
  struct Piece {
    std::shared_ptr<File> file;
    char* host;
    std::uint64_t offset;
    std::uint64_t size;
    std::shared_ptr<void> owner;
  };
  template <class Visit>
  void each(std::uint64_t at, std::uint64_t size, Visit&& visit) const;
  std::vector<Piece> pieces_;
};

// Copies `size` bytes.
void copy_bytes(const Bytes& to, std::uint64_t to_at, const Bytes& from, std::uint64_t from_at, std::uint64_t size);
// Repeats the first `unit` bytes of `value`, which may be 1, 2 or 4.
void fill_bytes(const Bytes& to, std::uint64_t at, std::uint64_t size, std::uint32_t value, std::size_t unit);

}  // namespace software_driver
