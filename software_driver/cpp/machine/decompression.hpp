// Packed images in fat binaries: Zstandard (nvcc 13) and LZ4 (nvcc 12).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace software_driver {

// One frame of Zstandard, as RFC 8878 describes it, without dictionaries. Nothing if the data is no such frame.
std::optional<std::string> unpacked_zstd(std::string_view data);
// One block of LZ4 of a known size.
std::optional<std::string> unpacked_lz4(std::string_view data, std::size_t size);

}  // namespace software_driver
