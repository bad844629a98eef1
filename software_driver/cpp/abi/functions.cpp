// The table of functions: names, addresses, versions; and the names of errors.
#include "abi/functions.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "abi/abi.hpp"

namespace software_driver {
namespace {

constexpr FunctionInfo function_table[] = {
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) {#symbol, #base, since},
#include "abi/functions.def"
#undef SOFTWARE_DRIVER_FUNCTION
};

void* const addresses[] = {
#define SOFTWARE_DRIVER_FUNCTION(symbol, base, since, ...) reinterpret_cast<void*>(&::symbol),
#include "abi/functions.def"
#undef SOFTWARE_DRIVER_FUNCTION
};

constexpr FunctionInfo absent[] = {
#define SOFTWARE_DRIVER_ABSENT(symbol, base, since) {#symbol, #base, since},
#include "abi/absent.def"
#undef SOFTWARE_DRIVER_ABSENT
};

struct Exported {
  const FunctionInfo* info;
  void* address;
  void* per_thread;  // the same without a variant for threads
};

using NameMap = std::multimap<std::string_view, Exported>;

NameMap make_map(const char* FunctionInfo::* name) {
  std::vector<Exported> all;
  for (std::size_t i = 0; i < function_count; ++i) {
    all.push_back({&function_table[i], addresses[i], addresses[i]});
  }
  for (const PerThreadFunction* variant = per_thread_functions; variant->address != nullptr; ++variant) {
    all[static_cast<std::size_t>(variant->function)].per_thread = variant->address;
  }
  for (std::size_t i = 0; i < absent_count; ++i) {
    all.push_back({&absent[i], absent_addresses[i], absent_addresses[i]});
  }
  // Oldest variant first for each name: a multimap keeps the order in which equal keys came.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.info->since < b.info->since; });
  NameMap made;
  for (const Exported& one : all) {
    made.emplace(one.info->*name, one);
  }
  return made;
}

constexpr ErrorText errors[] = {
#define SOFTWARE_DRIVER_ERROR(code, text) {code, #code, text},
#include "abi/errors.def"
#undef SOFTWARE_DRIVER_ERROR
};

}  // namespace

const FunctionInfo& info(Fn function) { return function_table[static_cast<std::size_t>(function)]; }

const FunctionInfo& absent_info(std::size_t index) { return absent[index]; }

bool is_function_name(std::string_view name) {
  return std::any_of(std::begin(function_table), std::end(function_table),
                     [&](const FunctionInfo& one) { return name == one.base || name == one.symbol; });
}

FoundFunction find_function(std::string_view name, int wanted, int driver_version, bool per_thread) {
  FoundFunction found;
  const auto look_among = [&](const NameMap& names) {
    const auto [first, last] = names.equal_range(name);
    for (auto it = first; it != last; ++it) {
      const Exported& candidate = it->second;
      if (candidate.info->since > driver_version) {
        continue;
      }
      if (candidate.info->since > wanted) {
        found.too_old_request = found.address == nullptr;
        continue;
      }
      found.address = per_thread ? candidate.per_thread : candidate.address;
    }
    return first != last;
  };
  static const NameMap by_base = make_map(&FunctionInfo::base);
  static const NameMap by_symbol = make_map(&FunctionInfo::symbol);
  // A full name ("cuStreamGetCtx_v2") is taken as well. Assumed: the documentation speaks of base names only.
  if (!look_among(by_base)) {
    look_among(by_symbol);
  }
  return found;
}

const ErrorText* find_error(int code) {
  const auto* found = std::ranges::find(errors, code, &ErrorText::code);
  return found == std::end(errors) ? nullptr : found;
}

int error_code(std::string_view name) {
  const auto* found = std::ranges::find(errors, name, &ErrorText::name);
  return found == std::end(errors) ? -1 : found->code;
}

}  // namespace software_driver
