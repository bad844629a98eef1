// A vector of plain values that keeps the first few in place: most groups are one unit, and a split is a microsecond.
#pragma once

#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace gctx {

template <typename T, std::size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  InlineVector() noexcept {}  // the bytes in place are written before they are read: nothing to clear
  InlineVector(const InlineVector& other) : more_(other.more_), size_(other.size_) { copy_few(other); }
  InlineVector(InlineVector&& other) noexcept : more_(std::move(other.more_)), size_(other.size_) {
    copy_few(other);
    other.clear();
  }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) {
      more_ = other.more_;
      size_ = other.size_;
      copy_few(other);
    }
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      more_ = std::move(other.more_);
      size_ = other.size_;
      copy_few(other);
      other.clear();
    }
    return *this;
  }
  ~InlineVector() = default;

  void reserve(std::size_t size) {
    if (size > N) {
      more_.reserve(size);
    }
  }

  void push_back(const T& value) {
    if (size_ < N && more_.empty()) {
      std::memcpy(few_ + size_ * sizeof(T), &value, sizeof(T));
    } else {
      move_out(size_ + 1);
      more_.push_back(value);
    }
    ++size_;
  }

  // Entries that are added are as T{} is.
  void resize(std::size_t size) {
    if (size > N || !more_.empty()) {
      move_out(size);
      more_.resize(size);
    } else {
      for (std::size_t at = size_; at < size; ++at) {
        new (few_ + at * sizeof(T)) T{};
      }
    }
    size_ = size;
  }

  template <typename Range>
  void append(const Range& values) {
    for (const T& value : values) {
      push_back(value);
    }
  }

  void clear() noexcept {
    more_.clear();
    size_ = 0;
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t at) noexcept { return data()[at]; }
  const T& operator[](std::size_t at) const noexcept { return data()[at]; }
  T* data() noexcept { return more_.empty() ? reinterpret_cast<T*>(few_) : more_.data(); }
  const T* data() const noexcept { return more_.empty() ? reinterpret_cast<const T*>(few_) : more_.data(); }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  const T& front() const noexcept { return *data(); }

 private:
  void copy_few(const InlineVector& other) noexcept {
    if (more_.empty()) {
      std::memcpy(few_, other.few_, size_ * sizeof(T));
    }
  }

  void move_out(std::size_t size) {
    if (more_.empty()) {
      more_.reserve(size);
      more_.assign(std::as_const(*this).begin(), std::as_const(*this).begin() + static_cast<std::ptrdiff_t>(size_));
    }
  }

  alignas(T) std::byte few_[N * sizeof(T)];
  std::vector<T> more_;  // all of them, once they are too many
  std::size_t size_ = 0;
};

}  // namespace gctx
