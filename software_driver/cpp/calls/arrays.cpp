// Arrays, mipmapped arrays, and what kernels would read and write them through. Kernels are not executed, so textures
// and surfaces are their descriptions.
#include <algorithm>
#include <bit>

#include "calls/allocations.hpp"
#include "machine/costs.hpp"

namespace software_driver {
namespace {

// 0 for formats that are not modelled: those of several planes, and compressed ones.
std::size_t format_bytes(CUarray_format format) {
  constexpr std::pair<CUarray_format, std::size_t> sizes[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, 1}, {CU_AD_FORMAT_SIGNED_INT8, 1}, {CU_AD_FORMAT_UNSIGNED_INT16, 2},
      {CU_AD_FORMAT_SIGNED_INT16, 2},  {CU_AD_FORMAT_HALF, 2},        {CU_AD_FORMAT_UNSIGNED_INT32, 4},
      {CU_AD_FORMAT_SIGNED_INT32, 4},  {CU_AD_FORMAT_FLOAT, 4}};
  const std::size_t* size = value_of(sizes, format);
  return size == nullptr ? 0 : *size;
}

bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR& wanted) {
  constexpr unsigned known = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                             CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;
  // The limits that the attributes of devices report for textures.
  constexpr std::size_t longest = 131072;
  constexpr std::size_t deepest = 16384;
  const bool cubemap = (wanted.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  const bool layered = (wanted.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  const bool channels = wanted.NumChannels == 1 || wanted.NumChannels == 2 || wanted.NumChannels == 4;
  const bool within = wanted.Width <= longest && wanted.Height <= longest && wanted.Depth <= deepest;
  const bool flat = wanted.Height != 0 || wanted.Depth == 0 || layered;
  const bool faces = wanted.Width == wanted.Height && (wanted.Depth == 6 || (layered && wanted.Depth % 6 == 0));
  return (wanted.Flags & ~known) == 0 && channels && wanted.Width != 0 && within && flat &&
         (!cubemap || (faces && wanted.Depth != 0));
}

Array& create_array(Call& c, const CUDA_ARRAY3D_DESCRIPTOR& wanted) {
  refuse_if(!is_valid(wanted), CUDA_ERROR_INVALID_VALUE);
  refuse_if(format_bytes(wanted.Format) == 0, CUDA_ERROR_NOT_SUPPORTED);
  auto array = std::make_unique<Array>();
  c.made(*array);
  array->descriptor = wanted;
  array->element_bytes = format_bytes(wanted.Format) * wanted.NumChannels;
  array->device = c.current->device;
  Device& device = c.device();
  const std::size_t bytes = array->bytes();
  refuse_if(!has_room(device, bytes), CUDA_ERROR_OUT_OF_MEMORY);
  array->storage = device.take(bytes);
  Bytes all;
  all.add(array->storage, 0, bytes);
  c.machine.unknown.clear(all, 0, bytes);
  device.allocated += bytes;
  return c.machine.arrays.add(std::move(array));
}

CUDA_ARRAY_DESCRIPTOR flat_descriptor(const Array& array) {
  const CUDA_ARRAY3D_DESCRIPTOR& all = array.descriptor;
  return {all.Width, all.Height, all.Format, all.NumChannels};
}

// What a texture or a surface is made of must be there.
void check_resource(Call& c, const CUDA_RESOURCE_DESC& resource) {
  refuse_if(resource.flags != 0, CUDA_ERROR_INVALID_VALUE);
  constexpr std::size_t alignment = 512;
  constexpr std::size_t pitch_alignment = 32;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      find<Array>(c, resource.res.array.hArray);
      return;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      find<MipmappedArray>(c, resource.res.mipmap.hMipmappedArray);
      return;
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      const bool there = linear.sizeInBytes > 0 && linear.devPtr % alignment == 0 &&
                         find_allocation(c.machine, linear.devPtr, linear.sizeInBytes) != nullptr;
      return refuse_if(!there || format_bytes(linear.format) == 0, CUDA_ERROR_INVALID_VALUE);
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      const std::size_t width = rows.width * format_bytes(rows.format) * rows.numChannels;
      const bool sane = rows.width > 0 && rows.height > 0 && rows.width <= 131072 && rows.height <= 65000 &&
                        rows.numChannels <= 4 && width > 0 && rows.pitchInBytes >= width &&
                        rows.pitchInBytes <= (1U << 22) && rows.pitchInBytes % pitch_alignment == 0 &&
                        rows.devPtr % alignment == 0;
      const bool there =
          sane && find_allocation(c.machine, rows.devPtr, rows.pitchInBytes * (rows.height - 1) + width) != nullptr;
      return refuse_if(!there, CUDA_ERROR_INVALID_VALUE);
    }
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuArray3DCreate_v2, Call& c, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
  give(out, create_array(c, *wanted));
}

SOFTWARE_DRIVER_CALL(cuArrayCreate_v2, Call& c, CUarray* out, const CUDA_ARRAY_DESCRIPTOR* wanted) {
  give(out, create_array(c, {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0}));
}

SOFTWARE_DRIVER_GET(cuArray3DGetDescriptor_v2, &Array::descriptor)
SOFTWARE_DRIVER_GET(cuArrayGetDescriptor_v2, flat_descriptor)

SOFTWARE_DRIVER_CALL(cuArrayDestroy, Call& c, const Array& array) {
  refuse_if(array.hidden, CUDA_ERROR_INVALID_VALUE);  // a level of a mipmapped array
  release(c.machine, array);
}

SOFTWARE_DRIVER_CALL(cuMipmappedArrayCreate, Call& c, CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                     unsigned levels) {
  refuse_if(!is_valid(*wanted), CUDA_ERROR_INVALID_VALUE);
  const bool layered = (wanted->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const std::size_t longest = std::max({wanted->Width, wanted->Height, layered ? 1 : wanted->Depth});
  // Documented: the number is clamped to what the extent has.
  levels = std::min(levels, static_cast<unsigned>(std::bit_width(longest)));
  auto made = std::make_unique<MipmappedArray>();
  made->descriptor = *wanted;
  CUDA_ARRAY3D_DESCRIPTOR level = *wanted;
  for (unsigned i = 0; i < levels; ++i) {
    try {
      made->levels.push_back(&create_array(c, level));
      made->levels.back()->hidden = true;
    } catch (...) {
      for (const Array* other : made->levels) {
        release(c.machine, *other);
      }
      throw;
    }
    level.Width = std::max<std::size_t>(level.Width / 2, 1);
    level.Height = std::max<std::size_t>(level.Height / 2, std::min<std::size_t>(level.Height, 1));
    level.Depth = layered ? level.Depth : std::max<std::size_t>(level.Depth / 2, std::min<std::size_t>(level.Depth, 1));
  }
  c.made(*made);
  give(out, c.machine.mipmapped_arrays.add(std::move(made)));
}

SOFTWARE_DRIVER_CALL(cuMipmappedArrayGetLevel, Call&, CUarray* out, const MipmappedArray& array, unsigned level) {
  return level < array.levels.size() ? give(out, *array.levels[level]) : refuse(CUDA_ERROR_INVALID_VALUE);
}

SOFTWARE_DRIVER_CALL(cuMipmappedArrayDestroy, Call& c, const MipmappedArray& array) {
  for (const Array* level : array.levels) {
    release(c.machine, *level);
  }
  c.machine.mipmapped_arrays.remove(array);
}

SOFTWARE_DRIVER_CALL(cuTexObjectCreate, Call& c, CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                     const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  constexpr unsigned known = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                             CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;
  refuse_if((texture->flags & ~known) != 0, CUDA_ERROR_INVALID_VALUE);
  check_resource(c, *resource);
  const bool mipmapped = resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  refuse_if(mipmapped && (texture->flags & CU_TRSF_NORMALIZED_COORDINATES) == 0, CUDA_ERROR_INVALID_VALUE);
  const bool in_array = mipmapped || resource->resType == CU_RESOURCE_TYPE_ARRAY;
  refuse_if(view != nullptr && !in_array, CUDA_ERROR_INVALID_VALUE);
  Texture& made = c.add(c.machine.textures);
  made.resource = *resource;
  made.texture = *texture;
  made.view = view == nullptr ? std::nullopt : std::optional(*view);
  give(out, made);
}

// Recorded: whether a capture is under way is looked at before the handle.
SOFTWARE_DRIVER_CALL(cuTexObjectDestroy, Call& c, CUtexObject texture) {
  c.machine.textures.remove(find<Texture>(c, texture));
}

SOFTWARE_DRIVER_CALL(cuTexObjectGetResourceViewDesc, Call&, CUDA_RESOURCE_VIEW_DESC* out, const Texture& texture) {
  return texture.view ? give(out, *texture.view) : refuse(CUDA_ERROR_INVALID_VALUE);
}

SOFTWARE_DRIVER_GET(cuTexObjectGetResourceDesc, &Texture::resource)
SOFTWARE_DRIVER_GET(cuTexObjectGetTextureDesc, &Texture::texture)
SOFTWARE_DRIVER_GET(cuSurfObjectGetResourceDesc, &Surface::resource)

SOFTWARE_DRIVER_CALL(cuSurfObjectCreate, Call& c, CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  refuse_if(resource->resType != CU_RESOURCE_TYPE_ARRAY, CUDA_ERROR_INVALID_VALUE);
  check_resource(c, *resource);
  const Array* array = c.machine.arrays.find(resource->res.array.hArray);
  refuse_if((array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0, CUDA_ERROR_INVALID_VALUE);
  Surface& made = c.add(c.machine.surfaces);
  made.resource = *resource;
  give(out, made);
}

SOFTWARE_DRIVER_CALL(cuSurfObjectDestroy, Call& c, CUsurfObject surface) {
  c.machine.surfaces.remove(find<Surface>(c, surface));
}
