"""Writes the functions that take a stream or use the default stream, from the driver's header.

    python make_stream_functions.py COMPILER INCLUDE OUT

Functions with a variant whose default stream is the calling thread's own are those that use a stream. The header names
each variant: NAME_ptsz takes a stream, NAME_ptds uses the default stream. COMPILER may be several words.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Functions that contexts.cpp and streams.cpp define, in both variants.
BY_HAND = {"cuStreamGetCtx", "cuStreamGetCtx_v2", "cuGraphInstantiateWithParams"}
# The beginnings of names of functions that do not put work into a stream.
QUESTIONS = (
    "cuStreamGet",
    "cuStreamIs",
    "cuStreamSetAttribute",
    "cuStreamCopy",
    "cuStreamBegin",
    "cuStreamEnd",
    "cuStreamUpdate",
)


def declarations(compiler: list[str], include: str) -> dict[str, list[str]]:
    """Each function of the header with its parameters."""
    command = [*compiler, "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", f"{include}/cuda.h"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"CUresult\s+(cu\w+)\s*\(([^()]*)\)", text)
    return {name: [" ".join(parameter.split()) for parameter in parameters.split(",")] for name, parameters in found}


def name_of(parameter: str) -> str:
    match = re.search(r"(\w+)(\[\])?$", parameter)
    assert match is not None, parameter
    return match[1]


def stream_function(name: str, parameters: list[str], suffix: str) -> str:
    names = [name_of(parameter) for parameter in parameters]
    streams = [name_of(parameter) for parameter in parameters if re.fullmatch(r"CUstream \w+", parameter)]
    is_threads = "true" if suffix else "false"
    kind = "question" if name.startswith(QUESTIONS) else "work"
    call = f"return real.{name}({', '.join(names)});"
    if not streams:  # the stream is in the configuration of a launch
        [configuration] = [
            name_of(parameter) for parameter in parameters if parameter.startswith("const CUlaunchConfig")
        ]
        test = f"{configuration} == nullptr || is_ordinary({configuration}->hStream, {is_threads})"
        given = ["&changed" if name == configuration else name for name in names]
        body = (
            f"return on_stream({configuration}->hStream, {is_threads}, Use::{kind}, [&](CUstream actual) {{\n"
            f"    CUlaunchConfig changed = *{configuration};\n    changed.hStream = actual;\n"
            f"    return real.{name}({', '.join(given)});\n  }});"
        )
    else:
        first = streams[0]
        test = " && ".join(f"is_ordinary({stream}, {is_threads})" for stream in streams)
        others = "".join(
            f"    const CUstream other = actual_stream({stream}, {is_threads});\n" for stream in streams[1:]
        )
        given = ["actual" if given == first else "other" if given in streams else given for given in names]
        body = (
            f"return on_stream({first}, {is_threads}, Use::{kind}, [&](CUstream actual) {{\n{others}"
            f"    return real.{name}({', '.join(given)});\n  }});"
        )
    head = f"INTERPOSE_API CUresult {name}{suffix}({', '.join(parameters)})"
    # A function of its own: the registers that it saves cost a launch more than the test.
    slow = (
        f"[[gnu::noinline, gnu::cold]] static CUresult slow_{name}{suffix}({', '.join(parameters)}) {{\n  {body}\n}}\n"
    )
    otherwise = f"return slow_{name}{suffix}({', '.join(names)});"
    return f"{slow}{head} {{\n  if ({test}) [[likely]] {{\n    {call}\n  }}\n  {otherwise}\n}}\n"


def asynchronous(name: str, parameters: list[str], declared: Mapping[str, list[str]]) -> str | None:
    """The function that does the same in a stream, if there is one."""
    base = name.removesuffix("_v2")
    candidates = (f"{base}Async_v2", f"{base}Async")
    return next((other for other in candidates if declared.get(other, [])[:-1] == parameters), None)


def default_stream_function(name: str, parameters: list[str], suffix: str, declared: Mapping[str, list[str]]) -> str:
    names = ", ".join(name_of(parameter) for parameter in parameters)
    head = f"INTERPOSE_API CUresult {name}{suffix}({', '.join(parameters)})"
    call = f"real.{name}({names})"
    if not suffix:
        return (
            f"{head} {{\n  if (!watches()) [[likely]] {{\n    return {call};\n  }}\n"
            f"  return on_stream(nullptr, false, Use::work, [&](CUstream) {{ return {call}; }});\n}}\n"
        )
    as_is = f"[&] {{ return real.{name}{suffix}({names}); }}"
    other = asynchronous(name, parameters, declared)
    if other is None:
        return f"{head} {{\n  return in_null_stream([&](CUstream) {{ return {call}; }}, {as_is});\n}}\n"
    waits = "false" if name.startswith(("cuMemset", "cuMemcpyDtoD")) else "true"
    return (
        f"{head} {{\n  return in_stream_of_thread({waits}, "
        f"[&](CUstream actual) {{ return real.{other}({names}, actual); }}, {as_is});\n}}\n"
    )


def main(compiler: str, include: str, out: str) -> None:
    declared = declarations(compiler.split(";"), include)
    symbols: list[str] = []
    functions: list[str] = []
    for full, parameters in declared.items():
        match = re.fullmatch(r"(cu\w+?)(_pt[sd][sz])", full)
        if match is None or match[1] in BY_HAND:
            continue
        name, suffix = match[1], match[2]
        for variant in ("", suffix):
            symbols.append(name + variant)
            if suffix == "_ptsz":
                functions.append(stream_function(name, parameters, variant))
            else:
                functions.append(default_stream_function(name, parameters, variant, declared))
    rows = "".join(f"INTERPOSE_FUNCTION({symbol})\n" for symbol in symbols)
    Path(out, "stream_functions.inc").write_text(f"{''.join(functions)}")
    Path(out, "stream_functions.def").write_text(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
