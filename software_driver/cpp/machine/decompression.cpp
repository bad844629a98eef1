// Decoders of packed images. Each read is checked: what does not fit ends the decoding.
#include "machine/decompression.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace software_driver {
namespace {

struct Malformed : std::runtime_error {
  Malformed() : std::runtime_error("malformed data") {}
};
void require(bool condition) {
  if (!condition) {
    throw Malformed();
  }
}

constexpr std::size_t most_bytes = std::size_t{1} << 30;

// Bytes from the begin to the end.
class ByteReader {
 public:
  explicit ByteReader(std::string_view data) : data_(data) {}
  std::uint64_t number(std::size_t bytes) {
    const std::string_view taken = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    }
    return value;
  }
  std::string_view take(std::size_t bytes) {
    require(bytes <= data_.size());
    const std::string_view taken = data_.substr(0, bytes);
    data_.remove_prefix(bytes);
    return taken;
  }
  std::string_view rest() const { return data_; }
  bool is_empty() const { return data_.empty(); }

 private:
  std::string_view data_;
};

// Bits from the end to the begin, below a last bit that is set. Beyond the begin there are zeros.
class BackwardBits {
 public:
  explicit BackwardBits(std::string_view data) : data_(data) {
    require(!data.empty() && data.back() != 0);
    const auto last = static_cast<unsigned char>(data.back());
    left_ = static_cast<std::ptrdiff_t>(8 * (data.size() - 1)) + std::bit_width(last) - 1;
  }
  std::uint64_t read(unsigned count) {
    left_ -= count;
    return at(left_, count);
  }
  std::uint64_t peek(unsigned count) const { return at(left_ - count, count); }
  void skip(unsigned count) { left_ -= count; }
  std::ptrdiff_t left() const { return left_; }

 private:
  std::uint64_t at(std::ptrdiff_t begin, unsigned count) const {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
      const std::ptrdiff_t bit = begin + i;
      if (bit >= 0) {
        const auto byte = static_cast<unsigned char>(data_[static_cast<std::size_t>(bit / 8)]);
        value |= std::uint64_t{static_cast<unsigned>(byte >> (bit % 8) & 1)} << i;
      }
    }
    return value;
  }
  std::string_view data_;
  std::ptrdiff_t left_ = 0;
};

// A table of finite state entropy: each state has a symbol, and how the next state is found.
struct StateTable {
  struct State {
    std::uint8_t symbol = 0;
    std::uint8_t bits = 0;
    std::uint16_t base = 0;
  };
  unsigned log = 0;
  std::vector<State> states;
};

StateTable table_of(const std::vector<int>& probabilities, unsigned log) {
  const std::size_t size = std::size_t{1} << log;
  StateTable table{log, std::vector<StateTable::State>(size)};
  std::vector<unsigned> next(probabilities.size());
  std::size_t high = size;
  for (std::size_t symbol = 0; symbol < probabilities.size(); ++symbol) {
    if (probabilities[symbol] == -1) {
      require(high > 0);
      table.states[--high].symbol = static_cast<std::uint8_t>(symbol);
      next[symbol] = 1;
    }
  }
  const std::size_t step = (size >> 1) + (size >> 3) + 3;
  std::size_t at = 0;
  for (std::size_t symbol = 0; symbol < probabilities.size(); ++symbol) {
    if (probabilities[symbol] <= 0) {
      continue;
    }
    next[symbol] = static_cast<unsigned>(probabilities[symbol]);
    for (int i = 0; i < probabilities[symbol]; ++i) {
      table.states[at].symbol = static_cast<std::uint8_t>(symbol);
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
  }
  require(at == 0);
  for (StateTable::State& state : table.states) {
    const unsigned number = next[state.symbol]++;
    require(number > 0);
    state.bits = static_cast<std::uint8_t>(log + 1 - static_cast<unsigned>(std::bit_width(number)));
    state.base = static_cast<std::uint16_t>((number << state.bits) - size);
  }
  return table;
}

StateTable read_table(ByteReader& reader, unsigned most_log, std::size_t most_symbols) {
  const std::string_view data = reader.rest();
  std::size_t at = 0;
  const auto bits = [&](unsigned count) {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < count; ++i, ++at) {
      require(at / 8 < data.size());
      value |= static_cast<std::uint32_t>(static_cast<unsigned char>(data[at / 8]) >> (at % 8) & 1) << i;
    }
    return value;
  };
  const unsigned log = bits(4) + 5;
  require(log <= most_log);
  int left = (1 << log) + 1;
  std::vector<int> probabilities;
  while (left > 1) {
    // Values that cannot be larger than what is left take a bit less where they are small.
    const auto most = static_cast<unsigned>(std::bit_width(static_cast<unsigned>(left)));
    const std::uint32_t unused = (1u << most) - 1 - static_cast<std::uint32_t>(left);
    std::uint32_t value = bits(most - 1);
    if (value >= unused) {
      value |= bits(1) << (most - 1);
      value -= value >= (1u << (most - 1)) ? unused : 0;
    }
    const int probability = static_cast<int>(value) - 1;
    probabilities.push_back(probability);
    left -= probability < 0 ? -probability : probability;
    if (probability == 0) {
      for (std::uint32_t more = 3; more == 3;) {
        more = bits(2);
        probabilities.insert(probabilities.end(), more, 0);
      }
    }
    require(probabilities.size() <= most_symbols);
  }
  require(left == 1);
  reader.take((at + 7) / 8);
  return table_of(probabilities, log);
}

// Codes of literals: the entry of the next bits tells the symbol and how many of the bits are its code.
struct LiteralTable {
  unsigned log = 0;
  std::vector<std::pair<std::uint8_t, std::uint8_t>> entries;
};

LiteralTable literals_of(std::vector<unsigned> weights) {
  std::uint32_t sum = 0;
  for (const unsigned weight : weights) {
    require(weight <= 12);
    sum += weight > 0 ? 1u << (weight - 1) : 0;
  }
  require(sum > 0);
  LiteralTable table;
  table.log = static_cast<unsigned>(std::bit_width(sum));
  const std::uint32_t left = (1u << table.log) - sum;
  require(table.log <= 11 && std::has_single_bit(left));
  weights.push_back(static_cast<unsigned>(std::bit_width(left)));
  for (unsigned weight = 1; weight <= table.log; ++weight) {
    for (std::size_t symbol = 0; symbol < weights.size(); ++symbol) {
      if (weights[symbol] == weight) {
        table.entries.insert(table.entries.end(), std::size_t{1} << (weight - 1),
                             {static_cast<std::uint8_t>(symbol), static_cast<std::uint8_t>(table.log + 1 - weight)});
      }
    }
  }
  require(table.entries.size() == std::size_t{1} << table.log);
  return table;
}

LiteralTable read_literal_table(ByteReader& reader) {
  const auto head = static_cast<unsigned>(reader.number(1));
  std::vector<unsigned> weights;
  if (head >= 128) {
    const unsigned count = head - 127;
    const std::string_view bytes = reader.take((count + 1) / 2);
    for (unsigned i = 0; i < count; ++i) {
      const auto byte = static_cast<unsigned char>(bytes[i / 2]);
      weights.push_back(i % 2 == 0 ? byte >> 4 : byte & 15);
    }
    return literals_of(std::move(weights));
  }
  ByteReader packed(reader.take(head));
  const StateTable table = read_table(packed, 6, 256);
  BackwardBits bits(packed.rest());
  std::array<std::size_t, 2> states{bits.read(table.log), 0};
  states[1] = bits.read(table.log);
  // Two states take turns; where the bits of one are missing, the other has the last weight.
  for (std::size_t turn = 0; weights.size() < 255; turn ^= 1) {
    const StateTable::State& state = table.states[states[turn]];
    weights.push_back(state.symbol);
    if (bits.left() < state.bits) {
      weights.push_back(table.states[states[turn ^ 1]].symbol);
      break;
    }
    states[turn] = state.base + bits.read(state.bits);
  }
  return literals_of(std::move(weights));
}

void decode_literals(const LiteralTable& table, std::string_view data, std::size_t count, std::string& out) {
  BackwardBits bits(data);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [symbol, length] = table.entries[bits.peek(table.log)];
    out += static_cast<char>(symbol);
    bits.skip(length);
    require(bits.left() >= 0);
  }
}

// A value that follows from a code: a base, and bits to add.
struct Base {
  std::uint32_t base;
  std::uint8_t bits;
};
constexpr std::array<Base, 20> long_literals{{{16, 1},    {18, 1},    {20, 1},     {22, 1},     {24, 2},
                                              {28, 2},    {32, 3},    {40, 3},     {48, 4},     {64, 6},
                                              {128, 7},   {256, 8},   {512, 9},    {1024, 10},  {2048, 11},
                                              {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16}}};
constexpr std::array<Base, 21> long_matches{{{35, 1},     {37, 1},     {39, 1},    {41, 1},    {43, 2},    {47, 2},
                                             {51, 3},     {59, 3},     {67, 4},    {83, 4},    {99, 5},    {131, 7},
                                             {259, 8},    {515, 9},    {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13},
                                             {16387, 14}, {32771, 15}, {65539, 16}}};

enum Code : std::size_t { of_literals, of_offsets, of_matches };
constexpr std::array<std::size_t, 3> symbol_counts{36, 32, 53};
constexpr std::array<unsigned, 3> most_logs{9, 8, 9};

StateTable standard_table(Code code) {
  if (code == of_literals) {
    return table_of({4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                     2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
                    6);
  }
  if (code == of_offsets) {
    return table_of({1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}, 5);
  }
  std::vector<int> matches(53, 1);
  matches[1] = 4;
  matches[2] = 3;
  std::fill(matches.begin() + 3, matches.begin() + 9, 2);
  std::fill(matches.begin() + 46, matches.end(), -1);
  return table_of(matches, 6);
}

// A frame, block by block: each may use tables and offsets of those before it.
class Frame {
 public:
  std::string unpack(std::string_view data) {
    ByteReader reader(data);
    require(reader.number(4) == 0xfd2fb528);
    const auto descriptor = static_cast<unsigned>(reader.number(1));
    const bool is_single = (descriptor & 0x20) != 0;
    reader.take(is_single ? 0 : 1);
    constexpr std::array<std::size_t, 4> dictionary{0, 1, 2, 4};
    require(reader.number(dictionary[descriptor & 3]) == 0);
    const unsigned size_flag = descriptor >> 6;
    reader.take(size_flag == 0 ? (is_single ? 1 : 0) : std::size_t{1} << size_flag);
    bool is_last = false;
    while (!is_last) {
      const auto head = static_cast<std::uint32_t>(reader.number(3));
      is_last = (head & 1) != 0;
      const std::size_t size = head >> 3;
      switch (head >> 1 & 3) {
        case 0:
          out_ += reader.take(size);
          break;
        case 1:
          out_.append(size, reader.take(1).front());
          break;
        case 2:
          unpack_block(reader.take(size));
          break;
        default:
          require(false);
      }
      require(out_.size() <= most_bytes);
    }
    return std::move(out_);
  }

 private:
  std::string read_literals(ByteReader& reader) {
    const auto first = static_cast<unsigned char>(reader.rest().empty() ? throw Malformed() : reader.rest().front());
    const unsigned kind = first & 3;
    const unsigned format = first >> 2 & 3;
    if (kind < 2) {
      const bool is_short = (format & 1) == 0;
      const std::size_t head_bytes = is_short ? 1 : format == 1 ? 2 : 3;
      const auto size = static_cast<std::size_t>(reader.number(head_bytes) >> (is_short ? 3 : 4));
      require(size <= most_bytes);
      return kind == 0 ? std::string(reader.take(size)) : std::string(size, reader.take(1).front());
    }
    const std::size_t head_bytes = format < 2 ? 3 : format == 2 ? 4 : 5;
    const unsigned bits = format < 2 ? 10 : format == 2 ? 14 : 18;
    const std::uint64_t head = reader.number(head_bytes) >> 4;
    const auto size = static_cast<std::size_t>(head & ((1u << bits) - 1));
    ByteReader packed(reader.take(static_cast<std::size_t>(head >> bits & ((1u << bits) - 1))));
    if (kind == 2) {
      literals_ = read_literal_table(packed);
    }
    require(!literals_.entries.empty());
    std::string out;
    if (format == 0) {
      decode_literals(literals_, packed.rest(), size, out);
      return out;
    }
    std::array<std::size_t, 3> sizes{};
    for (std::size_t& one : sizes) {
      one = static_cast<std::size_t>(packed.number(2));
    }
    const std::size_t part = (size + 3) / 4;
    require(3 * part <= size);
    for (const std::size_t one : sizes) {
      decode_literals(literals_, packed.take(one), part, out);
    }
    decode_literals(literals_, packed.rest(), size - 3 * part, out);
    return out;
  }

  void read_code(ByteReader& reader, Code code, unsigned mode) {
    StateTable& table = tables_[code];
    if (mode == 0) {
      table = standard_table(code);
    } else if (mode == 1) {
      const auto symbol = static_cast<std::uint8_t>(reader.number(1));
      table = {0, {{symbol, 0, 0}}};
    } else if (mode == 2) {
      table = read_table(reader, most_logs[code], symbol_counts[code]);
    }
    require(!table.states.empty());
  }

  std::uint64_t offset_of(std::uint64_t value, bool has_literals) {
    if (value > 3) {
      offsets_ = {value - 3, offsets_[0], offsets_[1]};
      return offsets_[0];
    }
    const std::uint64_t which = value - (has_literals ? 1 : 0);
    const std::uint64_t offset = which < 3 ? offsets_[which] : offsets_[0] - 1;
    if (which >= 2) {
      offsets_[2] = offsets_[1];
    }
    if (which >= 1) {
      offsets_[1] = offsets_[0];
    }
    offsets_[0] = offset;
    return offset;
  }

  void unpack_block(std::string_view block) {
    ByteReader reader(block);
    const std::string literals = read_literals(reader);
    std::size_t used = 0;
    std::size_t count = reader.number(1);
    if (count >= 128) {
      const auto next = static_cast<std::size_t>(reader.number(1));
      count = count < 255 ? ((count - 128) << 8) + next : next + (reader.number(1) << 8) + 0x7f00;
    }
    if (count > 0) {
      const auto modes = static_cast<unsigned>(reader.number(1));
      read_code(reader, of_literals, modes >> 6 & 3);
      read_code(reader, of_offsets, modes >> 4 & 3);
      read_code(reader, of_matches, modes >> 2 & 3);
      BackwardBits bits(reader.rest());
      std::array<std::size_t, 3> states{};
      for (const Code code : {of_literals, of_offsets, of_matches}) {
        states[code] = bits.read(tables_[code].log);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const auto symbol = [&](Code code) { return tables_[code].states[states[code]].symbol; };
        const unsigned offset_code = symbol(of_offsets);
        const unsigned match_code = symbol(of_matches);
        const unsigned literal_code = symbol(of_literals);
        require(offset_code < 32 && match_code < 53 && literal_code < 36);
        const std::uint64_t offset_value = (std::uint64_t{1} << offset_code) + bits.read(offset_code);
        const Base match = match_code < 32 ? Base{match_code + 3, 0} : long_matches[match_code - 32];
        const auto length = static_cast<std::size_t>(match.base + bits.read(match.bits));
        const Base literal = literal_code < 16 ? Base{literal_code, 0} : long_literals[literal_code - 16];
        const auto fresh = static_cast<std::size_t>(literal.base + bits.read(literal.bits));
        require(fresh <= literals.size() - used && length <= most_bytes);
        out_.append(literals, used, fresh);
        used += fresh;
        const std::uint64_t offset = offset_of(offset_value, fresh > 0);
        require(offset > 0 && offset <= out_.size() && out_.size() + length <= most_bytes);
        for (std::size_t k = 0; k < length; ++k) {
          out_ += out_[out_.size() - static_cast<std::size_t>(offset)];
        }
        if (i + 1 < count) {
          for (const Code code : {of_literals, of_matches, of_offsets}) {
            const StateTable::State& state = tables_[code].states[states[code]];
            states[code] = state.base + bits.read(state.bits);
          }
        }
        require(bits.left() >= 0);
      }
    }
    out_.append(literals, used);
  }

  std::string out_;
  LiteralTable literals_;
  std::array<StateTable, 3> tables_;
  std::array<std::uint64_t, 3> offsets_{1, 4, 8};
};

std::string unpack_lz4_block(std::string_view data, std::size_t size) {
  ByteReader reader(data);
  std::string out;
  const auto length = [&](std::size_t begin) {
    for (std::size_t more = begin == 15 ? 255 : 0; more == 255;) {
      more = static_cast<std::size_t>(reader.number(1));
      begin += more;
    }
    return begin;
  };
  while (out.size() < size) {
    const auto token = static_cast<unsigned>(reader.number(1));
    out += reader.take(length(token >> 4));
    if (out.size() >= size) {
      break;
    }
    const auto offset = static_cast<std::size_t>(reader.number(2));
    const std::size_t count = length(token & 15) + 4;
    require(offset > 0 && offset <= out.size() && count <= size - out.size());
    for (std::size_t i = 0; i < count; ++i) {
      out += out[out.size() - offset];
    }
  }
  require(out.size() == size);
  return out;
}

}  // namespace

std::optional<std::string> unpacked_zstd(std::string_view data) {
  try {
    return Frame().unpack(data);
  } catch (const Malformed&) {
    return std::nullopt;
  }
}

std::optional<std::string> unpacked_lz4(std::string_view data, std::size_t size) {
  try {
    return unpack_lz4_block(data, size);
  } catch (const Malformed&) {
    return std::nullopt;
  }
}

}  // namespace software_driver
