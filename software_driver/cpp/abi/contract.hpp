// What the driver promises of each function and demands of its callers, as `functions.def` says. The frame of every
// call (calls/entry.hpp) checks it, the page of the documentation prints it, and the recorder asks a card.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "abi/abi.hpp"
#include "abi/functions.hpp"

namespace software_driver {

// What one argument has to be; anything else is CUDA_ERROR_INVALID_VALUE. `index` counts the arguments from 0.
struct Rule {
  enum class Kind : std::uint8_t { flags, single, range, implies };
  Kind kind = Kind::flags;
  std::uint8_t index = 0;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  int from = 0;          // of drivers of this version or newer,
  int before = INT_MAX;  // and older than this one
};

// The reason why the driver does not do what a header adds.
enum class Lack : std::uint8_t {
  compilers,            // no library compiles PTX: there is none to load early, or to switch off
  device_updates,       // kernels that are executed do not change graphs
  domain_memory,        // memory has no locality domain, and a location that names one answers NOT_SUPPORTED
  external_devices,     // nothing outside of the machine can fail
  fabric,               // memory goes to other processes by descriptors and handles
  host_memory,          // cuMemCreate gives no memory of the host, as the attributes of the device say
  identity,             // the numbers of a card on its bus were not recorded
  lazy_loading,         // functions are loaded with their module, and cuModuleGetLoadingMode says so
  multicast,            // multicast objects are absent, as the attribute of the device says
  node_contexts,        // only kernels, copies and fills of a graph have contexts
  packed_tensors,       // no executed kernel reads a tensor map, and maps of packed elements are checked in part
  per_block_memory,     // the limit is refused as unsupported
  preferred_clusters,   // the attribute of a launch is refused as unsupported
  recorded_otherwise,   // a card with a newer driver does not do it either (tests/hardware)
  shared_memory_modes,  // no card has oversized shared memory, and setting the attribute is refused
  tile_ir               // modules are PTX and machine code
};

// What a call does to captures that are under way.
enum class InCapture : std::uint8_t {
  safe,
  about,    // likewise, and a stream whose capture is invalid does not refuse it
  joining,  // it draws its stream into the capture of its event, and invalidates what cannot be drawn in, in every mode
  whole,    // it orders or awaits a whole context: it invalidates the captures of its streams, in every mode
  awaited,  // likewise, and that of the event that the context would wait for
  own,      // asked of a stream that is capturing, it invalidates that capture, in every mode
  beside,   // potentially unsafe, unless its stream captures it
  unsafe    // potentially unsafe: it disturbs every capture that the thread's mode protects
};

struct Contract {
  std::array<Rule, 5> rules{};
  std::size_t rule_count = 0;
  std::uint32_t nulls = 0;      // pointers that may be null; no other may
  std::uint32_t needed = 0;     // handles and untyped pointers that must not be null; every other may
  std::uint32_t host_ns = 100;  // of virtual time that a call takes the host; assumed where the row does not say
  InCapture in_capture = InCapture::safe;
  bool is_early = false;           // works before cuInit
  bool in_callback = false;        // allowed inside host functions
  bool needs_context = false;      // a context must be current to the thread
  bool takes_current = false;      // a null context means the current one
  bool dies_with_context = false;  // what it makes is gone with the context that was current

  constexpr Contract early() const { return in_callbacks().set<&Contract::is_early>(); }
  constexpr Contract context() const { return set<&Contract::needs_context>(); }
  constexpr Contract or_current() const { return set<&Contract::takes_current>(); }
  constexpr Contract in_callbacks() const { return set<&Contract::in_callback>(); }
  constexpr Contract owned() const { return set<&Contract::dies_with_context>(); }
  constexpr Contract about_captures() const { return set<&Contract::in_capture>(InCapture::about); }
  constexpr Contract unsafe() const { return set<&Contract::in_capture>(InCapture::unsafe); }
  constexpr Contract unsafe_beside() const { return set<&Contract::in_capture>(InCapture::beside); }
  constexpr Contract disturbs_own() const { return set<&Contract::in_capture>(InCapture::own); }
  constexpr Contract disturbs_joining() const { return set<&Contract::in_capture>(InCapture::joining); }
  constexpr Contract disturbs_awaited() const { return set<&Contract::in_capture>(InCapture::awaited); }
  constexpr Contract disturbs_whole() const { return set<&Contract::in_capture>(InCapture::whole); }
  // A median of docs/appendix/hardware-facts.md.
  constexpr Contract takes_ns(std::uint32_t ns) const { return set<&Contract::host_ns>(ns); }
  template <class... Index>
  constexpr Contract null(Index... index) const {
    return set<&Contract::nulls>((nulls | ... | (1U << index)));
  }
  template <class... Index>
  constexpr Contract need(Index... index) const {
    return set<&Contract::needed>((needed | ... | (1U << index)));
  }
  // Sentences of the header about the function, by their numbers in tests/hardware/recorder/sentences.py, which tries
  // them. What a sentence says beyond this table is in the body of the function.
  template <class... Number>
  constexpr Contract says(Number...) const {
    return *this;
  }
  // Versions whose header changes its text about the function (compare_headers.py): into other words; into something
  // that the driver does from that version on; or by something that the driver does not do, and why.
  template <class... Version>
  constexpr Contract reworded(Version...) const {
    return *this;
  }
  template <class... Version>
  constexpr Contract follows(Version...) const {
    return *this;
  }
  template <class... Version>
  constexpr Contract lacks(Lack, Version...) const {
    return *this;
  }
  constexpr Contract flags(unsigned index, std::uint64_t mask) const { return rule(Rule::Kind::flags, index, mask, 0); }
  // At most one bit of these.
  constexpr Contract single(unsigned index, std::uint64_t mask) const {
    return rule(Rule::Kind::single, index, mask, 0);
  }
  // All of these bits where one of those is set.
  constexpr Contract implies(unsigned index, std::uint64_t those, std::uint64_t these) const {
    return rule(Rule::Kind::implies, index, those, these);
  }
  constexpr Contract range(unsigned index, std::uint64_t low, std::uint64_t high) const {
    return rule(Rule::Kind::range, index, low, high);
  }
  // Of the last rule.
  constexpr Contract from(int version) const { return of_last<&Rule::from>(version); }
  constexpr Contract before(int version) const { return of_last<&Rule::before>(version); }

 private:
  template <auto member, class Value = bool>
  constexpr Contract set(Value value = true) const {
    Contract changed = *this;
    changed.*member = value;
    return changed;
  }
  template <auto member>
  constexpr Contract of_last(int version) const {
    Contract changed = *this;
    changed.rules[rule_count - 1].*member = version;
    return changed;
  }
  constexpr Contract rule(Rule::Kind kind, unsigned index, std::uint64_t low, std::uint64_t high) const {
    Contract changed = set<&Contract::rule_count>(rule_count + 1);
    changed.rules[rule_count] = {kind, static_cast<std::uint8_t>(index), low, high, 0, INT_MAX};
    return changed;
  }
};

inline constexpr Contract contracts[] = {
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) \
  Contract {}                                              \
  __VA_ARGS__,
#include "abi/functions.def"
#undef SOFTWARE_DRIVER_FUNCTION
};

constexpr const Contract& contract(Fn function) { return contracts[static_cast<std::size_t>(function)]; }

// Pointers that the caller must give unless the contract says otherwise: to functions, and to all that has a size.
template <class T>
inline constexpr bool has_size = requires { sizeof(T); };
template <class T>
inline constexpr bool is_needed = false;
template <class T>
inline constexpr bool is_needed<T*> = std::is_function_v<T> || (!std::is_void_v<T> && has_size<T>);

// An argument of a call as a number, and back. Of structures it is the address: no rule says anything of them.
template <class Argument>
inline constexpr bool is_number = std::is_integral_v<Argument> || std::is_enum_v<Argument>;
template <class Argument>
std::uint64_t number_of_argument(const Argument& argument) {
  if constexpr (is_number<Argument>) {
    return static_cast<std::make_unsigned_t<Argument>>(argument);
  } else if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<std::uint64_t>(argument);
  } else {
    return reinterpret_cast<std::uint64_t>(&argument);
  }
}
template <class Argument>
Argument argument_of(std::uint64_t number) {
  if constexpr (is_number<Argument>) {
    return static_cast<Argument>(number);
  } else if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<Argument>(number);
  } else {
    return *reinterpret_cast<const Argument*>(number);
  }
}

// The arguments of a call as numbers, and what must not be null among them.
struct Arguments {
  const std::uint64_t* numbers;
  std::uint32_t needed;
};

constexpr std::uint32_t needed_of(Fn function, std::initializer_list<bool> is_needed) {
  std::uint32_t mask = 0;
  std::uint32_t bit = 1;
  for (const bool one : is_needed) {
    mask |= one ? bit : 0;
    bit <<= 1;
  }
  return (mask & ~contract(function).nulls) | contract(function).needed;
}

constexpr bool is_allowed(const Rule& rule, std::uint64_t value) {
  switch (rule.kind) {
    case Rule::Kind::flags:
      return (value & ~rule.low) == 0;
    case Rule::Kind::single:
      return std::popcount(value & rule.low) <= 1;
    case Rule::Kind::range:
      return rule.low <= value && value <= rule.high;
    case Rule::Kind::implies:
      return (value & rule.low) == 0 || (value & rule.high) == rule.high;
  }
  return true;
}

constexpr bool fits(Fn function, const Arguments& arguments, int version) {
  for (std::uint32_t i = 0, left = arguments.needed; left != 0; ++i, left >>= 1) {
    if ((left & 1) != 0 && arguments.numbers[i] == 0) {
      return false;
    }
  }
  const Contract& wanted = contract(function);
  return std::all_of(wanted.rules.begin(), wanted.rules.begin() + wanted.rule_count, [&](const Rule& rule) {
    return version < rule.from || version >= rule.before || is_allowed(rule, arguments.numbers[rule.index]);
  });
}

}  // namespace software_driver
