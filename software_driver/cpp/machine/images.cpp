// What can be learned of a program image without running it: the kernels in PTX text or in machine code, their
// parameters, and the variables of the device.
#include "machine/images.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "machine/decompression.hpp"
#include "preload/ptx_cache.hpp"

namespace software_driver {
namespace {

constexpr std::uint32_t fatbin_magic = 0xba55ed50;
constexpr std::uint32_t fatbin_wrapper_magic = 0x466243b1;

std::size_t type_size(std::string_view type) {
  const auto digits = type.find_first_of("0123456789");
  if (type == ".pred" || digits == std::string_view::npos) {
    return 0;
  }
  return static_cast<std::size_t>(std::strtoull(std::string(type.substr(digits)).c_str(), nullptr, 10)) / 8;
}

constexpr std::string_view blanks = " \t\n\v\f\r";

// What is left of a text behind the blanks that it begins with.
std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(blanks), text.size()));
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = without_blanks(text); !text.empty(); text = without_blanks(text)) {
    words.push_back(text.substr(0, text.find_first_of(blanks)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

struct Declaration {
  std::string_view name;
  std::string_view type;
  std::size_t element_bytes = 0;
  std::size_t elements = 1;  // 0 for an array that does not say how many
  std::size_t alignment = 0;

  std::size_t bytes() const noexcept { return element_bytes * elements; }
};

// ".param .u64 name", ".param .align 8 .b8 name[24]", ".align 16 .v4 .f32 name[3][4]"
Declaration read_declaration(std::string_view text) {
  Declaration found;
  bool skip = false;
  for (const std::string_view word : words_of(text)) {
    if (skip) {
      skip = false;
      found.alignment = std::strtoull(std::string(word).c_str(), nullptr, 10);
    } else if (word == ".align") {
      skip = true;
    } else if (word == ".v2" || word == ".v4") {
      found.elements = word == ".v2" ? 2 : 4;
    } else if (word.front() == '.' && found.element_bytes == 0) {
      found.type = word;
      found.element_bytes = type_size(word);
    } else {
      if (found.name.empty()) {
        found.name = word.substr(0, word.find('['));
      }
      for (std::size_t at = word.find('['); at != std::string_view::npos; at = word.find('[', at + 1)) {
        found.elements *= std::strtoull(std::string(word.substr(at + 1)).c_str(), nullptr, 10);
      }
    }
  }
  return found;
}

void add_parameters(std::string_view list, KernelCode& code) {
  std::size_t offset = 0;
  while (!list.empty()) {
    const auto comma = list.find(',');
    const Declaration declared = read_declaration(list.substr(0, comma));
    const std::size_t size = declared.bytes();
    if (size > 0) {
      const std::size_t alignment = declared.alignment != 0 ? declared.alignment : declared.element_bytes;
      offset = (offset + alignment - 1) / alignment * alignment;
      code.argument_sizes.push_back(size);
      code.argument_offsets.push_back(offset);
      offset += size;
    }
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
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

// Calls `visit` with what follows the name of a space in each declaration: ".shared .align 4 .b8 name[400];"
template <class Visit>
void each_declaration(std::string_view text, std::string_view space, Visit&& visit) {
  for (std::size_t at = text.find(space); at != std::string_view::npos; at = text.find(space, at + space.size())) {
    const std::size_t end = at + space.size();
    // Not a part of an instruction, as in "ld.shared.u32".
    const bool begins = at == 0 || blanks.find(text[at - 1]) != std::string_view::npos;
    if (begins && end < text.size() && blanks.find(text[end]) != std::string_view::npos) {
      visit(at, text.substr(end, text.find(';', end) - end));
    }
  }
}

std::string_view until_value(std::string_view declaration) { return declaration.substr(0, declaration.find('=')); }

// The bytes of all variables that a piece of PTX declares in a space. An array without a size is what the launch gives
// it, and counts as nothing.
std::size_t declared_bytes(std::string_view text, std::string_view space) {
  std::size_t bytes = 0;
  each_declaration(text, space, [&](std::size_t, std::string_view declaration) {
    bytes += read_declaration(until_value(declaration)).bytes();
  });
  return bytes;
}

// One number of an initial value: "42", "-1", "0x2a", "0f3F800000", "1.5". An address is not known.
std::uint64_t read_number(std::string_view word, bool is_float, std::size_t bytes) {
  const std::string text(word);
  const bool is_bits = text.size() > 2 && text[0] == '0' && std::strchr("fFdD", text[1]) != nullptr;
  if (is_bits) {
    return std::strtoull(text.c_str() + 2, nullptr, 16);
  }
  if (!is_float) {
    return std::strtoull(text.c_str(), nullptr, 0);
  }
  const double value = std::strtod(text.c_str(), nullptr);
  const auto narrow = static_cast<float>(value);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes == sizeof narrow ? static_cast<const void*>(&narrow) : &value, std::min(bytes, sizeof bits));
  return bits;
}

// "{1, 2, 3}", nested for arrays of arrays, or one number.
std::string read_value(std::string_view text, const Declaration& declared) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = text.find_first_not_of(" \t\r\n,{}", i);
    if (start == std::string_view::npos) {
      break;
    }
    i = std::min(text.find_first_of(" \t\r\n,{}", start), text.size());
    const bool is_float = declared.type.starts_with(".f");
    const std::uint64_t bits = read_number(text.substr(start, i - start), is_float, declared.element_bytes);
    bytes.append(reinterpret_cast<const char*>(&bits), std::min(declared.element_bytes, sizeof bits));
  }
  return bytes;
}

// The variables of a module stand outside of all functions, and those of other modules are not its own.
void read_variables(std::string_view text, Image& image) {
  for (const std::string_view space : {".global", ".const"}) {
    std::size_t seen = 0;
    std::ptrdiff_t depth = 0;
    each_declaration(text, space, [&](std::size_t at, std::string_view declaration) {
      const std::string_view before = text.substr(seen, at - seen);
      depth += std::count(before.begin(), before.end(), '{') - std::count(before.begin(), before.end(), '}');
      seen = at;
      const auto words = words_of(before.substr(before.find_last_of(";}") + 1));
      if (depth != 0 || std::find(words.begin(), words.end(), ".extern") != words.end()) {
        return;
      }
      Declaration declared = read_declaration(until_value(declaration));
      const auto value = declaration.find('=');
      std::string initial =
          value == std::string_view::npos ? std::string() : read_value(declaration.substr(value + 1), declared);
      const std::size_t size = declared.elements == 0 ? initial.size() : declared.bytes();
      if (size == 0) {
        return;
      }
      initial.resize(std::min(initial.size(), size));
      const bool is_managed = until_value(declaration).find(".attribute(.managed") != std::string_view::npos;
      image.variables.push_back({std::string(declared.name), size, std::move(initial), space == ".const", is_managed});
    });
  }
}

// What a kernel says of itself between its parameters and the end of its body.
void read_declarations(std::string_view text, KernelCode& code) {
  const std::size_t open = text.find('{');
  if (open == std::string_view::npos) {
    return;
  }
  std::size_t close = open;
  for (int depth = 0; close < text.size(); ++close) {
    depth += text[close] == '{' ? 1 : text[close] == '}' ? -1 : 0;
    if (depth == 0) {
      break;
    }
  }
  const std::string_view body = text.substr(open, close - open);
  const auto set = [&](CUfunction_attribute which, std::size_t value) {
    if (value > 0) {
      code.attributes[which] = static_cast<int>(value);
    }
  };
  set(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, declared_bytes(body, ".shared"));
  set(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, declared_bytes(body, ".local"));
  std::size_t threads = 0;
  const std::string_view head = text.substr(0, open);
  constexpr std::string_view limit = ".maxntid";
  if (const auto at = head.find(limit); at != std::string_view::npos) {
    const std::string numbers(head.substr(at + limit.size(), head.find('.', at + 1) - at - limit.size()));
    threads = 1;
    const char* next = numbers.c_str();
    for (int i = 0; i < 3 && *next != '\0'; ++i) {
      char* end = nullptr;
      const auto value = std::strtoull(next, &end, 10);
      if (end == next) {
        break;
      }
      threads *= static_cast<std::size_t>(value);
      next = end + std::strspn(end, ", \t\n");
    }
  }
  set(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, threads);
}

// The newest version of PTX that a driver knows, times 10: 13.N has 9.N; those of 12.3 to 12.9 as NVIDIA lists them.
int newest_ptx(int driver_version) {
  constexpr std::array<int, 10> of_twelve{80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
  const int minor = driver_version % 1000 / 10;
  return driver_version >= 13000 ? 90 + minor : of_twelve[static_cast<std::size_t>(minor)];
}

bool is_opcode(std::string_view word) {
  static const std::vector<std::string_view> all = words_of(
      "abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx "
      "call clz clusterlaunchcontrol cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect "
      "ex2 exit fence fma fns getctarank griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 "
      "madc mapa match max mbarrier membar min mma mov movmatrix mul mul24 multimem nanosleep neg not or "
      "pmevent popc prefetch prefetchu prmt rcp red redux rem ret rsqrt sad selp set setmaxnreg setp shf shfl "
      "shl shr sin slct sqrt st stackrestore stacksave stmatrix sub subc suld suq sured sust szext tanh "
      "tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 "
      "vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma wmma xor ");
  return std::ranges::find(all, word) != all.end();
}

// Whether the statements in the bodies of a program, whose strings and comments are gone, begin with an instruction or
// with a directive.
bool has_known_statements(std::string_view text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_label = c == ':' && (i + 1 == text.size() || text[i + 1] != ':') && (i == 0 || text[i - 1] != ':');
    if (c != '{' && c != '}' && c != ';' && !is_label) {
      continue;
    }
    std::string_view statement = without_blanks(text.substr(begin, i - begin));
    if (statement.starts_with('@')) {
      statement = without_blanks(statement.substr(std::min(statement.find_first_of(blanks), statement.size())));
    }
    const std::string_view word = statement.substr(0, std::min(statement.find('.'), statement.find_first_of(blanks)));
    if (depth > 0 && c == ';' && !word.empty() && !is_opcode(word)) {
      return false;
    }
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    // Braces inside a statement hold a vector: it goes on behind them.
    const bool is_vector =
        (c == '{' && depth > 1 && !statement.empty()) || (c == '}' && depth > 0 && !statement.empty());
    if (!is_vector) {
      begin = i + 1;
    }
  }
  return true;
}

// The number behind a word, such as 9.0 behind .version: 90, and 90 behind .target sm_90a. 0 where there is none.
int number_behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) {
    return 0;
  }
  int number = 0;
  for (std::size_t i = text.find_first_of("0123456789", at); i < text.size(); ++i) {
    if (text[i] != '.' && std::isdigit(static_cast<unsigned char>(text[i])) == 0) {
      break;
    }
    number = text[i] == '.' ? number : 10 * number + (text[i] - '0');
  }
  return number;
}

// The version of PTX that brought a target, times 10, as NVIDIA lists them.
int first_ptx(int target, bool is_specific) {
  constexpr std::pair<int, int> brought[] = {{70, 60},  {72, 61},  {75, 63},  {80, 70},  {86, 71},
                                             {87, 74},  {88, 90},  {89, 78},  {90, 78},  {100, 86},
                                             {101, 86}, {103, 88}, {110, 90}, {120, 87}, {121, 88}};
  const auto* found = std::ranges::find(brought, target, &std::pair<int, int>::first);
  return found == std::end(brought) ? 0 : std::max(found->second, target == 90 && is_specific ? 80 : 0);
}

CUresult check_ptx(std::string_view text, const Compiler& compiler) {
  const int version = number_behind(text, ".version");
  if (version > newest_ptx(compiler.driver_version)) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  const int target = number_behind(text, ".target");
  const bool is_specific = text.find("sm_" + std::to_string(target) + "a") != std::string_view::npos;
  const bool runs_here = target <= compiler.capability && version >= first_ptx(target, is_specific);
  return runs_here && has_known_statements(text) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

// `source` is the text with its comments and lines, as messages name them.
Image read_ptx(const std::string& text, std::string_view source) {
  Image image;
  const auto ptx = std::make_shared<PtxCode>(std::string(source));
  const std::size_t constants = declared_bytes(text, ".const");
  read_variables(text, image);
  constexpr std::string_view directive = ".entry";
  for (std::size_t at = text.find(directive); at != std::string::npos; at = text.find(directive, at)) {
    at += directive.size();
    std::string_view rest = without_blanks(std::string_view(text).substr(at));
    const auto is_of_name = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
    };
    const auto length = static_cast<std::size_t>(std::ranges::find_if_not(rest, is_of_name) - rest.begin());
    if (length == 0) {
      continue;
    }
    auto code = std::make_shared<KernelCode>();
    code->name = rest.substr(0, length);
    rest = without_blanks(rest.substr(length));
    code->ptx = ptx;
    code->arguments_known = true;
    if (rest.starts_with('(')) {
      add_parameters(rest.substr(1, std::min(rest.find(')'), rest.size()) - 1), *code);
    }
    read_declarations(rest, *code);
    if (constants > 0) {
      code->attributes[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES] = static_cast<int>(constants);
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

// A 64-bit ELF file ends with its section table or with its program headers.
std::size_t elf_size(const unsigned char* data) {
  const auto end = [&](std::size_t table, std::size_t entry, std::size_t count) {
    return static_cast<std::size_t>(read_at<std::uint64_t>(data, table)) +
           static_cast<std::size_t>(read_at<std::uint16_t>(data, entry)) * read_at<std::uint16_t>(data, count);
  };
  return std::max(end(0x28, 0x3a, 0x3c), end(0x20, 0x36, 0x38));
}

struct Section {
  std::size_t index = 0;
  std::string_view name;
  std::string_view bytes;  // empty if the file holds none of it
  std::size_t size = 0;
  std::uint32_t info = 0;
};

// The sections of a 64-bit ELF file; none where the file is not what it says.
std::vector<Section> sections_of(std::string_view elf) {
  constexpr std::size_t header = 64;
  constexpr std::uint32_t no_bits = 8;
  std::vector<Section> sections;
  if (elf.size() < header) {
    return sections;
  }
  const auto* data = reinterpret_cast<const unsigned char*>(elf.data());
  const auto table = static_cast<std::size_t>(read_at<std::uint64_t>(data, 0x28));
  const std::size_t entry = read_at<std::uint16_t>(data, 0x3a);
  const std::size_t count = read_at<std::uint16_t>(data, 0x3c);
  const std::size_t names = read_at<std::uint16_t>(data, 0x3e);
  if (entry < header || table > elf.size() || count > (elf.size() - table) / entry || names >= count) {
    return sections;
  }
  const auto bytes_of = [&](std::size_t index) {
    const std::size_t at = table + index * entry;
    const auto offset = static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 24));
    const auto size = static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 32));
    if (read_at<std::uint32_t>(data, at + 4) == no_bits || offset > elf.size() || size > elf.size() - offset) {
      return std::string_view{};
    }
    return elf.substr(offset, size);
  };
  const std::string_view texts = bytes_of(names);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = table + i * entry;
    const std::size_t name = read_at<std::uint32_t>(data, at);
    if (name >= texts.size()) {
      continue;
    }
    const std::string_view rest = texts.substr(name);
    sections.push_back({i, rest.substr(0, rest.find('\0')), bytes_of(i),
                        static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 32)),
                        read_at<std::uint32_t>(data, at + 44)});
  }
  return sections;
}

// ".nv.info" and ".nv.info.NAME" are lists of entries, each of a format, a kind, and a value or its length and bytes.
template <class Visit>
void each_entry(std::string_view bytes, Visit&& visit) {
  constexpr unsigned char sized = 4;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  for (std::size_t at = 0; at + 4 <= bytes.size();) {
    const unsigned char kind = data[at + 1];
    if (data[at] != sized) {
      at += 4;
      continue;
    }
    const std::size_t size = read_at<std::uint16_t>(data, at + 2);
    const std::size_t value = at + 4;
    if (size > bytes.size() - value) {
      break;
    }
    visit(kind, data + value, size);
    at = value + size;
  }
}

void read_information(std::string_view bytes, KernelCode& code) {
  constexpr unsigned char kind_max_threads = 0x05;
  constexpr unsigned char kind_parameter = 0x17;
  std::map<unsigned, std::pair<std::size_t, std::size_t>> parameters;  // by number: offset and size
  each_entry(bytes, [&](unsigned char kind, const unsigned char* data, std::size_t size) {
    if (kind == kind_parameter && size >= 12) {
      parameters[read_at<std::uint16_t>(data, 4)] = {read_at<std::uint16_t>(data, 6),
                                                     read_at<std::uint32_t>(data, 8) >> 18};
    } else if (kind == kind_max_threads && size >= 12) {
      code.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = static_cast<int>(
          read_at<std::uint32_t>(data, 0) * read_at<std::uint32_t>(data, 4) * read_at<std::uint32_t>(data, 8));
    }
  });
  for (const auto& [number, place] : parameters) {
    code.argument_offsets.push_back(place.first);
    code.argument_sizes.push_back(place.second);
  }
  code.arguments_known = true;
}

// Variables are symbols of the sections that hold them.
void read_symbols(const std::vector<Section>& sections, std::string_view symbols, std::string_view names,
                  Image& image) {
  constexpr std::size_t entry = 24;
  constexpr unsigned char object = 1;
  const auto* data = reinterpret_cast<const unsigned char*>(symbols.data());
  for (std::size_t at = 0; at + entry <= symbols.size(); at += entry) {
    const std::size_t name = read_at<std::uint32_t>(data, at);
    if ((data[at + 4] & 0xf) != object || name >= names.size()) {
      continue;
    }
    const std::size_t place = read_at<std::uint16_t>(data, at + 6);
    const auto home = std::ranges::find(sections, place, &Section::index);
    const auto offset = static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 8));
    const auto size = static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 16));
    if (home == sections.end() || size == 0 || offset > home->size || size > home->size - offset) {
      continue;
    }
    const bool is_constant = home->name == ".nv.constant3";
    if (!home->name.starts_with(".nv.global") && !is_constant) {
      continue;
    }
    const std::string_view text = names.substr(name);
    image.variables.push_back({std::string(text.substr(0, text.find('\0'))), size,
                               std::string(home->bytes.substr(std::min(offset, home->bytes.size()), size)),
                               is_constant});
  }
}

// Machine code has a section ".text.NAME" for each kernel, and others with its parameters and its resource usage.
void read_elf(std::string_view elf, Image& image) {
  constexpr std::string_view prefix = ".text.";
  const std::vector<Section> sections = sections_of(elf);
  const auto named = [&](const std::string& name) {
    const auto found = std::ranges::find(sections, name, &Section::name);
    return found == sections.end() ? nullptr : &*found;
  };
  constexpr unsigned char kind_frame = 0x11;
  constexpr unsigned char kind_registers = 0x2f;
  constexpr std::uint32_t symbol_mask = 0xffffff;  // a kernel's section names its symbol there
  constexpr std::size_t reserved_bytes = 1024;
  const Section* everything = named(".nv.info");
  if (const Section* symbols = named(".symtab"); symbols != nullptr && named(".strtab") != nullptr) {
    read_symbols(sections, symbols->bytes, named(".strtab")->bytes, image);
  }
  for (const Section& section : sections) {
    if (!section.name.starts_with(prefix)) {
      continue;
    }
    const std::string name(section.name.substr(prefix.size()));
    const Section* information = named(".nv.info." + name);
    // Functions that kernels call have no parameters of their own there.
    const bool known = std::ranges::any_of(image.kernels, [&](const auto& kernel) { return kernel->name == name; });
    if (name.empty() || known) {
      continue;
    }
    auto code = std::make_shared<KernelCode>();
    code->name = name;
    each_entry(everything == nullptr ? std::string_view{} : everything->bytes,
               [&](unsigned char kind, const unsigned char* data, std::size_t size) {
                 if (size < 8 || read_at<std::uint32_t>(data, 0) != (section.info & symbol_mask)) {
                   return;
                 }
                 const int value = static_cast<int>(read_at<std::uint32_t>(data, 4));
                 if (kind == kind_registers) {
                   code->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = value;
                 }
                 if (kind == kind_frame) {
                   code->attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = value;
                 }
               });
    if (information != nullptr) {
      read_information(information->bytes, *code);
    }
    if (const Section* shared = named(".nv.shared." + name)) {
      // On some chips what the system keeps for itself is counted in.
      const std::size_t kept = named(".nv.shared.reserved.0") != nullptr ? reserved_bytes : 0;
      code->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] =
          static_cast<int>(shared->size > kept ? shared->size - kept : 0);
    }
    if (const Section* constants = named(".nv.constant3")) {
      code->attributes[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES] = static_cast<int>(constants->size);
    }
    image.kernels.push_back(std::move(code));
  }
}

// Gives machine code the PTX that was kept when it was compiled.
void attach_kept_ptx(std::string_view elf, Image& image, std::size_t first) {
  if (image.kernels.size() == first) {
    return;
  }
  if (auto text = kept_ptx(elf)) {
    const auto ptx = std::make_shared<PtxCode>(std::move(*text));
    for (std::size_t i = first; i < image.kernels.size(); ++i) {
      image.kernels[i]->ptx = ptx;
    }
  }
}

// The images in machine code, one behind the other.
Image read_machine_code(std::string_view bytes) {
  Image image;
  constexpr std::string_view magic("\177ELF", 4);
  for (std::size_t at = bytes.find(magic); at != std::string_view::npos; at = bytes.find(magic, at + magic.size())) {
    const std::size_t before = image.kernels.size();
    read_elf(bytes.substr(at), image);
    attach_kept_ptx(bytes.substr(at, elf_size(reinterpret_cast<const unsigned char*>(bytes.data() + at))), image,
                    before);
  }
  return image;
}

// One image of a container: its kind, and for which compute capability it is.
struct ContainedImage {
  static constexpr unsigned ptx = 1;
  unsigned kind = 0;
  int capability = 0;
  std::string bytes;
};

// Calls `visit` with the images of a container, unpacked. What is packed in another way is left out.
template <class Visit>
void each_contained(std::string_view container, Visit&& visit) {
  constexpr std::size_t shortest_head = 64;
  constexpr std::uint64_t lz4_flag = 0x2000;
  const auto* data = reinterpret_cast<const unsigned char*>(container.data());
  std::size_t at = read_at<std::uint16_t>(data, 6);
  while (at + shortest_head <= container.size()) {
    const std::size_t head = read_at<std::uint32_t>(data, at + 4);
    const auto size = static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 8));
    if (head < shortest_head || head > container.size() - at || size > container.size() - at - head) {
      return;
    }
    ContainedImage image{read_at<std::uint16_t>(data, at), static_cast<int>(read_at<std::uint32_t>(data, at + 28)), {}};
    const std::size_t packed = read_at<std::uint32_t>(data, at + 16);
    const std::string_view bytes = container.substr(at + head, packed != 0 ? std::min(packed, size) : size);
    std::optional<std::string> unpacked(std::in_place, bytes);
    if (bytes.starts_with("\x28\xb5\x2f\xfd")) {
      unpacked = unpacked_zstd(bytes);
    } else if ((read_at<std::uint64_t>(data, at + 40) & lz4_flag) != 0) {
      unpacked = unpacked_lz4(bytes, static_cast<std::size_t>(read_at<std::uint64_t>(data, at + 56)));
    }
    if (unpacked) {
      image.bytes = std::move(*unpacked);
      visit(std::move(image));
    }
    at += head + size;
  }
}

// A container has machine code, PTX or both. Kernels of machine code are executed from the PTX beside it.
Image read_container(std::string_view container, const Compiler& compiler) {
  Image image;
  ContainedImage best;
  each_contained(container, [&](ContainedImage&& one) {
    if (one.kind != ContainedImage::ptx) {
      Image code = read_machine_code(one.bytes);
      std::ranges::move(code.kernels, std::back_inserter(image.kernels));
      std::ranges::move(code.variables, std::back_inserter(image.variables));
    } else if (one.capability <= compiler.capability && one.capability >= best.capability) {
      best = std::move(one);
    }
  });
  if (best.kind != ContainedImage::ptx) {
    return image;
  }
  const std::string text = best.bytes.substr(0, best.bytes.find('\0'));
  Image from_ptx = read_ptx(without_comments(text), text);
  if (image.kernels.empty() && image.variables.empty()) {
    return from_ptx;
  }
  for (const auto& kernel : image.kernels) {
    const auto same = std::ranges::find(from_ptx.kernels, kernel->name, &KernelCode::name);
    kernel->ptx = kernel->ptx == nullptr && same != from_ptx.kernels.end() ? (*same)->ptx : kernel->ptx;
  }
  // Names that only PTX has, such as variables of one file; and it says which ones are managed.
  for (Variable& variable : from_ptx.variables) {
    const auto same = std::ranges::find(image.variables, variable.name, &Variable::name);
    if (same == image.variables.end()) {
      image.variables.push_back(std::move(variable));
    } else {
      same->is_managed = variable.is_managed;
    }
  }
  return image;
}

}  // namespace

CUresult read_image(const void* data, const Compiler& compiler, Image& image) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const char* text = static_cast<const char*>(data);
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < sizeof first && (i == 0 || bytes[i - 1] != 0); ++i) {
    first |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  }
  if (first == fatbin_wrapper_magic) {
    return read_image(read_at<const void*>(bytes, 8), compiler, image);
  }
  if (first == fatbin_magic) {
    const std::size_t size = read_at<std::uint16_t>(bytes, 6) + read_at<std::uint64_t>(bytes, 8);
    image = read_container({text, size}, compiler);
  } else if (std::memcmp(&first, "\177ELF", 4) == 0) {
    image = read_machine_code({text, elf_size(bytes)});
  } else {
    const std::string_view source(text);
    if (source.find(".version") == std::string_view::npos) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
    const std::string program = without_comments(source);
    image = read_ptx(program, source);
    return check_ptx(program, compiler);
  }
  return image.kernels.empty() && image.variables.empty() ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

}  // namespace software_driver
