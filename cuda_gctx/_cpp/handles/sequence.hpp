// Kernels, copies and orders of streams that are noted once and launched again and again, with other addresses.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "handles/types.hpp"

namespace gctx {

// An address that a launch is given, and how far from it: `given` is its number among them, or none for an address that
// never changes.
struct Place {
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  std::uint32_t given = none;
  std::uint64_t offset = 0;
};

// A 64-bit word of a kernel's arguments that is such an address.
struct Patch {
  std::uint32_t at = 0;  // in bytes
  Place place;
};

// How a kernel of one argument, a struct, is launched.
struct KernelShape {
  CUfunction function = nullptr;
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  bool is_programmatic = false;  // it need not wait until the kernel before it on the stream has ended
  std::uint32_t number_at = 0;   // in bytes: a 32-bit word that tells launches apart
};

// Not for several threads at once: arguments are filled in place, and the driver copies them at each launch.
class Sequence {
 public:
  static constexpr const char* word = "sequence";  // in messages

  void add_stream(const StreamHandle& stream) { streams_.push_back(stream); }
  // Streams by number: 0 is that of a launch, then those that were added.
  void add_kernel(const KernelShape& shape, const std::vector<std::uint8_t>& arguments,
                  const std::vector<Patch>& patches);
  void add_copy(unsigned stream, const Place& to, const Place& from, std::uint64_t bytes);
  void add_wait(unsigned stream, unsigned other);

  // `given` are the addresses. `count` is the number of launches before, of all sequences that share their numbers. All
  // kernels of a launch have one of 65,535 numbers in the lower half of their words.
  void launch(const StreamHandle& stream, const std::vector<std::uint64_t>& given, std::uint64_t count);

 private:
  enum class Kind : std::uint8_t { kernel, copy, wait };
  struct Step {
    Kind kind;
    unsigned stream = 0;
    unsigned other = 0;      // of a wait
    std::size_t number = 0;  // of a kernel or a copy
  };
  struct Kernel {
    KernelShape shape;
    std::vector<std::uint64_t> arguments;
    std::vector<Patch> patches;
  };
  struct Copy {
    Place to;
    Place from;
    std::uint64_t bytes;
  };

  void demand(const Place& place);
  void demand_stream(unsigned number) const;
  void run(Kernel& kernel, const StreamHandle& stream, const std::vector<std::uint64_t>& given, std::uint64_t count);

  std::vector<StreamHandle> streams_;
  std::vector<Step> steps_;
  std::vector<Kernel> kernels_;
  std::vector<Copy> copies_;
  std::size_t given_ = 0;  // how many addresses there are at least
};

inline std::shared_ptr<Sequence> make_sequence() { return std::make_shared<Sequence>(); }

}  // namespace gctx
