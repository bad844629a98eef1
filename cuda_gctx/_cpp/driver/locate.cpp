#include "driver/locate.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace gctx {
namespace {

// Resolves a path relative to the folder of this library. The software driver is installed at such a path.
std::string beside_this_library(std::string_view relative) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&locate_driver), &info);
  std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  const auto slash = path.rfind('/');
  path.erase(slash == std::string::npos ? 0 : slash + 1);
  path.append(relative);
  // realpath makes the path readable in messages. std::filesystem needs a newer C++ library than wheels may use.
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr), &std::free);
  return resolved != nullptr ? resolved.get() : path;
}

}  // namespace

DriverChoice locate_driver(std::string_view choice) {
  if (choice.empty()) {
    return {"libcuda.so.1", false, {}};
  }
  constexpr std::string_view word = "sim";
  if (choice == word || choice.substr(0, word.size() + 1) == "sim:") {
    const auto machine = choice.size() > word.size() ? choice.substr(word.size() + 1) : std::string_view{};
    return {beside_this_library("../cuda_software_driver/lib/libcuda_gctx_sim.so"), true, std::string(machine)};
  }
  return {std::string(choice), false, {}};
}

}  // namespace gctx
