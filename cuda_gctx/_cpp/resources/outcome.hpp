// The result of a split: all groups and the remainder, or a failure that suggests a request that fits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "resources/request.hpp"
#include "resources/sm_resource.hpp"

namespace gctx {

// An element of the array of a SplitResult. libstdc++ 12 demands a copy constructor, and never calls it.
struct Piece : SmResource {
  Piece() noexcept {}
  Piece(const Piece&) noexcept : Piece() {}
};

// The groups and the remainder of a split, in one block of memory that lives as long as any of them. Empty if a
// strategy does not serve.
class SplitResult {
 public:
  SplitResult() noexcept = default;
  SplitResult(std::shared_ptr<const Piece[]> pieces, std::size_t groups) noexcept
      : pieces_(std::move(pieces)), groups_(groups) {}

  explicit operator bool() const noexcept { return pieces_ != nullptr; }
  std::size_t groups() const noexcept { return groups_; }
  SmResourcePtr group(std::size_t at) const noexcept { return {pieces_, &piece(at)}; }
  SmResourcePtr remainder() const noexcept { return group(groups_); }
  SmResourcePtr last() noexcept {  // the remainder; leaves the result empty
    const SmResource* const remainder = &piece(groups_);
    return {std::move(pieces_), remainder};
  }

 private:
  const SmResource& piece(std::size_t at) const noexcept { return pieces_[static_cast<std::ptrdiff_t>(at)]; }

  std::shared_ptr<const Piece[]> pieces_;
  std::size_t groups_ = 0;
};

// A split that does not fit, with a request that fits.
class SplitFailure : public Error {
 public:
  explicit SplitFailure(std::string text) : Error(ErrorKind::split, std::move(text)) {}
  std::optional<std::vector<GroupRequest>> suggestion;
  std::string advice;  // the end of the message: the reason for no suggestion, or an option that would help
};

}  // namespace gctx
