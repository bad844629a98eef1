// PTX that was kept for machine code: one file for each, named by the SHA-256 of the machine code.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "preload/sha256.hpp"

namespace software_driver {

// CUDA_SOFTWARE_DRIVER_CACHE, or a folder of the user's cache.
inline std::filesystem::path ptx_cache_folder() {
  if (const char* own = std::getenv("CUDA_SOFTWARE_DRIVER_CACHE")) {
    return own;
  }
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr && *cache != '\0' ? std::filesystem::path(cache)
                                     : home != nullptr                  ? std::filesystem::path(home) / ".cache"
                                                                        : std::filesystem::temp_directory_path();
  return base / "cuda-software-driver" / "ptx";
}

// A process that stops in the middle leaves no half of a file.
inline void keep_ptx(std::string_view machine_code, std::string_view ptx) {
  std::error_code ignored;
  const std::filesystem::path folder = ptx_cache_folder();
  std::filesystem::create_directories(folder, ignored);
  const std::filesystem::path file = folder / (sha256_of(machine_code) + ".ptx");
  const std::filesystem::path draft = file.string() + "." + std::to_string(reinterpret_cast<std::uintptr_t>(&ptx));
  if (std::ofstream out(draft, std::ios::binary); out << ptx) {
    out.close();
    std::filesystem::rename(draft, file, ignored);
  }
}

inline std::optional<std::string> kept_ptx(std::string_view machine_code) {
  std::ifstream in(ptx_cache_folder() / (sha256_of(machine_code) + ".ptx"), std::ios::binary);
  if (!in) {
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace software_driver
