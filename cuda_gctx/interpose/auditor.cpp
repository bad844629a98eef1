// Makes every libcuda.so that the dynamic linker looks for the library beside this file. LD_AUDIT names this file.
#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstdint>
#include <cstring>

extern "C" __attribute__((visibility("default"))) unsigned la_version(unsigned version) { return version; }

extern "C" __attribute__((visibility("default"))) char* la_objsearch(const char* name, std::uintptr_t*, unsigned) {
  static char library[PATH_MAX];
  const char* const slash = std::strrchr(name, '/');
  const char* const file = slash != nullptr ? slash + 1 : name;
  const std::size_t stem = std::strlen("libcuda.so");
  if (std::strncmp(file, "libcuda.so", stem) != 0 || (file[stem] != '\0' && file[stem] != '.')) {
    return const_cast<char*>(name);
  }
  if (library[0] == '\0') {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&la_objsearch), &info) == 0 || std::strrchr(info.dli_fname, '/') == nullptr ||
        std::strlen(info.dli_fname) + sizeof "libcuda.so.1" > sizeof library) {
      return const_cast<char*>(name);
    }
    std::strcpy(library, info.dli_fname);
    std::strcpy(std::strrchr(library, '/') + 1, "libcuda.so.1");
  }
  return library;
}
