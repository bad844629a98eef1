// Exports functions under the names that a public header declares.
#pragma once

namespace software_driver {

// The type of a function without its default arguments, which a declaration may not repeat.
template <class Function>
struct WithoutDefaults;
template <class Result, class... Arguments>
struct WithoutDefaults<Result(Arguments...)> {
  using Type = Result(Arguments...);
};

}  // namespace software_driver

// Exports a function that is `target`. The loader asks which address the name stands for before anything is
// initialised, a sanitizer's own state included.
#define SOFTWARE_DRIVER_EXPORT(symbol, type, ...)                                                                  \
  extern "C" {                                                                                                     \
  __attribute__((no_sanitize("address", "thread", "undefined"), used)) static decltype(&type) resolve_##symbol() { \
    return __VA_ARGS__;                                                                                            \
  }                                                                                                                \
  __attribute__((visibility("default"),                                                                            \
                 ifunc("resolve_" #symbol))) software_driver::WithoutDefaults<decltype(type)>::Type symbol;        \
  }
