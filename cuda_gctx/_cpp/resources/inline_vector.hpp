// A vector of plain values that keeps the first few in place: most groups are one unit, and a split is a microsecond.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace gctx {

template <typename T, std::size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  void push_back(const T& value) {
    if (size_ < N && more_.empty()) {
      few_[size_++] = value;
    } else {
      move_out();
      more_.push_back(value);
      ++size_;
    }
  }

  void resize(std::size_t size) {
    if (size > N || !more_.empty()) {
      move_out();
      more_.resize(size);
    }
    size_ = size;
  }

  template <typename Range>
  void append(const Range& values) {
    for (const T& value : values) {
      push_back(value);
    }
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  const T& operator[](std::size_t at) const noexcept { return data()[at]; }
  T* data() noexcept { return more_.empty() ? few_.data() : more_.data(); }
  const T* data() const noexcept { return more_.empty() ? few_.data() : more_.data(); }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  const T& front() const noexcept { return *data(); }

 private:
  void move_out() {
    if (more_.empty()) {
      more_.assign(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(size_));
    }
  }

  std::array<T, N> few_{};
  std::vector<T> more_;  // all of them, once they are too many
  std::size_t size_ = 0;
};

}  // namespace gctx
