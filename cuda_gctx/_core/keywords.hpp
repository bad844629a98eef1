// A wrong keyword of a function in Cython: the message says what was meant. Cython raises TypeError before the body of
// the function runs, where its parameters are in a local `argnames`, and calls PyErr_Format. The global of that name is
// what all other calls see, and they stay as they are. Calls without a fault take no instruction more.
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <string_view>

namespace gctx::keywords {

struct NotHere {};

template <typename... Values>
void raise(NotHere, PyObject* kind, const char* format, Values... values) {
  PyErr_Format(kind, format, values...);
}

inline void raise(PyObject** const parameters[], PyObject* kind, const char* format, const char* function,
                  PyObject* keyword = nullptr) {
  if (keyword == nullptr || std::string_view(format).find("unexpected keyword") == std::string_view::npos) {
    PyErr_Format(kind, format, function, keyword);
    return;
  }
  PyObject* const names = PyList_New(0);
  for (; names != nullptr && *parameters != nullptr; ++parameters) {
    if (PyList_Append(names, **parameters) != 0) {
      break;
    }
  }
  PyObject* const arguments = PyImport_ImportModule("cuda_gctx._core.extension");
  if (names != nullptr && arguments != nullptr) {
    Py_XDECREF(PyObject_CallMethod(arguments, "refuse_keyword", "sOO", function, keyword, names));
  }
  Py_XDECREF(arguments);
  Py_XDECREF(names);
}

}  // namespace gctx::keywords

[[maybe_unused]] static constexpr gctx::keywords::NotHere argnames;
#define PyErr_Format(...) gctx::keywords::raise(argnames, __VA_ARGS__)
