// Decides whether a call fails because a test asked for it.
#include "machine/faults.hpp"

#include "machine/json.hpp"

namespace gctx::sim {

bool matches(std::string_view rule, Fn function) {
  return rule == "*" || rule == info(function).base || rule == info(function).symbol;
}

std::optional<CUresult> Faults::next(Fn function) {
  std::optional<CUresult> code;
  for (FaultRule& rule : rules) {
    if (!matches(rule.function, function)) {
      continue;
    }
    bool fires = false;
    switch (rule.when) {
      case FaultRule::When::nth:
        fires = rule.remaining > 0 && --rule.remaining == 0;
        break;
      case FaultRule::When::every:
        fires = true;
        break;
      case FaultRule::When::by_chance:
        fires = std::generate_canonical<double, 53>(rule.random) < rule.probability;
        break;
    }
    if (fires) {
      ++rule.fired;
      if (!code) {
        code = rule.code;
      }
    }
  }
  return code;
}

std::string faults_json(const Faults& faults) {
  JsonWriter json;
  json.begin_object();
  json.key("simulated").value(true);
  json.key("context_limit").value(std::uint64_t{faults.context_limit});
  json.key("rules").begin_array();
  for (const FaultRule& rule : faults.rules) {
    json.begin_object();
    json.key("function").value(rule.function);
    json.key("code").value(static_cast<std::uint64_t>(rule.code));
    json.key("when").value(rule.when == FaultRule::When::nth     ? "nth"
                           : rule.when == FaultRule::When::every ? "every"
                                                                 : "by chance");
    json.key("remaining").value(rule.remaining);
    json.key("fired").value(rule.fired);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.text();
}

}  // namespace gctx::sim
