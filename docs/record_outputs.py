"""Records what the examples print on a GPU, and writes it to the page of examples.

    python docs/record_outputs.py --record FILE    run the examples that need a GPU, and write their outputs to FILE
    python docs/record_outputs.py                  write the outputs of docs/outputs.json to docs/appendix/examples.md
    python docs/record_outputs.py --check          exit with status 1 if the page is out of date

An example whose framework or GPUs are missing, or that fails, is reported and left out of the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "appendix" / "examples.md"
OUTPUTS = REPOSITORY / "docs" / "outputs.json"
SECTION = re.compile(r"(?<=<!-- outputs on a GPU: begin -->\n).*(?=<!-- outputs on a GPU: end -->)", re.DOTALL)
LIMIT_S = 100
# The examples, and the module without which they cannot run.
EXAMPLES = {
    "torch_partition": "torch",
    "torch_decode_graphs": "torch",
    "torch_green_context": "torch",
    "torch_library_sms": "torch",
    "flashinfer_split": "torch",
    "nccl_partition": "torch",
    "local_world_tensor_parallel": "torch",
    "cupy_partition": "cupy",
    "numba_partition": "numba_cuda",
    "cuda_core_partition": "cuda.core",
    "cuda_core_latency": "cuda.core",
    "triton_persistent": "triton",
    "torchrun_tensor_parallel": "torch",
}
# Those that run as a process for each of two GPUs.
OF_TWO_GPUS = ("torchrun_tensor_parallel",)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def record(path: Path) -> None:
    from cuda_gctx import Device
    from cuda_gctx.measure.machine import described

    outputs: dict[str, str] = {}
    for name, module in EXAMPLES.items():
        if not is_installed(module):
            print(f"{name}: left out, {module} is not installed", flush=True)
            continue
        if name in OF_TWO_GPUS and Device.count() < 2:
            print(f"{name}: left out, it needs two GPUs", flush=True)
            continue
        launcher = TORCHRUN if name in OF_TWO_GPUS else ()
        program = REPOSITORY / "examples" / "frameworks" / f"{name}.py"
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
        try:
            done = subprocess.run(
                [sys.executable, *launcher, str(program)],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: left out, it took more than {LIMIT_S} s", flush=True)
            continue
        print(f"{name}: exit status {done.returncode}\n{done.stdout}{done.stderr[-2000:]}", flush=True)
        if done.returncode == 0:
            outputs[name] = done.stdout
        result = {**described(Device(0), "examples", REPOSITORY), "outputs": outputs}
        path.write_text(json.dumps(result, indent=2) + "\n")


def section(result: dict[str, Any]) -> str:
    card = f"{result['card']}, driver {result['driver']}, CUDA {result['cuda']}"
    lines = [f"The outputs on an {card}, {result['date']}, as `docs/record_outputs.py` recorded them:", ""]
    for name, output in result["outputs"].items():
        lines += [f"### {name}.py", "", "```text", *output.rstrip().splitlines(), "```", ""]
    return "\n".join(lines)


def page() -> str:
    text = section(json.loads(OUTPUTS.read_text()))
    return SECTION.sub(lambda _: f"\n{text}\n", PAGE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record)
    elif options.check:
        sys.exit(None if PAGE.read_text() == page() else f"{PAGE} is out of date: python docs/record_outputs.py")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
