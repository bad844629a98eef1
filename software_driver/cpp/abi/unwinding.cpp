// Lets exceptions be caught where the loader hides this library from the unwinder. glibc (seen in 2.36) puts what a
// DT_FILTER names before the library that names it, and _dl_find_object then does not know it, nor what it needs: in a
// process that opens libcuda.so.1, every exception would end the process.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>

extern "C" void __register_frame(void* frames);

namespace {

// Its result is a structure, which older headers do not declare.
using FindObject = int (*)(void* address, void* found);

// Tells the unwinder of an object that it does not find by itself.
int register_missing(dl_phdr_info* object, std::size_t, void* find) {
  constexpr std::uint8_t version = 1;
  constexpr std::uint8_t relative = 0x1b;  // to the place itself, in 32 bits, as linkers write it
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type != PT_GNU_EH_FRAME) {
      continue;
    }
    auto* header = reinterpret_cast<std::uint8_t*>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    alignas(16) char found[256];
    if ((*static_cast<FindObject*>(find))(header, found) != 0 && header[0] == version && header[1] == relative) {
      std::int32_t offset = 0;
      std::memcpy(&offset, header + 4, sizeof offset);
      __register_frame(header + 4 + offset);
    }
  }
  return 0;
}

[[gnu::constructor]] void register_all_missing() {
  // Older C libraries do not have it, and their unwinders find everything.
  auto find = reinterpret_cast<FindObject>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
  if (find != nullptr) {
    dl_iterate_phdr(register_missing, &find);
  }
}

}  // namespace
