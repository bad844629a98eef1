// Links: several pieces of PTX become one image. The image is PTX again, which cuModuleLoadData takes as any other.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "calls/entry.hpp"
#include "preload/ptx_cache.hpp"

namespace software_driver {
namespace {

// Only PTX can be linked, and machine code whose PTX was kept.
std::string ptx_of(CUjitInputType type, std::string_view bytes) {
  if (type == CU_JIT_INPUT_PTX) {
    return std::string(bytes.substr(0, bytes.find('\0')));
  }
  refuse_if(type != CU_JIT_INPUT_CUBIN, CUDA_ERROR_NOT_SUPPORTED);
  auto kept = kept_ptx(bytes);
  refuse_if(!kept, CUDA_ERROR_NOT_SUPPORTED);
  return std::move(*kept);
}

void add_input(Link& link, CUjitInputType type, std::string_view bytes) {
  refuse_if(link.is_complete, CUDA_ERROR_INVALID_VALUE);
  link.image += ptx_of(type, bytes) + '\n';
}

void create_link(Call& c, unsigned, CUjit_option*, void**, CUlinkState* out) { give(out, c.add(c.machine.links)); }

void add_data(Call&, Link& link, CUjitInputType type, const void* data, std::size_t size) {
  add_input(link, type, {static_cast<const char*>(data), size});
}

void add_file(Call&, Link& link, CUjitInputType type, const char* name) {
  std::ifstream file(name, std::ios::binary);
  refuse_if(!file, CUDA_ERROR_FILE_NOT_FOUND);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  add_input(link, type, bytes);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_ROW(cuLinkCreate_v2, create_link)
SOFTWARE_DRIVER_ROW(cuLinkAddData_v2, add_data)
SOFTWARE_DRIVER_ROW(cuLinkAddFile_v2, add_file)

SOFTWARE_DRIVER_CALL(cuLinkComplete, Call&, Link& link, void** image, std::size_t* size) {
  refuse_if(link.image.empty(), CUDA_ERROR_INVALID_VALUE);
  link.is_complete = true;
  give(image, link.image.data());
  give(size, link.image.size() + 1);
}

SOFTWARE_DRIVER_CALL(cuLinkDestroy, Call& c, Link& link) { c.machine.links.remove(link); }
