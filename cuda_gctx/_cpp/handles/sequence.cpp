#include "handles/sequence.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "handles/runtime.hpp"
#include "handles/scope.hpp"
#include "handles/stream.hpp"

namespace gctx {
namespace {

constexpr std::uint32_t upper_half = 0xFFFF0000;
constexpr std::uint64_t numbers = 0xFFFF;

std::uint64_t address(const Place& place, const std::vector<std::uint64_t>& given) {
  return place.offset + (place.given == Place::none ? 0 : given[place.given]);
}

}  // namespace

void Sequence::demand(const Place& place) {
  if (place.given != Place::none) {
    given_ = std::max(given_, std::size_t{place.given} + 1);
  }
}

void Sequence::demand_stream(unsigned number) const {
  if (number > streams_.size()) {
    fail_state("a sequence of " + std::to_string(1 + streams_.size()) + " streams has no stream " +
               std::to_string(number));
  }
}

void Sequence::add_kernel(const KernelShape& shape, const std::vector<std::uint8_t>& arguments,
                          const std::vector<Patch>& patches) {
  const auto is_inside = [&](std::size_t at, std::size_t size) {
    return at % size == 0 && at + size <= arguments.size();
  };
  if (!is_inside(shape.number_at, sizeof(std::uint32_t)) ||
      !std::all_of(patches.begin(), patches.end(),
                   [&](const Patch& patch) { return is_inside(patch.at, sizeof(std::uint64_t)); })) {
    fail_state("a word lies outside of the arguments of a kernel");
  }
  for (const Patch& patch : patches) {
    demand(patch.place);
  }
  Kernel kernel{shape, std::vector<std::uint64_t>((arguments.size() + 7) / 8), patches};
  std::memcpy(kernel.arguments.data(), arguments.data(), arguments.size());
  kernels_.push_back(std::move(kernel));
  steps_.push_back({Kind::kernel, 0, 0, kernels_.size() - 1});
}

void Sequence::add_copy(unsigned stream, const Place& to, const Place& from, std::uint64_t bytes) {
  demand_stream(stream);
  demand(to);
  demand(from);
  copies_.push_back({to, from, bytes});
  steps_.push_back({Kind::copy, stream, 0, copies_.size() - 1});
}

void Sequence::add_wait(unsigned stream, unsigned other) {
  demand_stream(stream);
  demand_stream(other);
  steps_.push_back({Kind::wait, stream, other, 0});
}

void Sequence::run(Kernel& kernel, const StreamHandle& stream, const std::vector<std::uint64_t>& given,
                   std::uint64_t count) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(kernel.arguments.data());
  for (const Patch& patch : kernel.patches) {
    const std::uint64_t value = address(patch.place, given);
    std::memcpy(bytes + patch.at, &value, sizeof(value));
  }
  std::uint32_t number = 0;
  std::memcpy(&number, bytes + kernel.shape.number_at, sizeof(number));
  number = (number & upper_half) | static_cast<std::uint32_t>(count % numbers + 1);
  std::memcpy(bytes + kernel.shape.number_at, &number, sizeof(number));
  const KernelShape& shape = kernel.shape;
  const Driver& driver = stream->context()->runtime().driver();
  void* arguments[] = {bytes};
  if (!shape.is_programmatic) {
    GCTX_CALL(driver, cuLaunchKernel, shape.function, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes,
              stream->handle(), arguments, nullptr);
    return;
  }
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = shape.blocks;
  config.blockDimX = shape.threads;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream->handle();
  config.attrs = &attribute;
  config.numAttrs = 1;
  GCTX_CALL(driver, cuLaunchKernelEx, &config, shape.function, arguments, nullptr);
}

void Sequence::launch(const StreamHandle& stream, const std::vector<std::uint64_t>& given, std::uint64_t count) {
  if (given.size() < given_) {
    fail_state("a sequence needs " + std::to_string(given_) + " addresses, not " + std::to_string(given.size()));
  }
  stream->context()->demand_there();
  const Driver& driver = stream->context()->runtime().driver();
  const auto of_number = [&](unsigned number) -> const StreamHandle& {
    return number == 0 ? stream : streams_[number - 1];
  };
  CurrentScope scope(*stream->context());
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kernel:
        run(kernels_[step.number], stream, given, count);
        break;
      case Kind::copy: {
        const Copy& copy = copies_[step.number];
        GCTX_CALL(driver, cuMemcpyDtoDAsync, address(copy.to, given), address(copy.from, given), copy.bytes,
                  of_number(step.stream)->handle());
        break;
      }
      case Kind::wait:
        wait_stream(of_number(step.stream), of_number(step.other));
        break;
    }
  }
  scope.leave();
}

}  // namespace gctx
