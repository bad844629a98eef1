// Modules and libraries: loading, looking kernels up, unloading.
#include "calls/modules.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

#include "calls/allocations.hpp"
#include "machine/images.hpp"

namespace gctx::sim {
namespace {

Function& function_of(Machine& machine, Module& module, const std::shared_ptr<KernelCode>& code) {
  Function*& found = module.functions[code->name];
  if (found == nullptr) {
    auto made = std::make_unique<Function>();
    machine.made(*made);
    made->module = &module;
    made->code = code;
    found = &machine.functions.add(std::move(made));
  }
  return *found;
}

void read_file(const char* name, std::vector<char>& bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name, "rb"), std::fclose);
  refuse_if(!file, CUDA_ERROR_FILE_NOT_FOUND);
  std::array<char, 4096> block{};
  for (std::size_t got = 1; got != 0;) {
    got = std::fread(block.data(), 1, block.size(), file.get());
    bytes.insert(bytes.end(), block.data(), block.data() + got);
  }
  bytes.push_back('\0');
}

std::shared_ptr<Image> image_of(const Call& c, const void* data) {
  auto image = std::make_shared<Image>();
  const Profile& card = c.machine.chip->profile();
  image->code = read_image(data, {c.version(), 10 * card.cc_major + card.cc_minor}, *image);
  return image;
}

void load_module(Call& c, CUmodule* out, const void* data) {
  auto made = std::make_unique<Module>();
  c.made(*made);
  made->device = c.current->device;
  made->image = image_of(c, data);
  refuse_if(made->image->code != CUDA_SUCCESS, made->image->code);
  give(out, as_handle<CUmodule>(c.machine.modules.add(std::move(made))));
}

void load_library(Call& c, CUlibrary* out, const void* data) {
  const std::shared_ptr<Image> image = image_of(c, data);
  // Recorded: a library is loaded where it is used, and what the driver cannot compile is refused there.
  const bool is_late = image->code == CUDA_SUCCESS || image->code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  refuse_if(!is_late, image->code);
  auto made = std::make_unique<Library>();
  c.made(*made);
  made->image = image;
  Library& library = c.machine.libraries.add(std::move(made));
  for (const auto& code : image->kernels) {
    auto kernel = std::make_unique<Kernel>();
    c.made(*kernel);
    kernel->library = &library;
    kernel->code = code;
    library.kernels[code->name] = &c.machine.kernels.add(std::move(kernel));
  }
  give(out, as_handle<CUlibrary>(library));
}

// The module that stands for a library on the device that is current.
Module& module_of(Call& c, Library& library, int device) {
  refuse_if(library.image->code != CUDA_SUCCESS, library.image->code);
  Module*& module = library.modules[device];
  if (module == nullptr) {
    auto made = std::make_unique<Module>();
    c.made(*made);
    made->hidden = true;
    made->device = device;
    made->library = &library;
    made->image = library.image;
    module = &c.machine.modules.add(std::move(made));
  }
  return *module;
}

void find_variable(Call& c, Module& module, const char* name, CUdeviceptr* address, std::size_t* size) {
  refuse_if(address == nullptr && size == nullptr, CUDA_ERROR_INVALID_VALUE);
  const std::vector<Variable>& all = module.image->variables;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Variable& one) { return one.name == name; });
  refuse_if(found == all.end(), CUDA_ERROR_NOT_FOUND);
  std::uint64_t& place = module.variables[name];
  if (place == 0) {
    place_variable(c, module, *found, place);
  }
  give(address, static_cast<CUdeviceptr>(place));
  give(size, found->size);
}

template <class Handle, class Map>
void list(Handle* out, unsigned count, const Map& objects) {
  unsigned i = 0;
  for (const auto& [name, object] : objects) {
    if (i == count) {
      break;
    }
    out[i++] = as_handle<Handle>(*object);
  }
}

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
  return as_handle<CUfunction>(function_of(c.machine, module_of(c, *kernel.library, device), kernel.code));
}

}  // namespace gctx::sim

using namespace gctx::sim;

GCTX_SIM_CALL(cuModuleLoad, Call& c, CUmodule* out, const char* name) {
  std::vector<char> bytes;
  read_file(name, bytes);
  return load_module(c, out, bytes.data());
}

GCTX_SIM_CALL(cuModuleLoadData, Call& c, CUmodule* out, const void* data) { return load_module(c, out, data); }

GCTX_SIM_CALL(cuModuleLoadDataEx, Call& c, CUmodule* out, const void* data, unsigned, CUjit_option*, void**) {
  return load_module(c, out, data);
}

GCTX_SIM_CALL(cuModuleUnload, Call& c, Module& module) {
  refuse_if(module.library != nullptr, CUDA_ERROR_NOT_PERMITTED);
  unload(c.machine, module);
}

GCTX_SIM_CALL(cuModuleGetLoadingMode, Call&, CUmoduleLoadingMode* mode) { give(mode, CU_MODULE_EAGER_LOADING); }

GCTX_SIM_CALL(cuModuleGetFunction, Call& c, CUfunction* out, Module& module, const char* name) {
  for (const auto& code : module.image->kernels) {
    if (code->name == name) {
      return give(out, as_handle<CUfunction>(function_of(c.machine, module, code)));
    }
  }
  refuse(CUDA_ERROR_NOT_FOUND);
}

GCTX_SIM_CALL(cuModuleGetFunctionCount, Call&, unsigned* count, const Module& module) {
  give(count, static_cast<unsigned>(module.image->kernels.size()));
}

GCTX_SIM_CALL(cuModuleEnumerateFunctions, Call& c, CUfunction* out, unsigned count, Module& module) {
  for (const auto& code : module.image->kernels) {
    function_of(c.machine, module, code);
  }
  return list(out, count, module.functions);
}

GCTX_SIM_CALL(cuModuleGetGlobal_v2, Call& c, CUdeviceptr* address, std::size_t* size, Module& module,
              const char* name) {
  // Seen on an H200: unlike a library, a module refuses the names of kernels, and clears the results.
  const auto& kernels = module.image->kernels;
  const auto is_named = [&](const auto& kernel) { return kernel->name == name; };
  give(address, 0);
  give(size, 0);
  refuse_if(*name == '\0' || std::any_of(kernels.begin(), kernels.end(), is_named), CUDA_ERROR_INVALID_VALUE);
  return find_variable(c, module, name, address, size);
}

GCTX_SIM_CALL(cuLibraryLoadData, Call& c, CUlibrary* out, const void* data, CUjit_option*, void**, unsigned,
              CUlibraryOption*, void**, unsigned) {
  return load_library(c, out, data);
}

GCTX_SIM_CALL(cuLibraryLoadFromFile, Call& c, CUlibrary* out, const char* name, CUjit_option*, void**, unsigned,
              CUlibraryOption*, void**, unsigned) {
  std::vector<char> bytes;
  read_file(name, bytes);
  return load_library(c, out, bytes.data());
}

GCTX_SIM_CALL(cuLibraryUnload, Call& c, Library& library) {
  for (const auto& [device, module] : library.modules) {
    unload(c.machine, *module);
  }
  for (const auto& [name, kernel] : library.kernels) {
    c.machine.kernels.remove(*kernel);
  }
  c.machine.libraries.remove(library);
}

GCTX_SIM_CALL(cuLibraryGetKernel, Call&, CUkernel* out, const Library& library, const char* name) {
  const auto found = library.kernels.find(name);
  refuse_if(found == library.kernels.end(), CUDA_ERROR_NOT_FOUND);
  give(out, as_handle<CUkernel>(*found->second));
}

GCTX_SIM_CALL(cuLibraryGetKernelCount, Call&, unsigned* count, const Library& library) {
  give(count, static_cast<unsigned>(library.kernels.size()));
}

GCTX_SIM_CALL(cuLibraryEnumerateKernels, Call&, CUkernel* out, unsigned count, const Library& library) {
  return list(out, count, library.kernels);
}

GCTX_SIM_CALL(cuLibraryGetGlobal, Call& c, CUdeviceptr* address, std::size_t* size, Library& library,
              const char* name) {
  return find_variable(c, module_of(c, library, c.current->device), name, address, size);
}

GCTX_SIM_CALL(cuLibraryGetModule, Call& c, CUmodule* out, Library& library) {
  give(out, as_handle<CUmodule>(module_of(c, library, c.current->device)));
}

GCTX_SIM_CALL(cuKernelGetFunction, Call& c, CUfunction* out, const Kernel& kernel) {
  give(out, function_on(c, kernel, c.current->device));
}

GCTX_SIM_CALL(cuKernelGetLibrary, Call&, CUlibrary* out, const Kernel& kernel) {
  give(out, as_handle<CUlibrary>(*kernel.library));
}

GCTX_SIM_CALL(cuFuncGetModule, Call&, CUmodule* out, const Function& function) {
  give(out, as_handle<CUmodule>(*function.module));
}
