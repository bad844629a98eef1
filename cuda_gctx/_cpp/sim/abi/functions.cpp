// The table of functions: names, addresses, versions; and the names of errors.
#include "sim/abi/functions.hpp"

#include <map>

#include "sim/abi/abi.hpp"

namespace gctx::sim {
namespace {

constexpr FunctionInfo table[] = {
#define GCTX_SIM_FUNCTION(symbol, base, since) {#symbol, #base, since},
#include "sim/abi/functions.def"
#undef GCTX_SIM_FUNCTION
};

void* const addresses[] = {
#define GCTX_SIM_FUNCTION(symbol, base, since) reinterpret_cast<void*>(&::symbol),
#include "sim/abi/functions.def"
#undef GCTX_SIM_FUNCTION
};

using NameMap = std::multimap<std::string_view, std::size_t>;

// Oldest variant first for each base name: a multimap keeps the order in which equal keys came.
const NameMap& by_base() {
  static const NameMap map = [] {
    NameMap made;
    for (std::size_t i = 0; i < function_count; ++i) made.emplace(table[i].base, i);
    return made;
  }();
  return map;
}

const std::map<std::string_view, std::size_t>& by_symbol() {
  static const std::map<std::string_view, std::size_t> map = [] {
    std::map<std::string_view, std::size_t> made;
    for (std::size_t i = 0; i < function_count; ++i) made.emplace(table[i].symbol, i);
    return made;
  }();
  return map;
}

constexpr ErrorText errors[] = {
#define GCTX_SIM_ERROR(code, text) {code, #code, text},
#include "sim/abi/errors.def"
#undef GCTX_SIM_ERROR
};

}  // namespace

const FunctionInfo& info(Fn function) { return table[static_cast<std::size_t>(function)]; }

bool is_function_name(std::string_view name) { return by_base().contains(name) || by_symbol().contains(name); }

FoundFunction find_function(std::string_view name, int wanted, int driver_version) {
  FoundFunction found;
  const auto [first, last] = by_base().equal_range(name);
  for (auto it = first; it != last; ++it) {
    const FunctionInfo& candidate = table[it->second];
    if (candidate.since > driver_version) continue;
    if (candidate.since > wanted) {
      found.too_old_request = found.address == nullptr;
      continue;
    }
    found.address = addresses[it->second];
  }
  if (first != last) return found;
  // A full name ("cuStreamGetCtx_v2") is taken as well. Assumed: the documentation speaks of base names only.
  const auto it = by_symbol().find(name);
  if (it == by_symbol().end() || table[it->second].since > driver_version) return found;
  if (table[it->second].since > wanted) {
    found.too_old_request = true;
  } else {
    found.address = addresses[it->second];
  }
  return found;
}

const ErrorText* find_error(int code) {
  for (const ErrorText& error : errors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

int error_code(std::string_view name) {
  for (const ErrorText& error : errors) {
    if (name == error.name) return error.code;
  }
  return -1;
}

}  // namespace gctx::sim
