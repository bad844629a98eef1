// Modules and libraries: loading, looking kernels up, unloading.
#include "calls/modules.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

#include "calls/allocations.hpp"
#include "calls/execution.hpp"
#include "machine/images.hpp"

namespace software_driver {
namespace {

Function& function_of(Call& c, Module& module, const std::shared_ptr<KernelCode>& code) {
  Function*& found = module.functions[code->name];
  if (found == nullptr) {
    found = &c.add(c.machine.functions);
    found->module = &module;
    found->code = code;
  }
  return *found;
}

std::vector<char> read_file(const char* name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name, "rb"), std::fclose);
  refuse_if(!file, CUDA_ERROR_FILE_NOT_FOUND);
  std::vector<char> bytes;
  std::array<char, 4096> block{};
  for (std::size_t got = 1; got != 0;) {
    got = std::fread(block.data(), 1, block.size(), file.get());
    bytes.insert(bytes.end(), block.data(), block.data() + got);
  }
  bytes.push_back('\0');
  return bytes;
}

std::shared_ptr<Image> image_of(const Call& c, const void* data) {
  auto image = std::make_shared<Image>();
  const Profile& card = c.machine.chip->profile();
  image->code = read_image(data, {c.version(), 10 * card.cc_major + card.cc_minor}, *image);
  return image;
}

void load_module(Call& c, CUmodule* out, const void* data) {
  auto image = image_of(c, data);
  refuse_if(image->code != CUDA_SUCCESS, image->code);
  Module& made = c.add(c.machine.modules);
  made.device = c.current->device;
  made.image = std::move(image);
  give(out, made);
}

void load_library(Call& c, CUlibrary* out, const void* data) {
  auto image = image_of(c, data);
  // Recorded: a library is loaded where it is used, and what the driver cannot load is refused there.
  Library& library = c.add(c.machine.libraries);
  library.image = std::move(image);
  if (library.image->code != CUDA_SUCCESS) {
    library.image->kernels.clear();
  }
  for (const auto& code : library.image->kernels) {
    Kernel& kernel = c.add(c.machine.kernels);
    kernel.library = &library;
    kernel.code = code;
    library.kernels[code->name] = &kernel;
  }
  give(out, library);
}

// The module that stands for a library on the device that is current.
Module& module_of(Call& c, Library& library, int device) {
  refuse_if(library.image->code != CUDA_SUCCESS, library.image->code);
  Module*& module = library.modules[device];
  if (module == nullptr) {
    module = &c.add(c.machine.modules);
    module->hidden = true;
    module->device = device;
    module->library = &library;
    module->image = library.image;
  }
  return *module;
}

void find_variable(Call& c, Module& module, const char* name, CUdeviceptr* address, std::size_t* size) {
  refuse_if(address == nullptr && size == nullptr, CUDA_ERROR_INVALID_VALUE);
  const auto found = std::ranges::find(module.image->variables, name, &Variable::name);
  refuse_if(found == module.image->variables.end(), CUDA_ERROR_NOT_FOUND);
  give(address, address_of(c, module, *found));
  give(size, found->size);
}

template <class Handle, class Map>
void list(Handle* out, unsigned count, const Map& objects) {
  for (const auto& [name, object] : objects) {
    if (count-- == 0) {
      break;
    }
    give(out++, *object);
  }
}

unsigned kernel_count(const Module& module) { return static_cast<unsigned>(module.image->kernels.size()); }

}  // namespace

void free_variables(Machine& machine, Module& module) {
  for (const auto& [name, address] : std::exchange(module.variables, {})) {
    release(machine, address);
  }
}

void unload(Machine& machine, Module& module) {
  free_variables(machine, module);
  for (const auto& [name, function] : module.functions) {
    machine.functions.remove(*function);
  }
  machine.modules.remove(module);
}

CUfunction function_on(Call& c, const Kernel& kernel, int device) {
  return as_handle<CUfunction>(function_of(c, module_of(c, *kernel.library, device), kernel.code));
}

}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuModuleLoad, Call& c, CUmodule* out, const char* name) {
  return load_module(c, out, read_file(name).data());
}
SOFTWARE_DRIVER_ROW(cuModuleLoadData, load_module)
SOFTWARE_DRIVER_ROW(cuModuleLoadDataEx, load_module)

SOFTWARE_DRIVER_CALL(cuModuleUnload, Call& c, Module& module) {
  refuse_if(module.library != nullptr, CUDA_ERROR_NOT_PERMITTED);
  unload(c.machine, module);
}

SOFTWARE_DRIVER_CALL(cuModuleGetLoadingMode, Call&, CUmoduleLoadingMode* mode) { give(mode, CU_MODULE_EAGER_LOADING); }

SOFTWARE_DRIVER_CALL(cuModuleGetFunction, Call& c, CUfunction* out, Module& module, const char* name) {
  for (const auto& code : module.image->kernels) {
    if (code->name == name) {
      return give(out, function_of(c, module, code));
    }
  }
  refuse(CUDA_ERROR_NOT_FOUND);
}

SOFTWARE_DRIVER_CALL(cuModuleEnumerateFunctions, Call& c, CUfunction* out, unsigned count, Module& module) {
  for (const auto& code : module.image->kernels) {
    function_of(c, module, code);
  }
  return list(out, count, module.functions);
}

SOFTWARE_DRIVER_CALL(cuModuleGetGlobal_v2, Call& c, CUdeviceptr* address, std::size_t* size, Module& module,
                     const char* name) {
  // Seen on an H200: unlike a library, a module refuses the names of kernels, and clears the results.
  const auto is_named = [&](const auto& kernel) { return kernel->name == name; };
  give(address, 0);
  give(size, 0);
  refuse_if(*name == '\0' || std::ranges::any_of(module.image->kernels, is_named), CUDA_ERROR_INVALID_VALUE);
  return find_variable(c, module, name, address, size);
}

SOFTWARE_DRIVER_CALL(cuLibraryLoadFromFile, Call& c, CUlibrary* out, const char* name) {
  const auto bytes = read_file(name);
  refuse_if(bytes.front() == '\0', CUDA_ERROR_INVALID_IMAGE);  // recorded of an empty file
  return load_library(c, out, bytes.data());
}
SOFTWARE_DRIVER_ROW(cuLibraryLoadData, load_library)

SOFTWARE_DRIVER_CALL(cuLibraryUnload, Call& c, Library& library) {
  for (const auto& [name, address] : library.managed_variables) {
    release(c.machine, address);
  }
  for (const auto& [device, module] : library.modules) {
    unload(c.machine, *module);
  }
  for (const auto& [name, kernel] : library.kernels) {
    c.machine.kernels.remove(*kernel);
  }
  c.machine.libraries.remove(library);
}

SOFTWARE_DRIVER_CALL(cuLibraryGetKernel, Call&, CUkernel* out, const Library& library, const char* name) {
  refuse_if(library.image->code != CUDA_SUCCESS, library.image->code);
  const auto found = library.kernels.find(name);
  refuse_if(found == library.kernels.end(), CUDA_ERROR_NOT_FOUND);
  give(out, *found->second);
}

SOFTWARE_DRIVER_CALL(cuLibraryEnumerateKernels, Call&, CUkernel* out, unsigned count, const Library& library) {
  return list(out, count, library.kernels);
}

SOFTWARE_DRIVER_CALL(cuLibraryGetGlobal, Call& c, CUdeviceptr* address, std::size_t* size, Library& library,
                     const char* name) {
  return find_variable(c, module_of(c, library, c.current->device), name, address, size);
}

SOFTWARE_DRIVER_CALL(cuLibraryGetManaged, Call& c, CUdeviceptr* address, std::size_t* size, Library& library,
                     const char* name) {
  const int device = library.modules.empty() ? 0 : library.modules.begin()->first;
  const auto& variables = library.image->variables;
  const auto found = std::ranges::find(variables, name, &Variable::name);
  refuse_if(found != variables.end() && !found->is_managed, CUDA_ERROR_NOT_FOUND);
  return find_variable(c, module_of(c, library, device), name, address, size);
}

SOFTWARE_DRIVER_CALL(cuLibraryGetModule, Call& c, CUmodule* out, Library& library) {
  give(out, module_of(c, library, c.current->device));
}

SOFTWARE_DRIVER_CALL(cuKernelGetFunction, Call& c, CUfunction* out, const Kernel& kernel) {
  give(out, function_on(c, kernel, c.current->device));
}

SOFTWARE_DRIVER_GET(cuModuleGetFunctionCount, kernel_count)
SOFTWARE_DRIVER_GET(cuLibraryGetKernelCount, [](const Library& library) { return library.kernels.size(); })
SOFTWARE_DRIVER_GET(cuKernelGetLibrary, [](const Kernel& kernel) { return as_handle<CUlibrary>(*kernel.library); })
SOFTWARE_DRIVER_GET(cuFuncGetModule, [](const Function& function) { return as_handle<CUmodule>(*function.module); })
