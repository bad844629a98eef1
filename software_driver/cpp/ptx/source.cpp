// Reads PTX text into a tree.
#include "ptx/source.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <utility>

namespace software_driver::ptx {
namespace {

constexpr std::pair<std::string_view, Type> types[] = {
    {"pred", Type::pred},   {"u8", Type::u8},     {"u16", Type::u16},       {"u32", Type::u32},   {"u64", Type::u64},
    {"s8", Type::s8},       {"s16", Type::s16},   {"s32", Type::s32},       {"s64", Type::s64},   {"b8", Type::b8},
    {"b16", Type::b16},     {"b32", Type::b32},   {"b64", Type::b64},       {"b128", Type::b128}, {"f16", Type::f16},
    {"f16x2", Type::f16x2}, {"bf16", Type::bf16}, {"bf16x2", Type::bf16x2}, {"f32", Type::f32},   {"f64", Type::f64}};

// Replaces comments by blanks, so that lines keep their numbers.
std::string without_comments(std::string_view text) {
  std::string clean(text);
  bool in_string = false;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    if (clean[i] == '"') {
      in_string = !in_string;
    }
    if (in_string || clean[i] != '/' || i + 1 == clean.size()) {
      continue;
    }
    std::size_t end = i;
    if (clean[i + 1] == '/') {
      end = std::min(clean.find('\n', i), clean.size());
    } else if (clean[i + 1] == '*') {
      const auto close = clean.find("*/", i + 2);
      end = close == std::string::npos ? clean.size() : close + 2;
    }
    for (; i < end; ++i) {
      clean[i] = clean[i] == '\n' ? '\n' : ' ';
    }
  }
  return clean;
}

struct Token {
  std::string_view text;  // empty at the end
  unsigned line = 0;
};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  unsigned line = 1;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\n') {
      ++line;
    }
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0 || text[i] == '\0') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    if (text[i] == '"') {
      end = std::min(text.find('"', i + 1), text.size() - 1) + 1;
    } else if (is_word(text[i])) {
      // Directives may stand without a blank between them: ".reg.b16".
      while (end < text.size() && !(text[i] == '.' && text[end] == '.') &&
             (is_word(text[end]) ||
              (text[end] == ':' && text.substr(end, 2) == "::" && text[i] != '$' && end + 2 < text.size()))) {
        end += text[end] == ':' ? 2 : 1;
      }
    }
    tokens.push_back({text.substr(i, end - i), line});
    i = end;
  }
  return tokens;
}

class Reader {
 public:
  explicit Reader(Source& source) : source_(source), tokens_(tokens_of(source.text)) {}

  void read() {
    while (at_ < tokens_.size()) {
      read_item();
    }
  }

 private:
  Token peek(std::size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead] : Token{{}, tokens_.empty() ? 1 : tokens_.back().line};
  }
  bool sees(std::string_view text) const { return peek().text == text; }
  Token next() {
    const Token token = peek();
    if (token.text.empty()) {
      fail("the text ends too early");
    }
    ++at_;
    return token;
  }
  bool skip(std::string_view text) {
    const bool found = sees(text);
    at_ += found ? 1 : 0;
    return found;
  }
  void expect(std::string_view text) {
    if (!skip(text)) {
      fail("'" + std::string(text) + "' is expected before '" + std::string(peek().text) + "'");
    }
  }
  [[noreturn]] void fail(const std::string& what) const { throw SourceError(peek().line, what); }

  void skip_line() {
    for (const unsigned line = peek().line; at_ < tokens_.size() && peek().line == line;) {
      ++at_;
    }
  }
  void skip_braces() {
    int depth = 0;
    do {
      const std::string_view text = next().text;
      depth += text == "{" ? 1 : text == "}" ? -1 : 0;
    } while (depth > 0);
  }

  void read_item() {
    const std::string_view word = peek().text;
    if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
      return skip_line();
    }
    if (word == ".section") {
      while (!sees("{")) {
        next();
      }
      return skip_braces();
    }
    if (word == ".pragma" || word == ".alias") {
      while (next().text != ";") {
      }
      return;
    }
    bool is_extern = false;
    while (sees(".visible") || sees(".extern") || sees(".weak") || sees(".common")) {
      is_extern = next().text == ".extern" || is_extern;
    }
    if (sees(".entry") || sees(".func")) {
      return read_function();
    }
    read_variable(source_.variables, is_extern);
  }

  static bool is_space(std::string_view word) {
    return word == ".global" || word == ".const" || word == ".shared" || word == ".local" || word == ".param";
  }
  static Space space_of(std::string_view word) {
    return word == ".global"   ? Space::global
           : word == ".const"  ? Space::constant
           : word == ".shared" ? Space::shared
           : word == ".local"  ? Space::local
                               : Space::parameter;
  }

  std::uint64_t read_integer() {
    const bool negative = skip("-");
    const Token token = next();
    std::string digits(token.text);
    while (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) {
      digits.pop_back();
    }
    char* end = nullptr;
    const bool is_binary = digits.starts_with("0b") || digits.starts_with("0B");
    const std::uint64_t value = std::strtoull(digits.c_str() + (is_binary ? 2 : 0), &end, is_binary ? 2 : 0);
    if (*end != '\0' || digits.empty()) {
      throw SourceError(token.line, "'" + std::string(token.text) + "' is no integer");
    }
    return negative ? ~value + 1 : value;
  }

  // ".param .align 8 .b8 name[24]", ".global .v4 .f32 name[2] = {...}"
  Declaration read_declaration() {
    Declaration made;
    made.line = peek().line;
    made.space = space_of(next().text);
    unsigned lanes = 1;
    while (peek().text.starts_with('.')) {
      const Token word = next();
      if (word.text == ".align") {
        made.alignment = static_cast<unsigned>(read_integer());
      } else if (word.text == ".v2" || word.text == ".v4" || word.text == ".v8") {
        lanes = static_cast<unsigned>(word.text[2] - '0');
      } else if (word.text == ".ptr" || is_space(word.text) || word.text.starts_with(".attribute") ||
                 word.text.starts_with(".managed") || word.text.starts_with(".unified")) {
        // Says nothing that a run depends on.
        if (sees("(")) {
          while (next().text != ")") {
          }
        }
      } else if (made.type = type_of(word.text.substr(1)); made.type == Type::none) {
        throw SourceError(word.line, "the type '" + std::string(word.text) + "' is not known");
      }
    }
    made.elements = lanes;
    made.name = next().text;
    while (skip("[")) {
      if (skip("]")) {
        made.has_size = false;
        continue;
      }
      made.elements *= read_integer();
      expect("]");
    }
    if (made.alignment == 0) {
      made.alignment = std::max(1u, size_of(made.type) * lanes);
    }
    return made;
  }

  void read_values(Declaration& into) {
    if (skip("{")) {
      while (!skip("}")) {
        read_values(into);
        skip(",");
      }
      return;
    }
    InitialValue value;
    std::string_view word = peek().text;
    if (word == "-" || std::isdigit(static_cast<unsigned char>(word.front())) != 0) {
      value.bits = read_number(into.type);
    } else {
      // "symbol", "generic(symbol)", "0xFF(symbol)" is not written by compilers of today.
      next();
      if (word == "generic" && skip("(")) {
        value.is_generic = true;
        word = next().text;
        expect(")");
      }
      value.symbol = word;
      if (skip("+")) {
        value.bits = read_integer();
      }
    }
    into.values.push_back(value);
  }

  std::uint64_t read_number(Type type) {
    const bool negative = sees("-");
    const std::string_view word = peek(negative ? 1 : 0).text;
    const bool is_hexadecimal = word.starts_with("0x") || word.starts_with("0X");
    const bool is_bits = word.size() > 2 && word[0] == '0' && std::string_view("fFdD").find(word[1]) != word.npos;
    if (!is_bits && (is_hexadecimal || word.find_first_of(".eE") == word.npos) && type != Type::f32 &&
        type != Type::f64) {
      return read_integer();
    }
    const Operand number = read_float();
    if (type == Type::f64 && number.kind == Operand::Kind::single) {
      return std::bit_cast<std::uint64_t>(
          static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(number.bits))));
    }
    if (type == Type::f32 && number.kind == Operand::Kind::real) {
      return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(number.bits)));
    }
    return number.bits;
  }

  Operand read_float() {
    Operand made;
    const bool negative = skip("-");
    const std::string word(next().text);
    if (word.size() > 2 && (word[1] == 'f' || word[1] == 'F')) {
      made.kind = Operand::Kind::single;
      made.bits = std::strtoull(word.c_str() + 2, nullptr, 16) ^ (negative ? 0x80000000u : 0);
    } else if (word.size() > 2 && (word[1] == 'd' || word[1] == 'D')) {
      made.kind = Operand::Kind::real;
      made.bits = std::strtoull(word.c_str() + 2, nullptr, 16) ^ (negative ? std::uint64_t{1} << 63 : 0);
    } else {
      made.kind = Operand::Kind::real;
      const double value = std::strtod(word.c_str(), nullptr);
      made.bits = std::bit_cast<std::uint64_t>(negative ? -value : value);
    }
    return made;
  }

  void read_variable(std::vector<Declaration>& into, bool is_extern) {
    if (!is_space(peek().text)) {
      fail("'" + std::string(peek().text) + "' begins nothing that is known");
    }
    Declaration made = read_declaration();
    made.is_extern = is_extern;
    const Declaration first = made;
    while (true) {
      if (skip("=")) {
        read_values(made);
        if (!made.has_size) {
          made.elements *= made.values.size();
          made.has_size = true;
        }
      }
      into.push_back(made);
      if (!skip(",")) {
        break;
      }
      made = first;
      made.name = next().text;
    }
    expect(";");
  }

  void read_parameters(std::vector<Declaration>& into) {
    if (!skip("(")) {
      return;
    }
    while (!skip(")")) {
      if (sees(".reg")) {
        fail("parameters in registers are not known");
      }
      into.push_back(read_declaration());
      skip(",");
    }
  }

  void read_function() {
    FunctionSource made;
    made.line = peek().line;
    made.is_entry = next().text == ".entry";
    if (!made.is_entry) {
      read_parameters(made.results);
    }
    made.name = next().text;
    read_parameters(made.parameters);
    while (!sees("{") && !sees(";")) {
      next();  // .maxntid, .minnctapersm, .noreturn and the like
    }
    if (!skip(";")) {
      made.has_body = true;
      next();
      read_body(made);
    }
    source_.functions.push_back(std::move(made));
  }

  void read_body(FunctionSource& into) {
    for (int depth = 1; depth > 0;) {
      const std::string_view word = peek().text;
      if (word == "{" || word == "}") {
        depth += next().text == "{" ? 1 : -1;
      } else if (word == ";") {
        next();
      } else if (word == ".reg") {
        read_registers(into);
      } else if (word == ".loc" || word == ".file") {
        skip_line();
      } else if (word == ".pragma") {
        while (next().text != ";") {
        }
      } else if (word == ".section") {
        while (!sees("{")) {
          next();
        }
        skip_braces();
      } else if (word == ".extern" || is_space(word)) {
        const bool is_extern = skip(".extern");
        read_variable(into.variables, is_extern);
      } else if (peek(1).text == ":") {
        into.labels.push_back({next().text, into.statements.size()});
        next();
        if (sees(".branchtargets")) {
          read_targets(into.labels.back());
        } else if (sees(".callprototype") || sees(".calltargets")) {
          while (next().text != ";") {
          }
        }
      } else {
        into.statements.push_back(read_statement());
      }
    }
  }

  void read_targets(Label& into) {
    next();
    do {
      into.targets.push_back(next().text);
    } while (skip(","));
    expect(";");
  }

  void read_registers(FunctionSource& into) {
    next();
    const Token word = next();
    const Type type = type_of(word.text.substr(1));
    if (type == Type::none) {
      throw SourceError(word.line, "registers of the type '" + std::string(word.text) + "' are not known");
    }
    do {
      Register made{next().text, 0, type};
      if (skip("<")) {
        made.count = static_cast<unsigned>(read_integer());
        expect(">");
      }
      into.registers.push_back(made);
    } while (skip(","));
    expect(";");
  }

  Statement read_statement() {
    Statement made;
    const char* begin = peek().text.data();
    made.line = peek().line;
    if (skip("@")) {
      made.negated = skip("!");
      made.predicate = next().text;
    }
    std::string_view opcode = next().text;
    while (!opcode.empty()) {
      // "::" binds: "shared::cta" is one word.
      const auto dot = opcode.find('.');
      made.opcode.push_back(opcode.substr(0, dot));
      opcode = dot == opcode.npos ? std::string_view{} : opcode.substr(dot + 1);
    }
    while (!sees(";")) {
      made.operands.push_back(read_operand());
      if (!skip(",") && !sees(";")) {
        fail("'" + std::string(peek().text) + "' stands where an operand ends");
      }
    }
    const Token end = next();
    made.text = {begin, static_cast<std::size_t>(end.text.data() + 1 - begin)};
    return made;
  }

  Operand read_operand() {
    Operand made;
    if (sees("{") || sees("(")) {
      const bool is_list = next().text == "(";
      made.kind = is_list ? Operand::Kind::list : Operand::Kind::vector;
      while (!skip(is_list ? ")" : "}")) {
        made.parts.push_back(read_operand());
        skip(",");
      }
      return made;
    }
    if (skip("[")) {
      made.kind = Operand::Kind::address;
      const std::string_view word = peek().text;
      if (std::isdigit(static_cast<unsigned char>(word.front())) == 0) {
        made.name = next().text;
        if (skip("+")) {
          made.bits = read_integer();
        } else if (sees("-")) {
          made.bits = read_integer();
        }
      } else {
        made.bits = read_integer();
      }
      expect("]");
      return made;
    }
    made.negated = skip("!");
    const std::string_view word = peek(sees("-") ? 1 : 0).text;
    if (word.empty()) {
      fail("an operand is missing");
    }
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0) {
      const bool is_hexadecimal = word.starts_with("0x") || word.starts_with("0X");
      const bool is_bits = word.size() > 2 && word[0] == '0' && std::string_view("fFdD").find(word[1]) != word.npos;
      if (is_bits || (!is_hexadecimal && word.find_first_of(".eE") != word.npos)) {
        return read_float();
      }
      made.kind = Operand::Kind::integer;
      made.bits = read_integer();
      return made;
    }
    made.name = next().text;
    if (skip("|")) {
      made.second = next().text;
    }
    if (sees("+") || sees("-")) {
      made.bits = skip("+") ? read_integer() : read_integer();
    }
    return made;
  }

  Source& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace

Type type_of(std::string_view word) {
  const auto* found = std::ranges::find(types, word, &std::pair<std::string_view, Type>::first);
  return found == std::end(types) ? Type::none : found->second;
}

unsigned size_of(Type type) {
  switch (type) {
    case Type::none:
    case Type::pred:
      return 0;
    case Type::u8:
    case Type::s8:
    case Type::b8:
      return 1;
    case Type::u16:
    case Type::s16:
    case Type::b16:
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::u64:
    case Type::s64:
    case Type::b64:
    case Type::f64:
      return 8;
    case Type::b128:
      return 16;
    default:
      return 4;
  }
}

std::unique_ptr<Source> read_source(std::string_view text) {
  auto source = std::make_unique<Source>();
  source->text = without_comments(text);
  Reader(*source).read();
  return source;
}

}  // namespace software_driver::ptx
