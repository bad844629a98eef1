// PTX text as a tree: declarations, functions and statements, each with its line.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace software_driver::ptx {

// Reports a place in the text that the reader does not understand.
struct SourceError : std::runtime_error {
  SourceError(unsigned at, const std::string& what) : std::runtime_error(what), line(at) {}
  unsigned line;
};

enum class Type : std::uint8_t {
  none,
  pred,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  b8,
  b16,
  b32,
  b64,
  b128,
  f16,
  f16x2,
  bf16,
  bf16x2,
  f32,
  f64
};
// The type that a word such as "u32" names; `none` for other words.
Type type_of(std::string_view word);
// Bytes of a value; 0 for predicates.
unsigned size_of(Type type);

enum class Space : std::uint8_t { generic, global, constant, shared, local, parameter };

struct Operand {
  enum class Kind : std::uint8_t { name, integer, single, real, vector, address, list };
  Kind kind = Kind::name;
  bool negated = false;        // "!%p1"
  std::string_view name;       // of a register, symbol or label; the base of an address, empty if it is a number
  std::string_view second;     // behind "|": the predicate that shfl and setp write too
  std::uint64_t bits = 0;      // of a number; the offset of an address
  std::vector<Operand> parts;  // of a vector, or of a list in parentheses
};

struct Statement {
  unsigned line = 0;
  std::string_view predicate;  // empty: always
  bool negated = false;
  std::vector<std::string_view> opcode;  // "ld", "global", "u32"
  std::vector<Operand> operands;
  std::string_view text;  // as it stands in the source
};

// One number of an initial value: bits, or the address of a symbol plus them.
struct InitialValue {
  std::uint64_t bits = 0;
  std::string_view symbol;
  bool is_generic = false;
};

struct Declaration {
  unsigned line = 0;
  Space space = Space::generic;
  Type type = Type::none;
  std::string_view name;
  std::uint64_t elements = 1;
  unsigned alignment = 0;
  bool is_extern = false;
  bool has_size = true;  // false: an array that gets its size from the launch
  std::vector<InitialValue> values;

  std::uint64_t bytes() const noexcept { return size_of(type) * elements; }
};

struct Register {
  std::string_view name;  // "%r" of "%r<9>"
  unsigned count = 0;     // 0: one register of exactly this name
  Type type = Type::none;
};

struct Label {
  std::string_view name;
  std::size_t statement = 0;                // that it stands before
  std::vector<std::string_view> targets{};  // of .branchtargets
};

struct FunctionSource {
  unsigned line = 0;
  std::string_view name;
  bool is_entry = false;
  bool has_body = false;
  std::vector<Declaration> results;
  std::vector<Declaration> parameters;
  std::vector<Register> registers;
  std::vector<Declaration> variables;  // declared inside of the body
  std::vector<Statement> statements;
  std::vector<Label> labels;
};

struct Source {
  std::string text;  // without comments, its lines kept; the views of the tree point into it
  std::vector<Declaration> variables;
  std::vector<FunctionSource> functions;
};

// Throws SourceError.
std::unique_ptr<Source> read_source(std::string_view text);

}  // namespace software_driver::ptx
