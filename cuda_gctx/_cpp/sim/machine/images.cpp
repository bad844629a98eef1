// What can be learned of a program image without running it: the kernels in PTX text or in machine code, and their
// parameters.
#include "sim/machine/images.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace gctx::sim {
namespace {

constexpr std::uint32_t fatbin_magic = 0xba55ed50;
constexpr std::uint32_t fatbin_wrapper_magic = 0x466243b1;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

std::size_t type_size(std::string_view type) {
  const auto digits = type.find_first_of("0123456789");
  if (type == ".pred" || digits == std::string_view::npos) return 0;
  std::size_t bits = 0;
  for (const char c : type.substr(digits)) {
    if (c < '0' || c > '9') break;
    bits = bits * 10 + static_cast<std::size_t>(c - '0');
  }
  return bits / 8;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t i = 0;
  while (i < text.size()) {
    while (i < text.size() && std::isspace(static_cast<unsigned char>(text[i])) != 0) ++i;
    const std::size_t start = i;
    while (i < text.size() && std::isspace(static_cast<unsigned char>(text[i])) == 0) ++i;
    if (i > start) words.push_back(text.substr(start, i - start));
  }
  return words;
}

// One parameter: ".param .u64 name" or ".param .align 8 .b8 name[24]".
std::size_t parameter_size(std::string_view text) {
  std::size_t size = 0;
  bool skip = false;
  for (const std::string_view word : words_of(text)) {
    if (skip) {
      skip = false;
      continue;
    }
    if (word == ".align" || word == ".ptr") {
      skip = word == ".align";
    } else if (word.front() == '.' && word != ".param" && size == 0) {
      size = type_size(word);
    } else if (const auto bracket = word.find('['); bracket != std::string_view::npos) {
      size *= std::strtoull(std::string(word.substr(bracket + 1)).c_str(), nullptr, 10);
    }
  }
  return size;
}

void add_parameters(std::string_view list, KernelCode& code) {
  std::size_t offset = 0;
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::size_t size = parameter_size(list.substr(0, comma));
    if (size > 0) {
      const std::size_t alignment = std::min<std::size_t>(size, 8);
      offset = (offset + alignment - 1) / alignment * alignment;
      code.argument_sizes.push_back(size);
      code.argument_offsets.push_back(offset);
      offset += size;
    }
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
  code.arguments_known = true;
}

std::string without_comments(std::string_view text) {
  std::string clean;
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const auto end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
    } else {
      clean += text[i++];
    }
  }
  return clean;
}

Image read_ptx(std::string_view source) {
  const std::string text = without_comments(source);
  Image image;
  constexpr std::string_view directive = ".entry";
  for (std::size_t at = text.find(directive); at != std::string::npos; at = text.find(directive, at)) {
    at += directive.size();
    std::size_t start = at;
    while (start < text.size() && std::isspace(static_cast<unsigned char>(text[start])) != 0) ++start;
    std::size_t end = start;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end == start) continue;
    auto code = std::make_shared<KernelCode>();
    code->name = text.substr(start, end - start);
    while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) != 0) ++end;
    if (end < text.size() && text[end] == '(') {
      const std::size_t close = std::min(text.find(')', end), text.size());
      add_parameters(std::string_view(text).substr(end + 1, close - end - 1), *code);
    } else {
      code->arguments_known = true;
    }
    image.kernels.push_back(std::move(code));
  }
  return image;
}

template <class T>
T read_at(const unsigned char* data, std::size_t offset) {
  T value{};
  std::memcpy(&value, data + offset, sizeof value);
  return value;
}

// A 64-bit ELF file ends with its section table.
std::size_t elf_size(const unsigned char* data) {
  return static_cast<std::size_t>(read_at<std::uint64_t>(data, 0x28)) +
         static_cast<std::size_t>(read_at<std::uint16_t>(data, 0x3a)) * read_at<std::uint16_t>(data, 0x3c);
}

// Machine code has a section ".text.NAME" for each kernel.
Image read_machine_code(std::string_view bytes) {
  Image image;
  constexpr std::string_view prefix = ".text.";
  for (std::size_t at = bytes.find(prefix); at != std::string_view::npos; at = bytes.find(prefix, at)) {
    at += prefix.size();
    std::size_t end = at;
    while (end < bytes.size() && is_word(bytes[end])) ++end;
    const std::string_view name = bytes.substr(at, end - at);
    const bool known = std::any_of(image.kernels.begin(), image.kernels.end(),
                                   [&](const auto& kernel) { return kernel->name == name; });
    if (name.empty() || known) continue;
    auto code = std::make_shared<KernelCode>();
    code->name = name;
    image.kernels.push_back(std::move(code));
  }
  return image;
}

}  // namespace

CUresult read_image(const void* data, Image& image) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* bytes = static_cast<const unsigned char*>(data);
  const char* text = static_cast<const char*>(data);
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < sizeof first && (i == 0 || bytes[i - 1] != 0); ++i) {
    first |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  }
  if (first == fatbin_wrapper_magic) return read_image(read_at<const void*>(bytes, 8), image);
  if (first == fatbin_magic) {
    const std::size_t size = read_at<std::uint16_t>(bytes, 6) + read_at<std::uint64_t>(bytes, 8);
    image = read_machine_code({text, size});
  } else if (std::memcmp(&first, "\177ELF", 4) == 0) {
    image = read_machine_code({text, elf_size(bytes)});
  } else {
    const std::string_view source(text);
    if (source.find(".version") == std::string_view::npos) return CUDA_ERROR_INVALID_IMAGE;
    image = read_ptx(source);
    return CUDA_SUCCESS;
  }
  return image.kernels.empty() ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

}  // namespace gctx::sim
