// Decides whether a call fails because a test asked for it.
#include "machine/faults.hpp"

#include "machine/json.hpp"

namespace software_driver {

bool matches(std::string_view rule, Fn function) {
  return rule == "*" || rule == info(function).base || rule == info(function).symbol;
}

std::optional<CUresult> Faults::next(Fn function) {
  std::optional<CUresult> code;
  for (FaultRule& rule : rules) {
    if (!matches(rule.function, function)) {
      continue;
    }
    const bool fires = rule.when == FaultRule::When::nth ? rule.remaining > 0 && --rule.remaining == 0
                       : rule.when == FaultRule::When::by_chance
                           ? std::generate_canonical<double, 53>(rule.random) < rule.probability
                           : true;
    rule.fired += fires ? 1 : 0;
    if (fires && !code) {
      code = rule.code;
    }
  }
  return code;
}

std::string faults_json(const Faults& faults) {
  JsonWriter json;
  json.begin_object().members("simulated", true, "context_limit", faults.context_limit);
  json.key("rules").array(faults.rules, [&](const FaultRule& rule) {
    constexpr const char* when[] = {"nth", "every", "by chance"};
    json.object("function", rule.function, "code", static_cast<int>(rule.code), "when",
                when[static_cast<std::size_t>(rule.when)], "remaining", rule.remaining, "fired", rule.fired);
  });
  return json.end_object().text();
}

}  // namespace software_driver
