// Memory of a machine, in files and at reserved addresses.
#include "machine/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace software_driver {
namespace {

constexpr std::uint64_t grain = 512;  // of the addresses of allocations

std::uint64_t round_up(std::uint64_t size, std::uint64_t to) { return (size + to - 1) / to * to; }

bool is_zero(const char* bytes, std::size_t size) {
  return *bytes == 0 && std::memcmp(bytes, bytes + 1, size - 1) == 0;
}

off_t as_offset(std::uint64_t at) { return static_cast<off_t>(at); }

char* map_pages(void* hint, std::uint64_t size, int protection, int flags, int descriptor = -1, off_t offset = 0) {
  void* found = mmap(hint, size, protection, flags, descriptor, offset);
  if (found == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<char*>(found);
}

constexpr int usable = PROT_READ | PROT_WRITE;
constexpr int of_nothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

File::File(std::uint64_t size) : descriptor_(memfd_create("cuda_software_driver", MFD_CLOEXEC)), is_opened_(false) {
  if (descriptor_ < 0 || ftruncate(descriptor_, as_offset(size + mark_bytes)) != 0) {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
    throw std::bad_alloc();
  }
}

File::~File() {
  if (MarkTable* const marks = marks_.load()) {
    munmap(marks, mark_bytes);
  }
  close(descriptor_);
}

MarkTable* File::map_marks() const {
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) {
    throw std::bad_alloc();
  }
  char* const place =
      map_pages(nullptr, mark_bytes, usable, MAP_SHARED, descriptor_, status.st_size - static_cast<off_t>(mark_bytes));
  return is_opened_ ? reinterpret_cast<MarkTable*>(place) : new (place) MarkTable;
}

MarkTable& File::marks() const {
  const std::scoped_lock lock(marking_);
  if (marks_.load() == nullptr) {
    marks_ = map_marks();
  }
  return *marks_.load();
}

MarkTable* File::existing_marks() const { return is_opened_ ? &marks() : marks_.load(); }

void File::read(std::uint64_t at, void* to, std::size_t size) const {
  for (auto* next = static_cast<char*>(to); size > 0;) {
    const ssize_t got = pread(descriptor_, next, size, as_offset(at));
    if (got <= 0) {
      if (got < 0 && errno == EINTR) {
        continue;
      }
      return;
    }
    next += got;
    at += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

void File::write(std::uint64_t at, const void* from, std::size_t size) const {
  constexpr std::size_t chunk = std::size_t{64} << 10;
  for (const auto* next = static_cast<const char*>(from); size > 0;) {
    std::size_t part = std::min(size, chunk - at % chunk);
    if (part >= page_bytes && is_zero(next, part)) {
      clear(at, part);
    } else {
      const ssize_t put = pwrite(descriptor_, next, part, as_offset(at));
      if (put <= 0) {
        if (put < 0 && errno == EINTR) {
          continue;
        }
        return;
      }
      part = static_cast<std::size_t>(put);
    }
    next += part;
    at += part;
    size -= part;
  }
}

void File::clear(std::uint64_t at, std::uint64_t size) const {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, as_offset(at), as_offset(size));
}

std::uint64_t File::resident() const {
  struct stat status{};
  return fstat(descriptor_, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

std::uint64_t File::missing(std::uint64_t at, std::uint64_t size) const {
  std::uint64_t found = 0;
  for (const std::uint64_t end = at + size; at < end;) {
    const off_t data = lseek(descriptor_, as_offset(at), SEEK_DATA);
    const std::uint64_t next = data < 0 ? end : std::min(end, static_cast<std::uint64_t>(data));
    found += next - at;
    at = next;
    if (at < end) {
      at = std::min(end, static_cast<std::uint64_t>(lseek(descriptor_, as_offset(at), SEEK_HOLE)));
    }
  }
  return found;
}

Reservation::Reservation(std::uint64_t size, std::uint64_t alignment, std::uint64_t hint) : size_(size) {
  const std::uint64_t spare = alignment > page_bytes ? alignment : 0;
  char* found = map_pages(reinterpret_cast<void*>(hint), size + spare, PROT_NONE, of_nothing);
  // What is too much at both ends goes back.
  const auto begin = reinterpret_cast<std::uint64_t>(found);
  address_ = round_up(begin, std::max<std::uint64_t>(alignment, 1));
  if (address_ > begin) {
    munmap(found, address_ - begin);
  }
  if (begin + spare > address_) {
    munmap(reinterpret_cast<void*>(address_ + size), begin + spare - address_);
  }
  try {
    host_ = map_pages(nullptr, size, PROT_NONE, of_nothing);
  } catch (...) {
    munmap(reinterpret_cast<void*>(address_), size);
    throw;
  }
}

Reservation::~Reservation() {
  munmap(reinterpret_cast<void*>(address_), size_);
  munmap(host_, size_);
}

void Reservation::map(std::uint64_t address, const File& file, std::uint64_t offset, std::uint64_t size) const {
  map_pages(host(address), size, usable, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.descriptor(), as_offset(offset));
}

void Reservation::unmap(std::uint64_t address, std::uint64_t size) const {
  mmap(host(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

SharedRecord::SharedRecord(std::shared_ptr<File> opened) : file(std::move(opened)) {
  counts = reinterpret_cast<Counts*>(map_pages(nullptr, page_bytes, usable, MAP_SHARED, file->descriptor()));
}

SharedRecord::~SharedRecord() { munmap(counts, page_bytes); }

Storage take_from_host(std::size_t size) {
  const std::size_t rounded = round_up(size, size < zero_from ? grain : page_bytes);
  Storage made;
  if (size < zero_from) {
    made.owner.reset(std::aligned_alloc(grain, rounded), std::free);
    if (!made.owner) {
      throw std::bad_alloc();
    }
    std::memset(made.owner.get(), 0xa5, rounded);
  } else {
    made.owner.reset(map_pages(nullptr, rounded, usable, of_nothing),
                     [rounded](void* mapped) { munmap(mapped, rounded); });
  }
  made.host = static_cast<char*>(made.owner.get());
  made.address = reinterpret_cast<std::uint64_t>(made.host);
  return made;
}

Arena::Arena(std::uint64_t size) : range_(size, granularity), file_(std::make_shared<File>(size)), free_{{0, size}} {
  range_.map(range_.address(), *file_, 0, size);
}

Storage Arena::take(std::uint64_t size) {
  const std::uint64_t rounded = round_up(size, size < zero_from ? grain : granularity);
  Storage made;
  {
    const std::scoped_lock lock(mutex_);
    // Whole pages for what is large: they go back to the host when it is freed.
    const std::uint64_t alignment = size < zero_from ? grain : granularity;
    auto place = free_.begin();
    for (; place != free_.end(); ++place) {
      made.offset = round_up(place->first, alignment);
      if (made.offset - place->first <= place->second && rounded <= place->second - (made.offset - place->first)) {
        break;
      }
    }
    if (place == free_.end()) {
      throw std::bad_alloc();
    }
    const auto [begin, length] = *place;
    free_.erase(place);
    if (made.offset > begin) {
      free_[begin] = made.offset - begin;
    }
    if (begin + length > made.offset + rounded) {
      free_[made.offset + rounded] = begin + length - made.offset - rounded;
    }
  }
  made.address = range_.address() + made.offset;
  made.host = range_.host(made.address);
  made.file = file_;
  made.owner.reset(made.host,
                   [arena = shared_from_this(), at = made.offset, rounded](void*) { arena->give_back(at, rounded); });
  if (size < zero_from) {
    std::array<char, page_bytes> pattern{};
    pattern.fill(static_cast<char>(0xa5));
    for (std::uint64_t at = 0; at < rounded; at += pattern.size()) {
      file_->write(made.offset + at, pattern.data(), std::min<std::uint64_t>(pattern.size(), rounded - at));
    }
  }
  return made;
}

void Arena::give_back(std::uint64_t offset, std::uint64_t size) {
  file_->clear(offset, size);
  const std::scoped_lock lock(mutex_);
  auto place = free_.emplace(offset, size).first;
  if (const auto next = std::next(place); next != free_.end() && next->first == offset + size) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place != free_.begin()) {
    const auto before = std::prev(place);
    if (before->first + before->second == offset) {
      before->second += place->second;
      free_.erase(place);
    }
  }
}

void Bytes::add(const Storage& storage, std::uint64_t at, std::uint64_t size) {
  pieces_.push_back({storage.file, storage.host + at, storage.offset + at, size, storage.owner});
}

template <class Visit>
void Bytes::each(std::uint64_t at, std::uint64_t size, Visit&& visit) const {
  for (const Piece& piece : pieces_) {
    if (at >= piece.size) {
      at -= piece.size;
      continue;
    }
    const std::uint64_t part = std::min(size, piece.size - at);
    visit(piece, at, part);
    size -= part;
    at = 0;
    if (size == 0) {
      return;
    }
  }
}

char* Bytes::pointer(std::uint64_t at) const noexcept {
  return pieces_.size() == 1 && !pieces_.front().file ? pieces_.front().host + at : nullptr;
}

void Bytes::read(std::uint64_t at, void* to, std::uint64_t size) const {
  auto* next = static_cast<char*>(to);
  each(at, size, [&](const Piece& piece, std::uint64_t from, std::uint64_t part) {
    piece.file ? piece.file->read(piece.offset + from, next, part)
               : static_cast<void>(std::memmove(next, piece.host + from, part));
    next += part;
  });
}

void Bytes::write(std::uint64_t at, const void* from, std::uint64_t size) const {
  const auto* next = static_cast<const char*>(from);
  each(at, size, [&](const Piece& piece, std::uint64_t to, std::uint64_t part) {
    piece.file ? piece.file->write(piece.offset + to, next, part)
               : static_cast<void>(std::memmove(piece.host + to, next, part));
    next += part;
  });
}

void Bytes::clear(std::uint64_t at, std::uint64_t size) const {
  each(at, size, [](const Piece& piece, std::uint64_t from, std::uint64_t part) {
    piece.file ? piece.file->clear(piece.offset + from, part)
               : static_cast<void>(std::memset(piece.host + from, 0, part));
  });
}

std::uint64_t Bytes::size() const noexcept {
  std::uint64_t size = 0;
  for (const Piece& piece : pieces_) {
    size += piece.size;
  }
  return size;
}

std::uint64_t Bytes::missing() const {
  std::uint64_t found = 0;
  for (const Piece& piece : pieces_) {
    found += piece.file ? piece.file->missing(piece.offset, piece.size) : 0;
  }
  return found;
}

void Bytes::each_place(std::uint64_t at, std::uint64_t size,
                       const std::function<void(const File*, std::uint64_t, std::uint64_t)>& visit) const {
  each(at, size, [&](const Piece& piece, std::uint64_t from, std::uint64_t part) {
    visit(piece.file.get(), piece.file ? piece.offset + from : reinterpret_cast<std::uint64_t>(piece.host) + from,
          part);
  });
}

void copy_bytes(const Bytes& to, std::uint64_t to_at, const Bytes& from, std::uint64_t from_at, std::uint64_t size) {
  if (const char* source = from.pointer(from_at)) {
    to.write(to_at, source, size);
  } else if (char* target = to.pointer(to_at)) {
    from.read(from_at, target, size);
  } else {
    std::vector<char> between(std::min<std::uint64_t>(size, std::uint64_t{1} << 18));
    for (std::uint64_t at = 0; at < size; at += between.size()) {
      const std::uint64_t part = std::min<std::uint64_t>(between.size(), size - at);
      from.read(from_at + at, between.data(), part);
      to.write(to_at + at, between.data(), part);
    }
  }
}

void fill_bytes(const Bytes& to, std::uint64_t at, std::uint64_t size, std::uint32_t value, std::size_t unit) {
  if (value == 0) {
    return to.clear(at, size);
  }
  std::vector<char> pattern(std::min<std::uint64_t>(size, std::uint64_t{1} << 16));
  for (std::size_t i = 0; i < pattern.size(); i += unit) {
    std::memcpy(pattern.data() + i, &value, unit);
  }
  for (std::uint64_t done = 0; done < size; done += pattern.size()) {
    to.write(at + done, pattern.data(), std::min<std::uint64_t>(pattern.size(), size - done));
  }
}

}  // namespace software_driver
