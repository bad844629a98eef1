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

Module* find_module(Call& c, CUmodule handle, CUresult& result) {
  return find_in(c, c.machine.modules, handle, CUDA_ERROR_INVALID_HANDLE, "the module is unloaded", result);
}

Library* find_library(Call& c, CUlibrary handle, CUresult& result) {
  return find_in(c, c.machine.libraries, handle, CUDA_ERROR_INVALID_HANDLE, "the library is unloaded", result);
}

CUresult read_file(const char* name, std::vector<char>& bytes) {
  if (name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name, "rb"), std::fclose);
  if (!file) {
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  std::array<char, 4096> block{};
  for (std::size_t got = 1; got != 0;) {
    got = std::fread(block.data(), 1, block.size(), file.get());
    bytes.insert(bytes.end(), block.data(), block.data() + got);
  }
  bytes.push_back('\0');
  return CUDA_SUCCESS;
}

CUresult load_module(Call& c, CUmodule* out, const void* data) {
  CUresult result = CUDA_SUCCESS;
  Context* context = current_context(c, result);
  if (context == nullptr) {
    return result;
  }
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto image = std::make_shared<Image>();
  result = read_image(data, *image);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  auto made = std::make_unique<Module>();
  c.machine.made(*made);
  made->device = context->device;
  made->image = std::move(image);
  return give(out, as_handle<CUmodule>(c.machine.modules.add(std::move(made))));
}

CUresult load_library(Call& c, CUlibrary* out, const void* data) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto image = std::make_shared<Image>();
  if (const CUresult result = read_image(data, *image); result != CUDA_SUCCESS) {
    return result;
  }
  auto made = std::make_unique<Library>();
  c.machine.made(*made);
  made->image = image;
  Library& library = c.machine.libraries.add(std::move(made));
  for (const auto& code : image->kernels) {
    auto kernel = std::make_unique<Kernel>();
    c.machine.made(*kernel);
    kernel->library = &library;
    kernel->code = code;
    library.kernels[code->name] = &c.machine.kernels.add(std::move(kernel));
  }
  return give(out, as_handle<CUlibrary>(library));
}

// The module that stands for a library on the device that is current.
Module* module_of(Call& c, Library& library, CUresult& result) {
  const Context* context = current_context(c, result);
  if (context == nullptr) {
    return nullptr;
  }
  Module*& module = library.modules[context->device];
  if (module == nullptr) {
    auto made = std::make_unique<Module>();
    c.machine.made(*made);
    made->hidden = true;
    made->device = context->device;
    made->library = &library;
    made->image = library.image;
    module = &c.machine.modules.add(std::move(made));
  }
  return module;
}

CUresult find_variable(Call& c, Module& module, const char* name, CUdeviceptr* address, std::size_t* size) {
  if (address == nullptr && size == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::vector<Variable>& all = module.image->variables;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Variable& one) { return one.name == name; });
  if (found == all.end()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  std::uint64_t& place = module.variables[name];
  if (place == 0) {
    if (const CUresult result = place_variable(c, module, *found, place); result != CUDA_SUCCESS) {
      return result;
    }
  }
  if (address != nullptr) {
    *address = static_cast<CUdeviceptr>(place);
  }
  if (size != nullptr) {
    *size = found->size;
  }
  return CUDA_SUCCESS;
}

template <class Handle, class Map>
CUresult list(Handle* out, unsigned count, const Map& objects) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  unsigned i = 0;
  for (const auto& [name, object] : objects) {
    if (i == count) {
      break;
    }
    out[i++] = as_handle<Handle>(*object);
  }
  return CUDA_SUCCESS;
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

std::shared_ptr<KernelCode> find_code(Call& c, CUfunction handle, CUresult& result) {
  if (const Function* function = c.machine.functions.find(handle)) {
    return function->code;
  }
  if (const Kernel* kernel = c.machine.kernels.find(handle)) {
    return kernel->code;
  }
  if (c.machine.functions.is_stale(handle) || c.machine.kernels.is_stale(handle)) {
    c.note(Misuse::use_after_destroy, handle, "the module or library of the kernel is unloaded");
  }
  result = CUDA_ERROR_INVALID_HANDLE;
  return nullptr;
}

}  // namespace gctx::sim

using namespace gctx::sim;

extern "C" {

CUresult CUDAAPI cuModuleLoad(CUmodule* out, const char* name) {
  return call<Fn::cuModuleLoad>([&](Call& c) {
    std::vector<char> bytes;
    const CUresult result = read_file(name, bytes);
    return result == CUDA_SUCCESS ? load_module(c, out, bytes.data()) : result;
  });
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* out, const void* data) {
  return call<Fn::cuModuleLoadData>([&](Call& c) { return load_module(c, out, data); });
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* out, const void* data, unsigned, CUjit_option*, void**) {
  return call<Fn::cuModuleLoadDataEx>([&](Call& c) { return load_module(c, out, data); });
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  return call<Fn::cuModuleUnload>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Module* module = find_module(c, handle, result);
    if (module == nullptr) {
      return result;
    }
    if (module->library != nullptr) {
      return CUDA_ERROR_NOT_PERMITTED;
    }
    unload(c.machine, *module);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return call<Fn::cuModuleGetLoadingMode>([&](Call&) { return give(mode, CU_MODULE_EAGER_LOADING); });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return call<Fn::cuModuleGetFunction>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Module* module = find_module(c, handle, result);
    if (module == nullptr) {
      return result;
    }
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& code : module->image->kernels) {
      if (code->name == name) {
        return give(out, as_handle<CUfunction>(function_of(c.machine, *module, code)));
      }
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  return call<Fn::cuModuleGetFunctionCount>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Module* module = find_module(c, handle, result);
    return module == nullptr ? result : give(count, static_cast<unsigned>(module->image->kernels.size()));
  });
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* out, unsigned count, CUmodule handle) {
  return call<Fn::cuModuleEnumerateFunctions>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Module* module = find_module(c, handle, result);
    if (module == nullptr) {
      return result;
    }
    for (const auto& code : module->image->kernels) {
      function_of(c.machine, *module, code);
    }
    return list(out, count, module->functions);
  });
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* size, CUmodule handle, const char* name) {
  return call<Fn::cuModuleGetGlobal_v2>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Module* module = find_module(c, handle, result);
    if (module == nullptr) {
      return result;
    }
    // Seen on an H200: unlike a library, a module refuses the names of kernels, and clears the results.
    const auto& kernels = module->image->kernels;
    const auto is_named = [&](const auto& kernel) { return kernel->name == name; };
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (address != nullptr) {
      *address = 0;
    }
    if (size != nullptr) {
      *size = 0;
    }
    if (*name == '\0' || std::any_of(kernels.begin(), kernels.end(), is_named)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return find_variable(c, *module, name, address, size);
  });
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* out, const void* data, CUjit_option*, void**, unsigned, CUlibraryOption*,
                                   void**, unsigned) {
  return call<Fn::cuLibraryLoadData>([&](Call& c) { return load_library(c, out, data); });
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* out, const char* name, CUjit_option*, void**, unsigned,
                                       CUlibraryOption*, void**, unsigned) {
  return call<Fn::cuLibraryLoadFromFile>([&](Call& c) {
    std::vector<char> bytes;
    const CUresult result = read_file(name, bytes);
    return result == CUDA_SUCCESS ? load_library(c, out, bytes.data()) : result;
  });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
  return call<Fn::cuLibraryUnload>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Library* library = find_library(c, handle, result);
    if (library == nullptr) {
      return result;
    }
    for (const auto& [device, module] : library->modules) {
      unload(c.machine, *module);
    }
    for (const auto& [name, kernel] : library->kernels) {
      c.machine.kernels.remove(*kernel);
    }
    c.machine.libraries.remove(*library);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  return call<Fn::cuLibraryGetKernel>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Library* library = find_library(c, handle, result);
    if (library == nullptr) {
      return result;
    }
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto found = library->kernels.find(name);
    return found == library->kernels.end() ? CUDA_ERROR_NOT_FOUND : give(out, as_handle<CUkernel>(*found->second));
  });
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  return call<Fn::cuLibraryGetKernelCount>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Library* library = find_library(c, handle, result);
    return library == nullptr ? result : give(count, static_cast<unsigned>(library->kernels.size()));
  });
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* out, unsigned count, CUlibrary handle) {
  return call<Fn::cuLibraryEnumerateKernels>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    const Library* library = find_library(c, handle, result);
    return library == nullptr ? result : list(out, count, library->kernels);
  });
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* size, CUlibrary handle, const char* name) {
  return call<Fn::cuLibraryGetGlobal>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Library* library = find_library(c, handle, result);
    Module* module = library == nullptr ? nullptr : module_of(c, *library, result);
    if (module == nullptr) {
      return result;
    }
    return name == nullptr ? CUDA_ERROR_INVALID_VALUE : find_variable(c, *module, name, address, size);
  });
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  return call<Fn::cuLibraryGetModule>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Library* library = find_library(c, handle, result);
    const Module* module = library == nullptr ? nullptr : module_of(c, *library, result);
    return module == nullptr ? result : give(out, as_handle<CUmodule>(*module));
  });
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  return call<Fn::cuKernelGetFunction>([&](Call& c) {
    CUresult result = CUDA_SUCCESS;
    Kernel* kernel = c.machine.kernels.find(handle);
    if (kernel == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    Module* module = module_of(c, *kernel->library, result);
    if (module == nullptr) {
      return result;
    }
    return give(out, as_handle<CUfunction>(function_of(c.machine, *module, kernel->code)));
  });
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  return call<Fn::cuKernelGetLibrary>([&](Call& c) {
    const Kernel* kernel = c.machine.kernels.find(handle);
    return kernel == nullptr ? CUDA_ERROR_INVALID_HANDLE : give(out, as_handle<CUlibrary>(*kernel->library));
  });
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* out, CUfunction handle) {
  return call<Fn::cuFuncGetModule>([&](Call& c) {
    const Function* function = c.machine.functions.find(handle);
    return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : give(out, as_handle<CUmodule>(*function->module));
  });
}

}  // extern "C"
