// printf of kernels: a format, and arguments of 4 or 8 bytes one behind the other.
#include <cstdio>

#include "ptx/block.hpp"

namespace software_driver::ptx {
namespace {

template <class... Values>
std::string printed(const std::string& format, Values... values) {
  const int size = std::snprintf(nullptr, 0, format.c_str(), values...);
  std::string text(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), format.c_str(), values...);
  text.pop_back();
  return text;
}

}  // namespace

std::string formatted(Block& block, const Run& run, unsigned lane, std::uint64_t format, std::uint64_t arguments) {
  const std::string text = block.text_at(run, lane, format);
  std::uint64_t next = arguments;
  const auto take = [&](unsigned size) {
    next = (next + size - 1) / size * size;
    std::uint64_t value = 0;
    std::memcpy(&value, block.at(run, Space::generic, lane, next, size, false), size);
    next += size;
    return value;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    std::size_t end = text.find_first_not_of("#0- +'123456789.*", i + 1);
    const std::size_t length = end;
    end = text.find_first_not_of("hlLjzt", std::min(end, text.size()));
    if (end == std::string::npos) {
      out += text.substr(i);
      break;
    }
    const char kind = text[end];
    const bool is_long = text.substr(length, end - length).find_first_of("lLjzt") != std::string::npos;
    std::string flags = text.substr(i, length - i);
    for (auto star = flags.find('*'); star != std::string::npos; star = flags.find('*')) {
      flags.replace(star, 1, std::to_string(static_cast<std::int32_t>(take(4))));
    }
    switch (kind) {
      case '%':
        out += '%';
        break;
      case 'c':
        out += printed(flags + "c", static_cast<int>(take(4)));
        break;
      case 'd':
      case 'i':
        out += is_long ? printed(flags + "lld", static_cast<long long>(take(8)))
                       : printed(flags + "d", static_cast<std::int32_t>(take(4)));
        break;
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        out += is_long ? printed(flags + "ll" + kind, static_cast<unsigned long long>(take(8)))
                       : printed(flags + kind, static_cast<std::uint32_t>(take(4)));
        break;
      case 'a':
      case 'A':
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        out += printed(flags + kind, std::bit_cast<double>(take(8)));
        break;
      case 'p':
        out += printed(flags + "p", reinterpret_cast<void*>(take(8)));
        break;
      case 's': {
        const std::uint64_t address = take(8);
        out += printed(flags + "s", (address == 0 ? std::string("(null)") : block.text_at(run, lane, address)).c_str());
        break;
      }
      default:
        out += text.substr(i, end + 1 - i);
    }
    i = end;
  }
  return out;
}

}  // namespace software_driver::ptx
