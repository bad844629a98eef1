// Errors that a test asks for: the n-th call of a function, every call, or some calls by chance.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "abi/abi.hpp"
#include "abi/functions.hpp"

namespace software_driver {

struct FaultRule {
  std::string function{};
  CUresult code = CUDA_SUCCESS;
  enum class When { nth, every, by_chance } when = When::every;
  std::uint64_t remaining = 0;  // calls until the n-th
  double probability = 0;
  std::uint64_t fired = 0;
  std::mt19937_64 random{};
};

struct Faults {
  std::vector<FaultRule> rules;
  unsigned context_limit = 0;  // 0: none

  // The error that this call answers, if a rule says so.
  std::optional<CUresult> next(Fn function);
};

bool matches(std::string_view rule, Fn function);
std::string faults_json(const Faults& faults);

}  // namespace software_driver
