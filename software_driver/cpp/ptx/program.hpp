// A program: PTX that is decoded once, so that warps can execute it lane by lane.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/source.hpp"

namespace software_driver::ptx {

inline constexpr unsigned warp_lanes = 32;

// Operands are places in words: from 0 on in the frame of a function, below 0 in the constants of a kernel. A register
// of up to 32 bits takes a word for each lane, a longer one two or four; a predicate is one word, a bit for each lane.
using Place = std::int32_t;
inline constexpr Place no_place = INT32_MAX;

struct Run;
struct Instruction;
// Executes an instruction in the lanes of a mask.
using Operation = void (*)(Run& run, const Instruction& instruction);

// The ways in which the instruction pointer goes on.
enum class Flow : std::uint8_t {
  next,
  branch,
  table,  // brx.idx: one of several labels
  call,
  call_address,
  give_back,  // ret
  exit,
  trap,
  barrier,  // waits for the threads of the block
  together  // waits until the lanes of a mask are here, and executes then
};

enum class External : std::uint8_t { none, print, fail_assertion, set_condition, allocate, release };

struct Instruction {
  Operation run = nullptr;
  Flow flow = Flow::next;
  bool negated = false;
  std::uint8_t bytes = 0;     // of one element in memory
  std::uint8_t elements = 1;  // of a vector in memory
  std::uint8_t width = 4;     // bytes of a lane of the register that memory or a conversion goes to or comes from
  Space space = Space::generic;
  bool is_signed = false;
  bool is_wide_address = true;
  bool is_frame_relative = false;  // an address in the local memory of the function
  Place predicate = no_place;
  Place to = no_place;
  Place second = no_place;
  Place a = no_place;
  Place b = no_place;
  Place c = no_place;
  Place d = no_place;
  std::uint32_t value = 0;  // an immediate number: a table, a target, flags
  std::int64_t offset = 0;  // of an address
  std::uint32_t extra = 0;  // index of `calls`, `tables` or `vectors`
  std::uint32_t line = 0;
};

struct Parameter {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

struct Call {
  std::uint32_t function = 0;
  External external = External::none;
  std::vector<Parameter> arguments;  // in the local memory of the caller
  std::vector<Parameter> results;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::uint32_t begin = 0;  // in the code of the program
  std::uint32_t end = 0;
  std::uint32_t frame_words = 0;
  std::uint32_t local_bytes = 0;
  std::vector<Parameter> parameters;
  std::vector<Parameter> results;
  std::uint32_t parameter_bytes = 0;  // of an entry, whose parameters are no local memory
  std::vector<std::uint32_t> callees;
  bool calls_addresses = false;
  std::vector<std::uint32_t> shared;  // numbers of the shared variables that it names
  std::string unknown;                // why it cannot be executed: "line 12: wgmma.fence.sync.aligned;"
};

struct ProgramVariable {
  std::string name;
  Space space = Space::global;
  std::uint64_t size = 0;
  unsigned alignment = 1;
  bool is_dynamic = false;  // shared memory whose size the launch decides
  bool is_extern = false;
  std::string initial;
  struct Address {
    std::uint64_t at = 0;
    std::string symbol;
    std::uint64_t addend = 0;
  };
  std::vector<Address> addresses;  // of other variables, in its initial value
};

// An operand that is known when a kernel is bound to the variables of a module.
struct Relocation {
  Place place = 0;
  std::uint32_t variable = 0;
  bool is_function = false;  // `variable` is then the number of a function
  std::uint64_t addend = 0;
  bool is_wide = true;
};

class Program {
 public:
  // Never fails: what cannot be decoded is said of each function, or in unknown() of all of them.
  static std::shared_ptr<const Program> read(std::string_view text);

  std::vector<Instruction> code;
  std::vector<Function> functions;
  std::vector<ProgramVariable> variables;
  std::vector<std::uint32_t> constants;
  std::vector<Relocation> relocations;
  std::vector<Call> calls;
  std::vector<std::vector<std::uint32_t>> tables;
  std::vector<std::vector<Place>> vectors;
  std::string unknown;  // why nothing of it can be executed

  const Function* entry(std::string_view name) const;
  // Why a kernel cannot be executed; empty if it can.
  std::string why_not(const Function& entry) const;
  // The functions that a kernel may reach, itself first.
  std::vector<const Function*> reached(const Function& entry) const;
};

// One row of the table of known instructions.
struct KnownInstruction {
  std::string_view name;
  std::string_view variants;
  bool is_exact;  // false: the last bits may differ from a card's
};
const std::vector<KnownInstruction>& known_instructions();

}  // namespace software_driver::ptx
