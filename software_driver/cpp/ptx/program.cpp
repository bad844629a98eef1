// Decodes the tree of a PTX text into instructions that warps execute.
#include "ptx/program.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "ptx/block.hpp"
#include "ptx/run.hpp"

namespace software_driver::ptx {
namespace {

constexpr KnownInstruction all_known[] = {
#define SOFTWARE_DRIVER_EXACT(name, variants) {name, variants, true},
#define SOFTWARE_DRIVER_APPROXIMATE(name, variants) {name, variants, false},
#include "ptx/instructions.def"
#undef SOFTWARE_DRIVER_EXACT
#undef SOFTWARE_DRIVER_APPROXIMATE
};

// An instruction, or a part of one, that is not known.
struct Unknown {};

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool is_blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!is_blank) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  return line;
}

bool is_float_type(Type type) {
  return type == Type::f16 || type == Type::f16x2 || type == Type::bf16 || type == Type::bf16x2 || type == Type::f32 ||
         type == Type::f64;
}
bool is_signed_type(Type type) {
  return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64;
}

class Decoder {
 public:
  Decoder(const Source& source, Program& program) : source_(source), program_(program) {}

  void decode() {
    // Only definitions count, wherever they stand, and the first of those with one name: a text may be several in a
    // row.
    for (const bool is_extern : {true, false}) {
      for (const Declaration& variable : source_.variables) {
        if (variable.is_extern == is_extern) {
          add_variable(variable, variable.name);
        }
      }
    }
    std::vector<const FunctionSource*> defined;
    for (const FunctionSource& function : source_.functions) {
      if (function.has_body && !numbers_.contains(function.name)) {
        numbers_[function.name] = static_cast<std::uint32_t>(program_.functions.size());
        Function& made = program_.functions.emplace_back();
        made.name = function.name;
        made.is_entry = function.is_entry;
        defined.push_back(&function);
      }
    }
    for (const FunctionSource* function : defined) {
      decode_function(*function);
    }
  }

 private:
  struct Home {
    Place place = 0;
    Type type = Type::none;
    std::uint8_t width = 4;
  };
  void add_variable(const Declaration& declared, std::string_view name) {
    ProgramVariable made;
    made.name = name;
    made.space = declared.space;
    made.size = declared.has_size ? declared.bytes() : 0;
    made.alignment = std::max(1u, declared.alignment);
    made.is_dynamic = declared.space == Space::shared && (!declared.has_size || declared.is_extern);
    made.is_extern = declared.is_extern && declared.space != Space::shared;
    const unsigned size = std::max(1u, size_of(declared.type));
    for (const InitialValue& value : declared.values) {
      if (!value.symbol.empty()) {
        made.addresses.push_back({made.initial.size(), std::string(value.symbol), value.bits});
      }
      made.initial.append(reinterpret_cast<const char*>(&value.bits), std::min<std::size_t>(size, 8));
    }
    variables_[declared.name] = static_cast<std::uint32_t>(program_.variables.size());
    program_.variables.push_back(std::move(made));
  }

  void decode_function(const FunctionSource& function) {
    function_ = &program_.functions[numbers_[function.name]];
    registers_.clear();
    indexed_.clear();
    locals_.clear();
    parameters_.clear();
    own_variables_.clear();
    labels_.clear();
    pending_.clear();
    words_ = 0;
    predicates_ = 0;
    function_->begin = static_cast<std::uint32_t>(program_.code.size());
    try {
      declare(function);
    } catch (const Unknown&) {
      function_->unknown = "line " + std::to_string(function.line) + ": a declaration of " + function_->name;
      return;
    }
    std::vector<std::uint32_t> begins;
    for (const Statement& statement : function.statements) {
      begins.push_back(static_cast<std::uint32_t>(program_.code.size()));
      try {
        decode_statement(statement);
      } catch (const Unknown&) {
        function_->unknown = "line " + std::to_string(statement.line) + ": " + one_line(statement.text);
        return;
      }
    }
    begins.push_back(static_cast<std::uint32_t>(program_.code.size()));
    Instruction& last = add(function.statements.empty() ? function.line : function.statements.back().line);
    last.flow = Flow::give_back;
    function_->end = static_cast<std::uint32_t>(program_.code.size());
    for (const Label& label : function.labels) {
      labels_[label.name] = begins[label.statement];
    }
    resolve(function);
    function_->frame_words = static_cast<std::uint32_t>((words_ + warp_lanes - 1) / warp_lanes * warp_lanes);
  }

  // Branches name labels by their number until all are known.
  void resolve(const FunctionSource& function) {
    for (std::uint32_t at = function_->begin; at < function_->end; ++at) {
      Instruction& instruction = program_.code[at];
      if (instruction.flow == Flow::branch) {
        instruction.value = begin_of(pending_[instruction.value], instruction.line);
      } else if (instruction.flow == Flow::table) {
        const std::string_view name = pending_[instruction.extra];
        const auto label = std::ranges::find(function.labels, name, &Label::name);
        auto& table = program_.tables.emplace_back();
        instruction.extra = static_cast<std::uint32_t>(program_.tables.size() - 1);
        if (label != function.labels.end()) {
          for (const std::string_view target : label->targets) {
            table.push_back(begin_of(target, instruction.line));
          }
        }
      }
    }
    pending_.clear();
  }

  std::uint32_t begin_of(std::string_view label, std::uint32_t line) {
    const auto found = labels_.find(label);
    if (found == labels_.end()) {
      function_->unknown = "line " + std::to_string(line) + ": there is no label " + std::string(label);
      return function_->begin;
    }
    return found->second;
  }

  static std::uint8_t width_of(Type type) { return static_cast<std::uint8_t>(std::max(2u, size_of(type))); }

  Place take_words(unsigned count) {
    const auto place = static_cast<Place>(words_);
    words_ += count;
    return place;
  }
  // Registers begin at whole lines of lanes; predicates take single words of a line of their own.
  Place take_register(Type type) {
    if (type == Type::pred) {
      if (predicates_ % warp_lanes == 0) {
        predicate_line_ = take_words(warp_lanes);
      }
      return predicate_line_ + static_cast<Place>(predicates_++ % warp_lanes);
    }
    if (type == Type::b128) {
      throw Unknown{};
    }
    return take_words(size_of(type) == 8 ? 2 * warp_lanes : warp_lanes);
  }

  void declare(const FunctionSource& function) {
    for (const Register& declared : function.registers) {
      if (declared.type == Type::b128) {
        continue;  // what uses it is not known
      }
      if (declared.count == 0) {
        registers_[declared.name] = {take_register(declared.type), declared.type, width_of(declared.type)};
        continue;
      }
      std::vector<Place> places;
      for (unsigned i = 0; i < declared.count; ++i) {
        places.push_back(take_register(declared.type));
      }
      indexed_.push_back({declared.name, std::move(places), declared.type, width_of(declared.type)});
    }
    std::uint32_t local = 0;
    const auto place_local = [&](const Declaration& declared) {
      const std::uint32_t alignment = std::max(1u, declared.alignment);
      local = (local + alignment - 1) / alignment * alignment;
      const Parameter place{local, static_cast<std::uint32_t>(declared.bytes())};
      local += place.size;
      locals_[declared.name] = place;
      return place;
    };
    std::uint32_t offset = 0;
    for (const Declaration& declared : function.parameters) {
      if (function.is_entry) {
        const std::uint32_t alignment = std::max(1u, declared.alignment);
        offset = (offset + alignment - 1) / alignment * alignment;
        const Parameter place{offset, static_cast<std::uint32_t>(declared.bytes())};
        parameters_[declared.name] = place;
        function_->parameters.push_back(place);
        offset += place.size;
      } else {
        function_->parameters.push_back(place_local(declared));
      }
    }
    function_->parameter_bytes = offset;
    for (const Declaration& declared : function.results) {
      function_->results.push_back(place_local(declared));
    }
    for (const Declaration& declared : function.variables) {
      if (declared.space == Space::local || declared.space == Space::parameter) {
        // Names such as param0 stand in many blocks of one function; each use follows its declaration.
        const auto known = locals_.find(declared.name);
        if (known == locals_.end() || known->second.size < declared.bytes()) {
          place_local(declared);
        }
      } else {
        add_variable(declared, declared.name);
        own_variables_[declared.name] = static_cast<std::uint32_t>(program_.variables.size() - 1);
      }
    }
    function_->local_bytes = local;
  }

  Instruction& add(std::uint32_t line) {
    Instruction& made = program_.code.emplace_back();
    made.line = line;
    return made;
  }

  const Home* find_register(std::string_view name) {
    if (const auto found = registers_.find(name); found != registers_.end()) {
      return &found->second;
    }
    const auto digits = name.find_last_not_of("0123456789") + 1;
    if (digits >= name.size()) {
      return nullptr;
    }
    for (const auto& indexed : indexed_) {
      if (indexed.prefix == name.substr(0, digits)) {
        const unsigned long number = std::strtoul(std::string(name.substr(digits)).c_str(), nullptr, 10);
        if (number < indexed.places.size()) {
          return &(registers_[name] = {indexed.places[number], indexed.type, indexed.width});
        }
      }
    }
    return nullptr;
  }

  // A constant with the same value in all lanes.
  Place constant(std::uint64_t bits, bool is_wide) {
    const auto key = std::make_pair(bits, is_wide);
    if (const auto found = constants_.find(key); found != constants_.end()) {
      return found->second;
    }
    return constants_[key] = add_constant(bits, is_wide);
  }
  Place add_constant(std::uint64_t bits, bool is_wide) {
    const auto at = static_cast<Place>(program_.constants.size());
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      program_.constants.push_back(static_cast<std::uint32_t>(bits));
      if (is_wide) {
        program_.constants.push_back(static_cast<std::uint32_t>(bits >> 32));
      }
    }
    return ~at;
  }

  Place temporary(bool is_wide) { return take_words(is_wide ? 2 * warp_lanes : warp_lanes); }

  std::uint64_t number_of(const Operand& operand, Type type) {
    if (operand.kind == Operand::Kind::integer) {
      if (is_float_type(type)) {
        throw Unknown{};
      }
      return operand.bits;
    }
    if (operand.kind == Operand::Kind::single) {
      return type == Type::f64 ? std::bit_cast<std::uint64_t>(static_cast<double>(
                                     std::bit_cast<float>(static_cast<std::uint32_t>(operand.bits))))
                               : operand.bits;
    }
    const auto value = std::bit_cast<double>(operand.bits);
    return type == Type::f32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value)) : operand.bits;
  }

  // The place of an operand that is read as a type. May add instructions that bring it there.
  Place in(const Operand& operand, Type type, std::uint32_t line) {
    const bool is_wide = size_of(type) == 8;
    switch (operand.kind) {
      case Operand::Kind::integer:
      case Operand::Kind::single:
      case Operand::Kind::real:
        if (type == Type::pred) {
          return constant(operand.bits != 0 ? ~0u : 0, false);
        }
        return constant(is_wide ? number_of(operand, type) : number_of(operand, type) & mask_of(type), is_wide);
      case Operand::Kind::name:
        break;
      default:
        throw Unknown{};
    }
    if (operand.bits == 0) {
      if (const Home* home = find_register(operand.name)) {
        if ((home->type == Type::pred) != (type == Type::pred)) {
          throw Unknown{};
        }
        if (type == Type::pred || (home->width == 8) == is_wide) {
          return home->place;
        }
        if (is_wide) {
          throw Unknown{};
        }
        const Place place = temporary(false);
        Words none({"narrow"});
        Instruction& made = add(line);
        made.run = warp_operation("narrow", none, type, made);
        made.a = home->place;
        made.to = place;
        return place;
      }
      if (operand.name.starts_with('%')) {
        Instruction made;
        made.line = line;
        made.run = special_register(operand.name, made);
        if (made.run == nullptr) {
          throw Unknown{};
        }
        made.width = is_wide ? 8 : 4;
        made.to = temporary(is_wide);
        program_.code.push_back(made);
        return made.to;
      }
      if (operand.name == "WARP_SZ") {
        return constant(warp_lanes, is_wide);
      }
    }
    return address_of(operand.name, operand.bits, is_wide, line);
  }

  static std::uint64_t mask_of(Type type) {
    const unsigned size = size_of(type);
    return size >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * std::max(1u, size))) - 1;
  }

  // The address of a variable or function.
  Place address_of(std::string_view name, std::uint64_t addend, bool is_wide, std::uint32_t line) {
    if (const auto local = locals_.find(name); local != locals_.end()) {
      Words none({"local"});
      Instruction made;
      made.line = line;
      made.run = memory_operation("local", none, made);
      made.offset = static_cast<std::int64_t>(local->second.offset + addend);
      made.width = is_wide ? 8 : 4;
      made.to = temporary(is_wide);
      program_.code.push_back(made);
      return made.to;
    }
    if (const auto parameter = parameters_.find(name); parameter != parameters_.end()) {
      return constant(parameter->second.offset + addend, is_wide);
    }
    if (const auto function = numbers_.find(name); function != numbers_.end()) {
      const Place place = add_constant(0, is_wide);
      program_.relocations.push_back({place, function->second, true, addend, is_wide});
      function_->callees.push_back(function->second);
      return place;
    }
    const std::uint32_t variable = variable_of(name);
    const Place place = add_constant(0, is_wide);
    program_.relocations.push_back({place, variable, false, addend, is_wide});
    return place;
  }

  std::uint32_t variable_of(std::string_view name) {
    auto found = own_variables_.find(name);
    if (found == own_variables_.end()) {
      found = variables_.find(name);
      if (found == variables_.end()) {
        throw Unknown{};
      }
    }
    if (program_.variables[found->second].space == Space::shared) {
      function_->shared.push_back(found->second);
    }
    return found->second;
  }

  // The place of a register that is written. `width` becomes the register's.
  Place out(const Operand& operand, Type type, std::uint8_t* width = nullptr) {
    if (operand.kind != Operand::Kind::name) {
      throw Unknown{};
    }
    return out(operand.name, type, width);
  }
  Place out(std::string_view name, Type type, std::uint8_t* width = nullptr) {
    if (name == "_") {
      return no_place;
    }
    const Home* home = find_register(name);
    if (home == nullptr || (home->type == Type::pred) != (type == Type::pred)) {
      throw Unknown{};
    }
    if (width != nullptr) {
      *width = home->width;
    } else if (type != Type::pred && (home->width == 8) != (size_of(type) == 8)) {
      throw Unknown{};
    }
    return home->place;
  }

  void set_predicate(Instruction& instruction, const Statement& statement) {
    if (statement.predicate.empty()) {
      return;
    }
    const Home* home = find_register(statement.predicate);
    if (home == nullptr || home->type != Type::pred) {
      throw Unknown{};
    }
    instruction.predicate = home->place;
    instruction.negated = statement.negated;
  }

  // An address: its base register, or where a variable is.
  void set_address(Instruction& instruction, const Operand& operand, std::uint32_t line) {
    if (operand.kind != Operand::Kind::address) {
      throw Unknown{};
    }
    instruction.offset = static_cast<std::int64_t>(operand.bits);
    if (operand.name.empty()) {
      return;
    }
    if (const Home* home = find_register(operand.name)) {
      instruction.a = home->place;
      instruction.is_wide_address = home->width == 8;
      return;
    }
    if (instruction.space == Space::parameter || instruction.space == Space::local) {
      if (const auto local = locals_.find(operand.name); local != locals_.end()) {
        instruction.space = Space::local;
        instruction.is_frame_relative = true;
        instruction.offset += local->second.offset;
        return;
      }
      if (const auto parameter = parameters_.find(operand.name); parameter != parameters_.end()) {
        instruction.offset += parameter->second.offset;
        return;
      }
      throw Unknown{};
    }
    instruction.a = address_of(operand.name, 0, true, line);
    instruction.is_wide_address = true;
  }

  static Space take_space(Words& words) {
    constexpr std::pair<std::string_view, Space> spaces[] = {
        {"global", Space::global},          {"shared", Space::shared},
        {"shared::cta", Space::shared},     {"local", Space::local},
        {"const", Space::constant},         {"param", Space::parameter},
        {"param::entry", Space::parameter}, {"param::func", Space::parameter}};
    for (const auto& [word, space] : spaces) {
      if (words.take(word)) {
        return space;
      }
    }
    return Space::generic;
  }
  // Words that say how fast or how strictly memory is reached: what they ask for always holds here.
  static void take_orders(Words& words) {
    constexpr std::string_view all[] = {"weak",
                                        "relaxed",
                                        "acquire",
                                        "release",
                                        "acq_rel",
                                        "sc",
                                        "volatile",
                                        "mmio",
                                        "cta",
                                        "gpu",
                                        "sys",
                                        "cluster",
                                        "nc",
                                        "ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "unified",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::evict_last",
                                        "L2::evict_normal",
                                        "L2::evict_first",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "L2::cache_hint",
                                        "evict_normal",
                                        "evict_first",
                                        "evict_last",
                                        "evict_unchanged",
                                        "no_allocate"};
    for (const std::string_view word : all) {
      words.take(word);
    }
  }

  void need(const Statement& statement, std::size_t least, std::size_t most) const {
    if (statement.operands.size() < least || statement.operands.size() > most) {
      throw Unknown{};
    }
  }

  void finish(const Statement& statement, const Words& words, Instruction& instruction) {
    if (instruction.flow == Flow::next && instruction.run == nullptr) {
      throw Unknown{};
    }
    if (!words.is_empty()) {
      throw Unknown{};
    }
    instruction.line = statement.line;
    set_predicate(instruction, statement);
    program_.code.push_back(instruction);
  }

  void decode_statement(const Statement& statement) {
    const std::string_view name = statement.opcode.front();
    if (std::ranges::find(all_known, name, &KnownInstruction::name) == std::end(all_known)) {
      throw Unknown{};
    }
    Words words(statement.opcode);
    Instruction made;
    if (name == "bra" || name == "brx" || name == "ret" || name == "exit" || name == "trap" || name == "call") {
      return decode_flow(statement, name, words, made);
    }
    if (name == "ld" || name == "ldu" || name == "st") {
      return decode_access(statement, name, words, made);
    }
    if (name == "atom" || name == "red") {
      return decode_atomic(statement, name, words, made);
    }
    if (name == "bar" || name == "barrier") {
      return decode_barrier(statement, words, made);
    }
    if (name == "mov") {
      return decode_move(statement, words, made);
    }
    if (name == "cvt") {
      return decode_conversion(statement, words, made);
    }
    if (name == "setp" || name == "set") {
      return decode_comparison(statement, name, words, made);
    }
    if (name == "cvta" || name == "isspacep") {
      made.space = take_space(words);
      need(statement, 2, 2);
      const Type type = name == "cvta" ? words.take_type() : Type::u64;
      if (size_of(type) != 8) {
        throw Unknown{};
      }
      made.a = in(statement.operands[1], Type::u64, statement.line);
      made.to = out(statement.operands[0], name == "cvta" ? Type::u64 : Type::pred);
      made.run = memory_operation(name, words, made);
      return finish(statement, words, made);
    }
    if (name == "membar" || name == "fence" || name == "prefetch" || name == "prefetchu" || name == "griddepcontrol" ||
        name == "pmevent" || name == "discard" || name == "applypriority") {
      made.run = memory_operation("nothing", words, made);
      Words all({name});
      return finish(statement, all, made);
    }
    if (name == "createpolicy") {
      made.run = &move_64;
      made.a = constant(0, true);
      made.to = out(statement.operands.front(), Type::b64);
      Words all({name});
      return finish(statement, all, made);
    }
    if (name == "cp") {
      return decode_copy(statement, words, made);
    }
    if (name == "shfl" || name == "vote" || name == "match" || name == "redux" || name == "activemask" ||
        name == "elect" || name == "nanosleep") {
      return decode_warp(statement, name, words, made);
    }
    decode_arithmetic(statement, name, words, made);
  }

  void decode_flow(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    words.take("uni");
    if (name == "ret" || name == "exit" || name == "trap") {
      made.flow = name == "ret" ? Flow::give_back : name == "exit" ? Flow::exit : Flow::trap;
      return finish(statement, words, made);
    }
    if (name == "bra") {
      need(statement, 1, 1);
      made.flow = Flow::branch;
      made.value = static_cast<std::uint32_t>(pending_.size());
      pending_.push_back(statement.operands[0].name);
      return finish(statement, words, made);
    }
    if (name == "brx") {
      words.take("idx");
      need(statement, 2, 2);
      made.flow = Flow::table;
      made.a = in(statement.operands[0], Type::u32, statement.line);
      made.extra = static_cast<std::uint32_t>(pending_.size());
      pending_.push_back(statement.operands[1].name);
      return finish(statement, words, made);
    }
    // call (results), function, (arguments), prototype
    Call call;
    std::size_t at = 0;
    const auto list = [&](std::vector<Parameter>& into) {
      if (at < statement.operands.size() && statement.operands[at].kind == Operand::Kind::list) {
        for (const Operand& part : statement.operands[at].parts) {
          const auto local = locals_.find(part.name);
          if (local == locals_.end()) {
            throw Unknown{};
          }
          into.push_back(local->second);
        }
        ++at;
      }
    };
    list(call.results);
    if (at == statement.operands.size()) {
      throw Unknown{};
    }
    const Operand& target = statement.operands[at++];
    list(call.arguments);
    constexpr std::pair<std::string_view, External> externals[] = {{"vprintf", External::print},
                                                                   {"__assertfail", External::fail_assertion},
                                                                   {"cudaGraphSetConditional", External::set_condition},
                                                                   {"malloc", External::allocate},
                                                                   {"free", External::release}};
    const auto* external = std::ranges::find(externals, target.name, &std::pair<std::string_view, External>::first);
    made.flow = Flow::call;
    if (find_register(target.name) != nullptr) {
      made.flow = Flow::call_address;
      made.a = in(target, Type::u64, statement.line);
      function_->calls_addresses = true;
    } else if (const auto known = numbers_.find(target.name); known != numbers_.end()) {
      call.function = known->second;
      function_->callees.push_back(known->second);
    } else if (external != std::end(externals)) {
      call.external = external->second;
    } else {
      throw Unknown{};
    }
    made.extra = static_cast<std::uint32_t>(program_.calls.size());
    program_.calls.push_back(std::move(call));
    finish(statement, words, made);
  }

  void decode_access(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    made.space = take_space(words);
    take_orders(words);
    made.elements = words.take("v2") ? 2 : words.take("v4") ? 4 : words.take("v8") ? 8 : 1;
    const Type type = words.take_type();
    made.bytes = static_cast<std::uint8_t>(size_of(type));
    made.is_signed = is_signed_type(type);
    need(statement, 2, 3);  // the third is the policy of a cache
    const bool is_load = name != "st";
    const Operand& data = statement.operands[is_load ? 0 : 1];
    set_address(made, statement.operands[is_load ? 1 : 0], statement.line);
    if (made.space == Space::parameter && !is_load) {
      throw Unknown{};
    }
    const auto place = [&](const Operand& part) {
      if (is_load) {
        return out(part, type == Type::pred ? Type::none : type, &made.width);
      }
      // A store takes the lowest bytes of a register of any length.
      const Home* home = find_register(part.name);
      if (home != nullptr && part.kind == Operand::Kind::name) {
        if (home->type == Type::pred || home->width < made.bytes) {
          throw Unknown{};
        }
        made.width = home->width;
        return home->place;
      }
      made.width = made.bytes == 8 ? 8 : 4;
      return in(part, type, statement.line);
    };
    if (made.elements == 1) {
      made.to = place(data);
    } else {
      if (data.kind != Operand::Kind::vector || data.parts.size() != made.elements) {
        throw Unknown{};
      }
      std::vector<Place> places;
      std::uint8_t width = 0;
      for (const Operand& part : data.parts) {
        places.push_back(place(part));
        if (places.back() != no_place) {
          if (width != 0 && width != made.width) {
            throw Unknown{};
          }
          width = made.width;
        }
      }
      made.width = width == 0 ? made.width : width;
      made.extra = static_cast<std::uint32_t>(program_.vectors.size());
      program_.vectors.push_back(std::move(places));
    }
    if (is_load && made.width < made.bytes) {
      throw Unknown{};
    }
    made.run = memory_operation(is_load ? "ld" : "st", words, made);
    finish(statement, words, made);
  }

  void decode_atomic(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    made.space = take_space(words);
    take_orders(words);
    Words copy = words;
    const Type type = copy.take_type();
    made.run = memory_operation(name, words, made);
    const bool has_result = name == "atom";
    std::size_t at = 0;
    need(statement, has_result ? 3 : 2, 5);
    if (has_result) {
      made.to = out(statement.operands[at++], type);
    }
    set_address(made, statement.operands[at++], statement.line);
    made.b = in(statement.operands[at++], type, statement.line);
    const bool compares = std::ranges::find(statement.opcode, "cas") != statement.opcode.end();
    if (compares) {
      need(statement, at + 1, at + 2);
      made.c = in(statement.operands[at], type, statement.line);
    }
    finish(statement, words, made);
  }

  void decode_barrier(const Statement& statement, Words& words, Instruction& made) {
    words.take("cta");
    words.take("aligned");
    if (words.take("warp")) {
      words.take("sync");
      need(statement, 1, 1);
      made.flow = Flow::together;
      made.d = in(statement.operands[0], Type::b32, statement.line);
      return finish(statement, words, made);
    }
    made.flow = Flow::barrier;
    std::size_t at = 0;
    if (words.take("red")) {
      const Type type = words.take("popc") ? Type::u32 : Type::pred;
      made.value = type == Type::u32 ? barrier_counts : words.take("and") ? barrier_all : barrier_any;
      words.take("or");
      words.take_type();
      need(statement, 3, 4);
      made.to = out(statement.operands[at++], type);
      made.c = in(statement.operands.back(), Type::pred, statement.line);
      made.is_signed = statement.operands.back().negated;
    } else {
      made.value = words.take("arrive") ? barrier_arrives : barrier_waits;
      words.take("sync");
      need(statement, 1, 2);
    }
    const std::size_t last = statement.operands.size() - (made.c != no_place ? 1 : 0);
    made.a = in(statement.operands[at++], Type::u32, statement.line);
    if (at < last) {
      made.b = in(statement.operands[at], Type::u32, statement.line);
    }
    finish(statement, words, made);
  }

  void decode_move(const Statement& statement, Words& words, Instruction& made) {
    const Type type = words.take_type();
    need(statement, 2, 2);
    const Operand& to = statement.operands[0];
    const Operand& from = statement.operands[1];
    const bool splits = to.kind == Operand::Kind::vector;
    if (splits || from.kind == Operand::Kind::vector) {
      const auto& parts = splits ? to.parts : from.parts;
      const unsigned size = size_of(type);
      if (parts.empty() || size % parts.size() != 0 || size / parts.size() > 4 || size > 8) {
        throw Unknown{};
      }
      made.bytes = static_cast<std::uint8_t>(size / parts.size());
      made.width = size == 8 ? 8 : 4;
      const Type part_type = made.bytes == 4 ? Type::b32 : made.bytes == 2 ? Type::b16 : Type::b8;
      std::vector<Place> places;
      for (const Operand& part : parts) {
        places.push_back(splits ? out(part, part_type) : in(part, part_type, statement.line));
      }
      made.extra = static_cast<std::uint32_t>(program_.vectors.size());
      program_.vectors.push_back(std::move(places));
      if (splits) {
        made.a = in(from, type, statement.line);
      } else {
        made.to = out(to, type);
      }
      made.run = warp_operation(splits ? "unpack" : "pack", words, type, made);
      return finish(statement, words, made);
    }
    made.a = in(from, type, statement.line);
    made.to = out(to, type);
    made.run = warp_operation("mov", words, type, made);
    finish(statement, words, made);
  }

  void decode_conversion(const Statement& statement, Words& words, Instruction& made) {
    const bool is_tensor = std::ranges::find(statement.opcode, "tf32") != statement.opcode.end();
    const Type to = is_tensor ? Type::f32 : words.take_type();
    if (is_tensor) {
      words.take_type();
    }
    const Type from = is_tensor ? Type::none : words.take_type();
    const bool is_pair = to == Type::f16x2 || to == Type::bf16x2;
    need(statement, is_pair ? 3 : 2, is_pair ? 3 : 2);
    made.to = out(statement.operands[0], to, &made.width);
    made.a = in(statement.operands[1], is_tensor ? Type::f32 : from, statement.line);
    if (is_pair) {
      made.b = in(statement.operands[2], from, statement.line);
    }
    if (made.to == no_place || (is_float_type(to) && (made.width == 8) != (to == Type::f64))) {
      throw Unknown{};
    }
    made.run = conversion(words, to, from, made);
    finish(statement, words, made);
  }

  void decode_comparison(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    // setp.lt.and.ftz.f32, set.lt.f32.u32
    constexpr std::uint32_t as_float = 2048;
    constexpr std::uint32_t as_predicate = 8192;
    constexpr std::uint32_t negates = 16384;
    need(statement, 3, 4);
    const Operand& to = statement.operands[0];
    if (name == "set") {
      const Type result = words.take_type();
      if (result != Type::u32 && result != Type::s32 && result != Type::f32) {
        throw Unknown{};
      }
      made.value = result == Type::f32 ? as_float : 0;
      made.to = out(to, result);
    } else {
      made.value = as_predicate;
      made.to = out(to, Type::pred);
      if (!to.second.empty()) {
        made.second = out(to.second, Type::pred);
      }
    }
    const Type type = words.take_type();
    made.a = in(statement.operands[1], type, statement.line);
    made.b = in(statement.operands[2], type, statement.line);
    if (statement.operands.size() == 4) {
      made.c = in(statement.operands[3], Type::pred, statement.line);
      made.value |= statement.operands[3].negated ? negates : 0;
    }
    made.run = comparison(words, type, made);
    finish(statement, words, made);
  }

  void decode_copy(const Statement& statement, Words& words, Instruction& made) {
    if (!words.take("async")) {
      throw Unknown{};
    }
    if (words.take("commit_group") || words.take("wait_group") || words.take("wait_all")) {
      made.run = memory_operation("nothing", words, made);
      return finish(statement, words, made);
    }
    if (!(words.take("ca") || words.take("cg")) || !(words.take("shared") || words.take("shared::cta")) ||
        !words.take("global")) {
      throw Unknown{};
    }
    take_orders(words);
    need(statement, 3, 4);
    if (statement.operands[2].kind != Operand::Kind::integer) {
      throw Unknown{};
    }
    made.bytes = static_cast<std::uint8_t>(statement.operands[2].bits);
    if (made.bytes != 4 && made.bytes != 8 && made.bytes != 16) {
      throw Unknown{};
    }
    made.space = Space::shared;
    set_address(made, statement.operands[0], statement.line);
    Instruction source;
    source.space = Space::global;
    set_address(source, statement.operands[1], statement.line);
    if (source.a == no_place || !source.is_wide_address) {
      throw Unknown{};
    }
    made.b = source.a;
    if (source.offset != 0) {
      Words none({"offset"});
      Instruction sum;
      sum.line = statement.line;
      sum.a = source.a;
      sum.offset = source.offset;
      sum.to = made.b = temporary(true);
      sum.run = warp_operation("offset", none, Type::u64, sum);
      program_.code.push_back(sum);
    }
    if (statement.operands.size() == 4) {
      made.c = in(statement.operands[3], Type::u32, statement.line);
    }
    made.run = memory_operation("cp", words, made);
    finish(statement, words, made);
  }

  void decode_warp(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    const Type type = words.take_type();
    const auto& operands = statement.operands;
    if (operands.empty()) {
      throw Unknown{};
    }
    if (name == "nanosleep") {
      made.a = in(operands[0], Type::u32, statement.line);
    } else if (name == "activemask") {
      made.to = out(operands[0], Type::b32);
    } else {
      made.flow = Flow::together;
      made.d = in(operands.back(), Type::b32, statement.line);
      if (name == "shfl") {
        need(statement, 5, 5);
        made.b = in(operands[2], Type::b32, statement.line);
        made.c = in(operands[3], Type::b32, statement.line);
      } else {
        need(statement, name == "elect" ? 2 : 3, name == "elect" ? 2 : 3);
      }
      const bool is_predicate =
          name == "vote" && std::ranges::find(statement.opcode, "ballot") == statement.opcode.end();
      if (name != "elect") {
        made.a = in(operands[1], name == "vote" ? Type::pred : type, statement.line);
        made.is_signed = operands[1].negated;
      }
      made.to = out(operands[0], is_predicate ? Type::pred : Type::b32);
      if (!operands[0].second.empty()) {
        made.second = out(operands[0].second, Type::pred);
      }
    }
    made.run = warp_operation(name, words, type, made);
    if (made.run == nullptr) {
      throw Unknown{};
    }
    finish(statement, words, made);
  }

  // Instructions whose operands are registers of the type of the instruction.
  void decode_arithmetic(const Statement& statement, std::string_view name, Words& words, Instruction& made) {
    const Type type = name == "dp4a" || name == "dp2a" ? Type::b32 : words.take_type();
    const std::uint32_t line = statement.line;
    const auto& operands = statement.operands;
    need(statement, 2, 5);
    Type result = type;
    Type second = type;
    Type third = type;
    if (name == "mul" || name == "mad") {
      if (std::ranges::find(statement.opcode, "wide") != statement.opcode.end()) {
        result = size_of(type) == 4 ? Type::b64 : Type::b32;
        third = result;
      }
    } else if (name == "shl" || name == "shr" || name == "bmsk" || name == "szext") {
      second = Type::u32;
    } else if (name == "bfe") {
      second = third = Type::u32;
    } else if (name == "popc" || name == "clz" || name == "bfind") {
      result = Type::u32;
    } else if (name == "testp") {
      result = Type::pred;
    } else if (name == "selp") {
      third = Type::pred;
    } else if (name == "slct") {
      third = Type::b32;
    } else if (name == "bfi") {
      third = Type::u32;
    }
    if (!is_float_type(type)) {
      made.run = integer_operation(name, words, type);
    }
    if (made.run != nullptr) {
      const bool carries = std::ranges::find(statement.opcode, "cc") != statement.opcode.end();
      made.value = (name == "addc" || name == "subc" || name == "madc" ? 1u : 0u) | (carries ? 2u : 0u);
    }
    if (made.run == nullptr) {
      made.run = bit_operation(name, words, type);
    }
    if (made.run == nullptr) {
      made.run = float_operation(name, words, type, made);
    }
    if (made.run == nullptr && (name == "selp" || name == "slct")) {
      made.run = warp_operation(name, words, type, made);
    }
    if (name == "prmt") {
      constexpr std::string_view modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
      for (std::uint32_t i = 0; i < std::size(modes); ++i) {
        made.value = words.take(modes[i]) ? i + 1 : made.value;
      }
    }
    made.to = out(operands[0], result);
    made.a = in(operands[1], type, line);
    if (operands.size() > 2) {
      made.b = in(operands[2], second, line);
    }
    if (operands.size() > 3) {
      made.c = in(operands[3], third, line);
      made.is_signed = operands[3].negated;
    }
    if (operands.size() > 4) {
      if (name == "lop3") {
        if (operands[4].kind != Operand::Kind::integer) {
          throw Unknown{};
        }
        made.value = static_cast<std::uint32_t>(operands[4].bits);
      } else if (name == "bfi") {
        made.d = in(operands[4], Type::u32, line);
      } else {
        throw Unknown{};
      }
    }
    if (made.to == no_place) {
      throw Unknown{};
    }
    check_operands(name, operands.size());
    finish(statement, words, made);
  }

  // Each operation reads as many operands as it has.
  static void check_operands(std::string_view name, std::size_t count) {
    constexpr std::string_view one[] = {"not",  "cnot",  "neg", "abs", "popc", "clz", "bfind", "brev", "rcp",
                                        "sqrt", "rsqrt", "sin", "cos", "ex2",  "lg2", "tanh",  "testp"};
    constexpr std::string_view three[] = {"mad",  "madc", "mad24", "fma", "sad",  "bfe", "shf",
                                          "prmt", "dp4a", "dp2a",  "fns", "selp", "slct"};
    const bool is_one = std::ranges::find(one, name) != std::end(one);
    const bool is_three = std::ranges::find(three, name) != std::end(three);
    const std::size_t wanted = is_one ? 2 : is_three ? 4 : name == "lop3" || name == "bfi" ? 5 : 3;
    if (count != wanted) {
      throw Unknown{};
    }
  }

  struct IndexedRegisters {
    std::string_view prefix;
    std::vector<Place> places;
    Type type;
    std::uint8_t width;
  };

  const Source& source_;
  Program& program_;
  Function* function_ = nullptr;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;  // of functions
  std::unordered_map<std::string_view, std::uint32_t> variables_;
  std::unordered_map<std::string_view, std::uint32_t> own_variables_;  // of the function
  std::unordered_map<std::string_view, Home> registers_;
  std::vector<IndexedRegisters> indexed_;
  std::unordered_map<std::string_view, Parameter> locals_;
  std::unordered_map<std::string_view, Parameter> parameters_;
  std::unordered_map<std::string_view, std::uint32_t> labels_;
  std::vector<std::string_view> pending_;
  std::map<std::pair<std::uint64_t, bool>, Place> constants_;
  unsigned words_ = 0;
  unsigned predicates_ = 0;
  Place predicate_line_ = 0;
};

}  // namespace

const std::vector<KnownInstruction>& known_instructions() {
  static const std::vector<KnownInstruction> all(std::begin(all_known), std::end(all_known));
  return all;
}

// Functions of the device's run-time library that are programs themselves. The barrier of a grid counts in the
// workspace of a cooperative launch: the first block adds what turns the highest bit over when all others have added
// one.
constexpr std::string_view library_functions = R"(
.visible .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
.reg .b32 %r<2>;
.reg .b64 %d;
mov.u32 %r0, %envreg2;
mov.u32 %r1, %envreg1;
mov.b64 %d, {%r0, %r1};
st.param.b64 [result], %d;
ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %d;
ld.param.u64 %d, [handle];
bar.sync 0;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %tid.y;
or.b32 %r0, %r0, %r1;
mov.u32 %r1, %tid.z;
or.b32 %r0, %r0, %r1;
setp.ne.u32 %p, %r0, 0;
@%p bra DONE;
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ctaid.y;
or.b32 %r0, %r0, %r1;
mov.u32 %r1, %ctaid.z;
or.b32 %r0, %r0, %r1;
mov.u32 %r1, %nctaid.x;
mov.u32 %r2, %nctaid.y;
mul.lo.u32 %r1, %r1, %r2;
mov.u32 %r2, %nctaid.z;
mul.lo.u32 %r1, %r1, %r2;
sub.u32 %r1, 0x80000001, %r1;
setp.eq.u32 %p, %r0, 0;
selp.b32 %r3, %r1, 1, %p;
membar.gl;
atom.add.u32 %r4, [%d+4], %r3;
WAIT:
ld.volatile.u32 %r5, [%d+4];
xor.b32 %r6, %r5, %r4;
setp.ge.s32 %p, %r6, 0;
@%p bra WAIT;
DONE:
bar.sync 0;
st.param.b32 [result], 0;
ret;
}
)";

std::shared_ptr<const Program> Program::read(std::string_view text) {
  auto program = std::make_shared<Program>();
  try {
    const bool needs_library = text.find("cudaCG") != std::string_view::npos;
    const auto source =
        read_source(needs_library ? std::string(text) + std::string(library_functions) : std::string(text));
    Decoder(*source, *program).decode();
  } catch (const SourceError& error) {
    program->functions.clear();
    program->unknown = "line " + std::to_string(error.line) + ": " + error.what();
  }
  return program;
}

const Function* Program::entry(std::string_view name) const {
  for (const Function& function : functions) {
    if (function.is_entry && function.name == name) {
      return &function;
    }
  }
  return nullptr;
}

std::vector<const Function*> Program::reached(const Function& entry) const {
  std::vector<const Function*> found{&entry};
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const std::uint32_t number : found[i]->callees) {
      const Function* callee = &functions[number];
      if (std::ranges::find(found, callee) == found.end()) {
        found.push_back(callee);
      }
    }
  }
  return found;
}

std::string Program::why_not(const Function& entry) const {
  for (const Function* function : reached(entry)) {
    if (!function->unknown.empty()) {
      return function->unknown;
    }
  }
  return {};
}

}  // namespace software_driver::ptx
