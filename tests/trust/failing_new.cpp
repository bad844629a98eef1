// Preloaded, it lets one allocation of the package's own libraries fail, of those that throw. It counts none of the
// software driver.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

thread_local long count = -1;    // -1: nobody counts
thread_local long fails_at = 0;  // 0: none

bool is_of_the_package(const void* caller) {
  Dl_info found;
  return dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, "cuda_gctx") != nullptr &&
         std::strstr(found.dli_fname, "cuda_software_driver") == nullptr;
}

bool fails(const void* caller) { return count >= 0 && is_of_the_package(caller) && ++count == fails_at; }

}  // namespace

// From now, the nth allocation of this thread fails; -1 ends the counting. Returns how many there were until now.
extern "C" long failing_new(long nth) {
  const long before = count;
  count = nth < 0 ? -1 : 0;
  fails_at = nth;
  return before;
}

void* operator new(std::size_t size) {
  void* const found = fails(__builtin_return_address(0)) ? nullptr : std::malloc(size);
  if (found == nullptr) {
    throw std::bad_alloc();
  }
  return found;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
