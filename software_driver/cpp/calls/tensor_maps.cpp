// Descriptors of tensors for the copies that kernels make themselves: checked as the header says, never executed.
#include <algorithm>
#include <cstring>

#include "calls/entry.hpp"

namespace software_driver {
namespace {

constexpr std::size_t max_rank = 5;

struct Description {
  CUtensorMap* map = nullptr;
  CUtensorMapDataType type{};
  unsigned rank = 0;
  unsigned lowest_rank = 1;
  void* address = nullptr;
  const cuuint64_t* dimensions = nullptr;
  const cuuint64_t* strides = nullptr;
  const cuuint32_t* element_strides = nullptr;
  std::size_t inner_elements = 0;  // along the first dimension of what one copy moves
  CUtensorMapInterleave interleave{};
  CUtensorMapSwizzle swizzle{};
  CUtensorMapL2promotion promotion{};
  CUtensorMapFloatOOBfill fill{};
};

std::size_t bits(CUtensorMapDataType type) {
  constexpr std::pair<CUtensorMapDataType, std::size_t> sizes[] = {
      {CU_TENSOR_MAP_DATA_TYPE_UINT8, 8},         {CU_TENSOR_MAP_DATA_TYPE_UINT16, 16},
      {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 16},      {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 16},
      {CU_TENSOR_MAP_DATA_TYPE_UINT32, 32},       {CU_TENSOR_MAP_DATA_TYPE_INT32, 32},
      {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32},      {CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, 32},
      {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 32},     {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, 32},
      {CU_TENSOR_MAP_DATA_TYPE_UINT64, 64},       {CU_TENSOR_MAP_DATA_TYPE_INT64, 64},
      {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 64},      {CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, 4},
      {CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, 4}, {CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B, 6}};
  const std::size_t* size = value_of(sizes, type);
  return size == nullptr ? 0 : *size;
}

bool is_float(CUtensorMapDataType type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

std::size_t swizzle_bytes(CUtensorMapSwizzle swizzle) {
  return swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 128;
}

void check(const Description& wanted, int version) {
  const auto demand = [](bool holds) { refuse_if(!holds, CUDA_ERROR_INVALID_VALUE); };
  const bool interleaved = wanted.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
  const bool wide =
      wanted.type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B || wanted.type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
  const unsigned lowest = interleaved ? std::max(wanted.lowest_rank, 3U) : wanted.lowest_rank;
  demand(bits(wanted.type) != 0 && wanted.rank >= lowest && wanted.rank <= max_rank);
  demand(wanted.rank == 1 || wanted.strides != nullptr);
  const std::size_t alignment = wide || wanted.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  demand(reinterpret_cast<std::uint64_t>(wanted.address) % alignment == 0);
  const std::uint64_t largest = std::uint64_t{1} << (version < 13050 ? 32 : 31);
  for (unsigned i = 0; i < wanted.rank; ++i) {
    demand(wanted.dimensions[i] != 0 && wanted.dimensions[i] <= largest);
    demand(wanted.element_strides[i] != 0 && wanted.element_strides[i] <= 8);
  }
  for (unsigned i = 0; i + 1 < wanted.rank; ++i) {
    demand(wanted.strides[i] % alignment == 0 && wanted.strides[i] < (std::uint64_t{1} << 40));
  }
  demand(wanted.interleave <= CU_TENSOR_MAP_INTERLEAVE_32B && wanted.swizzle <= CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B &&
         wanted.promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B &&
         wanted.fill <= CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
  demand(wanted.interleave != CU_TENSOR_MAP_INTERLEAVE_32B || wanted.swizzle == CU_TENSOR_MAP_SWIZZLE_32B);
  const std::size_t inner = wanted.inner_elements * bits(wanted.type) / 8;
  demand(interleaved || wanted.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || inner <= swizzle_bytes(wanted.swizzle));
  demand(wanted.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || is_float(wanted.type));
}

// The bytes are opaque to programs. Here the address is the first of them. Recorded: they may lie at any address,
// although cuda.h asks for a multiple of 64.
void encode(Call& c, const Description& wanted) {
  refuse_if(c.machine.chip->profile().cc_major < 9, CUDA_ERROR_NOT_SUPPORTED);
  check(wanted, c.version());
  CUtensorMap made{};
  made.opaque[0] = reinterpret_cast<std::uint64_t>(wanted.address);
  made.opaque[1] = wanted.rank | static_cast<std::uint64_t>(wanted.type) << 8 |
                   static_cast<std::uint64_t>(wanted.interleave) << 16 |
                   static_cast<std::uint64_t>(wanted.swizzle) << 24;
  for (unsigned i = 0; i < wanted.rank; ++i) {
    made.opaque[2 + i] = wanted.dimensions[i];
  }
  for (unsigned i = 0; i + 1 < wanted.rank; ++i) {
    made.opaque[2 + max_rank + i] = wanted.strides[i];
  }
  std::memcpy(static_cast<void*>(wanted.map), &made, sizeof made);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuTensorMapEncodeTiled, Call& c, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                     void* address, const cuuint64_t* dimensions, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  refuse_if(rank > max_rank, CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < rank; ++i) {
    refuse_if(box[i] == 0 || box[i] > 256, CUDA_ERROR_INVALID_VALUE);
  }
  const std::size_t inner = rank == 0 ? 0 : box[0];
  refuse_if(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && inner * bits(type) % 128 != 0, CUDA_ERROR_INVALID_VALUE);
  return encode(c, {map, type, rank, 1, address, dimensions, strides, element_strides, inner, interleave, swizzle,
                    promotion, fill});
}

SOFTWARE_DRIVER_CALL(cuTensorMapEncodeIm2col, Call& c, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                     void* address, const cuuint64_t* dimensions, const cuuint64_t* strides, const int*, const int*,
                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill) {
  refuse_if(channels == 0 || channels > 256 || pixels == 0 || pixels > 1024, CUDA_ERROR_INVALID_VALUE);
  return encode(c, {map, type, rank, 3, address, dimensions, strides, element_strides, channels, interleave, swizzle,
                    promotion, fill});
}

SOFTWARE_DRIVER_CALL(cuTensorMapEncodeIm2colWide, Call& c, CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                     void* address, const cuuint64_t* dimensions, const cuuint64_t* strides, int, int,
                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  refuse_if(c.machine.chip->profile().cc_major < 10, CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(
      channels == 0 || channels > 256 || pixels == 0 || pixels > 1024 || mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128,
      CUDA_ERROR_INVALID_VALUE);
  return encode(c, {map, type, rank, 3, address, dimensions, strides, element_strides, channels, interleave, swizzle,
                    promotion, fill});
}
