// What a split gives: all groups and the remainder, or a failure that names the nearest request that fits.
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

// One of an array. libstdc++ 12 wants what can be copied there, and copies nothing.
struct Piece : SmResource {
  Piece() noexcept {}
  Piece(const Piece&) noexcept : Piece() {}
};

// The groups of a split and its remainder: the pieces of one block of memory, which lives as long as any of them. Empty
// where a way to split does not serve.
class SplitResult {
 public:
  SplitResult() noexcept = default;
  SplitResult(std::shared_ptr<const Piece[]> pieces, std::size_t groups) noexcept
      : pieces_(std::move(pieces)), groups_(groups) {}

  explicit operator bool() const noexcept { return pieces_ != nullptr; }
  std::size_t groups() const noexcept { return groups_; }
  SmResourcePtr group(std::size_t at) const noexcept { return {pieces_, &piece(at)}; }
  SmResourcePtr remainder() const noexcept { return group(groups_); }
  SmResourcePtr last() noexcept {  // the remainder, where nothing else will be asked for
    const SmResource* const remainder = &piece(groups_);
    return {std::move(pieces_), remainder};
  }

 private:
  const SmResource& piece(std::size_t at) const noexcept { return pieces_[static_cast<std::ptrdiff_t>(at)]; }

  std::shared_ptr<const Piece[]> pieces_;
  std::size_t groups_ = 0;
};

// A split that cannot be given, with the nearest one that can.
class SplitFailure : public Error {
 public:
  explicit SplitFailure(std::string text) : Error(ErrorKind::split, std::move(text)) {}
  std::optional<std::vector<GroupRequest>> suggestion;
  std::string advice;  // what else the message says behind the request: why there is none, or what would help
};

// The SplitFailure in flight, inside a catch block and as long as that lasts; null if it is another error.
const SplitFailure* caught_split() noexcept;

}  // namespace gctx
