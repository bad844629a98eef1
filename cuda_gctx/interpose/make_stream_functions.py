"""Writes the functions that take a stream or use the default stream, from the driver's header.

    python make_stream_functions.py COMPILER INCLUDE OUT

Functions with a variant whose default stream is the calling thread's own are those that use a stream. The header names
each variant: NAME_ptsz takes a stream, NAME_ptds uses the default stream. COMPILER may be several words.
"""

from __future__ import annotations

import re
import subprocess
import sys
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
    return {name: [" ".join(one.split()) for one in parameters.split(",")] for name, parameters in found}


def name_of(parameter: str) -> str:
    match = re.search(r"(\w+)(\[\])?$", parameter)
    assert match is not None, parameter
    return match[1]


def stream_function(name: str, parameters: list[str], suffix: str) -> str:
    names = [name_of(one) for one in parameters]
    streams = [name_of(one) for one in parameters if re.fullmatch(r"CUstream \w+", one)]
    is_threads = "true" if suffix else "false"
    kind = "question" if name.startswith(QUESTIONS) else "work"
    call = f"return real.{name}({', '.join(names)});"
    if not streams:  # the stream is in the configuration of a launch
        [configuration] = [name_of(one) for one in parameters if one.startswith("const CUlaunchConfig")]
        test = f"{configuration} == nullptr || is_ordinary({configuration}->hStream, {is_threads})"
        given = ["&changed" if one == configuration else one for one in names]
        body = (
            f"return on_stream({configuration}->hStream, {is_threads}, Use::{kind}, [&](CUstream actual) {{\n"
            f"    CUlaunchConfig changed = *{configuration};\n    changed.hStream = actual;\n"
            f"    return real.{name}({', '.join(given)});\n  }});"
        )
    else:
        first = streams[0]
        test = " && ".join(f"is_ordinary({one}, {is_threads})" for one in streams)
        others = "".join(f"    const CUstream other = actual_stream({one}, {is_threads});\n" for one in streams[1:])
        given = ["actual" if one == first else "other" if one in streams else one for one in names]
        body = (
            f"return on_stream({first}, {is_threads}, Use::{kind}, [&](CUstream actual) {{\n{others}"
            f"    return real.{name}({', '.join(given)});\n  }});"
        )
    head = f"INTERPOSE_API CUresult {name}{suffix}({', '.join(parameters)})"
    return f"{head} {{\n  if ({test}) [[likely]] {{\n    {call}\n  }}\n  {body}\n}}\n"


def default_stream_function(name: str, parameters: list[str], suffix: str) -> str:
    names = ", ".join(name_of(one) for one in parameters)
    head = f"INTERPOSE_API CUresult {name}{suffix}({', '.join(parameters)})"
    call = f"real.{name}({names})"
    if suffix:
        call_of_thread = f"real.{name}{suffix}({names})"
        return (
            f"{head} {{\n  return on_default_stream_of_thread([&](CUstream) {{ return {call}; }}, "
            f"[&] {{ return {call_of_thread}; }});\n}}\n"
        )
    return (
        f"{head} {{\n  if (!watches()) [[likely]] {{\n    return {call};\n  }}\n"
        f"  return on_stream(nullptr, false, Use::work, [&](CUstream) {{ return {call}; }});\n}}\n"
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
        make = stream_function if suffix == "_ptsz" else default_stream_function
        for variant in ("", suffix):
            symbols.append(name + variant)
            functions.append(make(name, parameters, variant))
    rows = "".join(f"INTERPOSE_FUNCTION({symbol})\n" for symbol in symbols)
    Path(out, "stream_functions.inc").write_text(f"{''.join(functions)}")
    Path(out, "stream_functions.def").write_text(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
