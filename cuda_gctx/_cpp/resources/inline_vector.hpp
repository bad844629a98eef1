// A vector of trivially copyable values that stores the first N inline. Most groups have one unit, so a split allocates
// little.
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
  InlineVector() noexcept {}  // the inline bytes are written before they are read, and need no clearing
  InlineVector(const InlineVector& other) : overflow_(other.overflow_), size_(other.size_) { copy_inline(other); }
  InlineVector(InlineVector&& other) noexcept : overflow_(std::move(other.overflow_)), size_(other.size_) {
    copy_inline(other);
    other.clear();
  }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) {
      overflow_ = other.overflow_;
      size_ = other.size_;
      copy_inline(other);
    }
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      overflow_ = std::move(other.overflow_);
      size_ = other.size_;
      copy_inline(other);
      other.clear();
    }
    return *this;
  }
  ~InlineVector() = default;

  void reserve(std::size_t size) {
    if (size > N) {
      overflow_.reserve(size);
    }
  }

  void push_back(const T& value) {
    if (size_ < N && overflow_.empty()) {
      std::memcpy(inline_ + size_ * sizeof(T), &value, sizeof(T));
    } else {
      move_to_overflow(size_ + 1);
      overflow_.push_back(value);
    }
    ++size_;
  }

  // Value-initialises new elements.
  void resize(std::size_t size) {
    if (size > N || !overflow_.empty()) {
      move_to_overflow(size);
      overflow_.resize(size);
    } else {
      for (std::size_t at = size_; at < size; ++at) {
        new (inline_ + at * sizeof(T)) T{};
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
    overflow_.clear();
    size_ = 0;
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t at) noexcept { return data()[at]; }
  const T& operator[](std::size_t at) const noexcept { return data()[at]; }
  T* data() noexcept { return overflow_.empty() ? reinterpret_cast<T*>(inline_) : overflow_.data(); }
  const T* data() const noexcept { return overflow_.empty() ? reinterpret_cast<const T*>(inline_) : overflow_.data(); }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  const T& front() const noexcept { return *data(); }

 private:
  void copy_inline(const InlineVector& other) noexcept {
    if (overflow_.empty()) {
      std::memcpy(inline_, other.inline_, size_ * sizeof(T));
    }
  }

  void move_to_overflow(std::size_t size) {
    if (overflow_.empty()) {
      overflow_.reserve(size);
      overflow_.assign(std::as_const(*this).begin(), std::as_const(*this).begin() + static_cast<std::ptrdiff_t>(size_));
    }
  }

  alignas(T) std::byte inline_[N * sizeof(T)];
  std::vector<T> overflow_;  // all elements, once there are more than N
  std::size_t size_ = 0;
};

}  // namespace gctx
