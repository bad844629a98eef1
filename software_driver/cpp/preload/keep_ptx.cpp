// Preloaded into programs that run on the software driver. Keeps the PTX of what NVRTC compiles and nvJitLink links, by
// the hash of the machine code that the program gets: the driver executes kernels from it. Programs find the functions
// of both libraries by dlsym or by their own symbols; each goes through here to the library itself.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "preload/ptx_cache.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using Handle = void*;

constexpr int linked_cubin = 1;  // the types of nvJitLinkInputType
constexpr int linked_ptx = 2;
constexpr int linked_lto_ir = 3;

using Dlsym = void*(void*, const char*);
Dlsym* real_dlsym() {
  static Dlsym* const found = [] {
    void* of_x86 = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return reinterpret_cast<Dlsym*>(of_x86 != nullptr ? of_x86 : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17"));
  }();
  return found;
}

// The library whose functions a program has asked for; before that, the one that the program is linked with.
class Library {
 public:
  template <class Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(real_dlsym()(handle_.load(), name));
  }
  void found(void* function) {
    Dl_info info{};
    if (dladdr(function, &info) != 0) {
      if (Handle opened = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
        handle_ = opened;
      }
    }
  }

 private:
  std::atomic<Handle> handle_{RTLD_NEXT};
};
Library nvrtc;
Library nvjitlink;

// The pieces that a program has given to a link.
struct Link {
  std::vector<std::string> options;
  std::string ptx;
  std::vector<std::string> lto_ir;
  bool has_others = false;
};
struct Links {
  std::mutex mutex;
  std::map<Handle, Link> of;
};
Links& links() {
  static auto* const all = new Links;
  return *all;
}

using Create = int(Handle*, std::uint32_t, const char**);
using AddData = int(Handle, int, const void*, std::size_t, const char*);
using AddFile = int(Handle, int, const char*);
using OfHandle = int(Handle);
using GetSize = int(Handle, std::size_t*);
using GetBytes = int(Handle, char*);

// Links inputs again, to PTX.
std::string linked_again(const Link& link) {
  auto* create = nvjitlink.get<Create>("nvJitLinkCreate");
  auto* add = nvjitlink.get<AddData>("nvJitLinkAddData");
  auto* complete = nvjitlink.get<OfHandle>("nvJitLinkComplete");
  auto* get_size = nvjitlink.get<GetSize>("nvJitLinkGetLinkedPtxSize");
  auto* get = nvjitlink.get<GetBytes>("nvJitLinkGetLinkedPtx");
  auto* destroy = nvjitlink.get<int(Handle*)>("nvJitLinkDestroy");
  if (create == nullptr || add == nullptr || complete == nullptr || get_size == nullptr || get == nullptr ||
      destroy == nullptr) {
    return {};
  }
  std::vector<const char*> options;
  for (const std::string& option : link.options) {
    options.push_back(option.c_str());
  }
  options.push_back("-ptx");
  if (std::find(link.options.begin(), link.options.end(), "-lto") == link.options.end()) {
    options.push_back("-lto");
  }
  Handle handle = nullptr;
  std::string ptx;
  if (create(&handle, static_cast<std::uint32_t>(options.size()), options.data()) != 0) {
    return {};
  }
  bool fits = true;
  for (const std::string& input : link.lto_ir) {
    fits = fits && add(handle, linked_lto_ir, input.data(), input.size(), "input") == 0;
  }
  std::size_t size = 0;
  if (fits && complete(handle) == 0 && get_size(handle, &size) == 0) {
    ptx.resize(size);
    fits = get(handle, ptx.data()) == 0;
  }
  destroy(&handle);
  return fits ? ptx : std::string();
}

}  // namespace

EXPORTED int nvrtcGetCUBIN(Handle program, char* machine_code) {
  const int code = nvrtc.get<GetBytes>("nvrtcGetCUBIN")(program, machine_code);
  auto* size_of_code = nvrtc.get<GetSize>("nvrtcGetCUBINSize");
  auto* size_of_ptx = nvrtc.get<GetSize>("nvrtcGetPTXSize");
  auto* get_ptx = nvrtc.get<GetBytes>("nvrtcGetPTX");
  std::size_t size = 0;
  std::size_t ptx_size = 0;
  if (code == 0 && size_of_code != nullptr && size_of_code(program, &size) == 0 && size_of_ptx != nullptr &&
      size_of_ptx(program, &ptx_size) == 0 && ptx_size > 0) {
    std::string ptx(ptx_size, '\0');
    if (get_ptx(program, ptx.data()) == 0) {
      software_driver::keep_ptx({machine_code, size}, ptx.c_str());
    }
  }
  return code;
}

EXPORTED int nvJitLinkCreate(Handle* handle, std::uint32_t count, const char** options) {
  const int code = nvjitlink.get<Create>("nvJitLinkCreate")(handle, count, options);
  if (code == 0) {
    Link link;
    for (std::uint32_t i = 0; i < count; ++i) {
      link.options.emplace_back(options[i]);
    }
    const std::scoped_lock lock(links().mutex);
    links().of[*handle] = std::move(link);
  }
  return code;
}

EXPORTED int nvJitLinkAddData(Handle handle, int type, const void* data, std::size_t size, const char* name) {
  {
    const std::scoped_lock lock(links().mutex);
    Link& link = links().of[handle];
    const std::string_view bytes(static_cast<const char*>(data), size);
    if (type == linked_ptx) {
      link.ptx += std::string(bytes.substr(0, bytes.find('\0'))) + '\n';
    } else if (type == linked_lto_ir) {
      link.lto_ir.emplace_back(bytes);
    } else if (const auto kept = type == linked_cubin ? software_driver::kept_ptx(bytes) : std::nullopt) {
      link.ptx += *kept + '\n';
    } else {
      link.has_others = true;
    }
  }
  return nvjitlink.get<AddData>("nvJitLinkAddData")(handle, type, data, size, name);
}

EXPORTED int nvJitLinkAddFile(Handle handle, int type, const char* name) {
  {
    const std::scoped_lock lock(links().mutex);
    links().of[handle].has_others = true;
  }
  return nvjitlink.get<AddFile>("nvJitLinkAddFile")(handle, type, name);
}

EXPORTED int nvJitLinkGetLinkedCubin(Handle handle, char* machine_code) {
  const int code = nvjitlink.get<GetBytes>("nvJitLinkGetLinkedCubin")(handle, machine_code);
  Link link;
  {
    const std::scoped_lock lock(links().mutex);
    link = links().of[handle];
  }
  auto* get_size = nvjitlink.get<GetSize>("nvJitLinkGetLinkedCubinSize");
  std::size_t size = 0;
  if (code == 0 && get_size != nullptr && get_size(handle, &size) == 0) {
    std::string ptx = link.ptx;
    if (!link.lto_ir.empty()) {
      ptx += linked_again(link);
    }
    if (!ptx.empty()) {
      software_driver::keep_ptx({machine_code, size}, ptx);
    }
  }
  return code;
}

EXPORTED int nvJitLinkDestroy(Handle* handle) {
  if (handle != nullptr) {
    const std::scoped_lock lock(links().mutex);
    links().of.erase(*handle);
  }
  return nvjitlink.get<int(Handle*)>("nvJitLinkDestroy")(handle);
}

// The jump to the real dlsym keeps the address of the caller, by which RTLD_NEXT and RTLD_DEFAULT are meant.
EXPORTED void* dlsym(void* handle, const char* name) noexcept;
void* dlsym(void* handle, const char* name) noexcept {
  if (std::strncmp(name, "nv", 2) != 0 || handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    return real_dlsym()(handle, name);
  }
  struct Own {
    std::string_view name;
    void* function;
    Library* of;
  };
  const Own all[] = {{"nvrtcGetCUBIN", reinterpret_cast<void*>(&nvrtcGetCUBIN), &nvrtc},
                     {"nvJitLinkCreate", reinterpret_cast<void*>(&nvJitLinkCreate), &nvjitlink},
                     {"nvJitLinkAddData", reinterpret_cast<void*>(&nvJitLinkAddData), &nvjitlink},
                     {"nvJitLinkAddFile", reinterpret_cast<void*>(&nvJitLinkAddFile), &nvjitlink},
                     {"nvJitLinkGetLinkedCubin", reinterpret_cast<void*>(&nvJitLinkGetLinkedCubin), &nvjitlink},
                     {"nvJitLinkDestroy", reinterpret_cast<void*>(&nvJitLinkDestroy), &nvjitlink}};
  void* const found = real_dlsym()(handle, name);
  for (const Own& own : all) {
    if (found != nullptr && found != own.function && own.name == name) {
      own.of->found(found);
      return own.function;
    }
  }
  return found;
}
