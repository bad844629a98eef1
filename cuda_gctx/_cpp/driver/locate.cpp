#include "driver/locate.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace gctx {
namespace {

std::mutex registered_mutex;
std::string registered_path;  // guarded by registered_mutex

// Resolves a path relative to the folder of this library. Empty: there is no such file. std::filesystem needs a newer
// C++ library than the wheels may use.
std::string beside_this_library(std::string_view relative) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&locate_driver), &info);
  std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  const auto slash = path.rfind('/');
  path.erase(slash == std::string::npos ? 0 : slash + 1);
  path.append(relative);
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr), &std::free);
  return resolved != nullptr ? resolved.get() : "";
}

std::string software_driver_library() {
  const char* const named = std::getenv("CUDA_SOFTWARE_DRIVER");
  if (named != nullptr && *named != '\0') {
    return named;
  }
  std::string beside = beside_this_library("../cuda_software_driver/lib/libcuda_software_driver.so");
  if (!beside.empty()) {
    return beside;
  }
  const std::lock_guard lock(registered_mutex);
  return registered_path;
}

}  // namespace

DriverChoice locate_driver(std::string_view choice) {
  if (choice.empty()) {
    return {"libcuda.so.1", false, {}};
  }
  constexpr std::string_view word = "sim";
  if (choice == word || choice.substr(0, word.size() + 1) == "sim:") {
    const auto machine = choice.size() > word.size() ? choice.substr(word.size() + 1) : std::string_view{};
    return {software_driver_library(), true, std::string(machine)};
  }
  return {std::string(choice), false, {}};
}

void register_software_driver(std::string path) {
  const std::lock_guard lock(registered_mutex);
  registered_path = std::move(path);
}

}  // namespace gctx
