#!/usr/bin/env bash
# Builds the package and runs everything that a GPU is needed for: the C++ tests, the Python tests on the real driver, the
# recorder and the benchmarks.
#
#   tests/run_on_gpu.sh OUTPUT
#
# OUTPUT receives one log per step, the recording, the benchmark results and summary.txt. The exit code is 0 if every step
# passed. A step that fails does not stop the others, except the build.
#
# From the environment:
#   PYTHON  the interpreter (default: python3). If it has what builds the package (Cython, scikit-build-core), nothing is
#           fetched from a registry and nothing is installed into it; else a virtual environment is made with pip.
#   WHEELS  a folder with the wheel of nvidia-cuda-runtime 13.4 or newer, below 14, for machines without a registry: its
#           cuda.h is used for the build, and the package that other libraries run on is not replaced.
#   WORK    a folder for what is built, kept for the next run (default: a temporary one, removed at the end).
#   CUDA_GCTX_DRIVER=sim  rehearses the same steps on the software driver: everything is then simulated.
set -u

[ $# -eq 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" || exit 2
output=$(cd "$1" && pwd)
if [ -n "${WORK:-}" ]; then
  mkdir -p "$WORK" || exit 2
  work=$(cd "$WORK" && pwd)
else
  work=$(mktemp -d) || exit 2
  trap 'rm -rf "$work"' EXIT
fi

# Multicast over NVLink can hang a process for good where the fabric is not set up; nothing here needs it.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

python=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3}"; exit 2; }
build=$work/build
case ${CUDA_GCTX_DRIVER:-} in
  sim | sim:*) simulated=yes pytest_options=() ;;
  *) simulated='' pytest_options=(--real-gpu) ;;
esac

failed=0
summary=$output/summary.txt
: >"$summary"

# step NAME SECONDS COMMAND...: runs it under a time limit, with its output in NAME.log, and notes how it ended.
step() {
  local name=$1 limit=$2 code begin=$SECONDS
  shift 2
  timeout -s KILL "$limit" "$@" >"$output/$name.log" 2>&1 </dev/null
  code=$?
  case $code in
    0) code=passed ;;
    137) code="FAILED: killed, as after its limit of $limit s" failed=1 ;;
    *) code="FAILED: exit code $code" failed=1 ;;
  esac
  printf '%-24s %4d s  %s\n' "$name" $((SECONDS - begin)) "$code" | tee -a "$summary"
  [ "$code" = passed ] || { tail -n 25 "$output/$name.log"; return 1; }
}

# The folder of the cuda.h of an nvidia-cuda-runtime that is new enough, in the installed packages or in the folder $1.
cuda_include() {
  "$python" - "$@" <<'EOF'
import importlib.metadata, pathlib, sys
for found in importlib.metadata.distributions(name="nvidia-cuda-runtime", path=sys.argv[1:] or sys.path):
    for file in found.files or ():
        if file.name == "cuda.h" and (13, 4) <= tuple(map(int, found.version.split(".")[:2])) < (14, 0):
            print(pathlib.Path(str(file.locate())).parent)
            raise SystemExit
EOF
}

include=
if [ -n "${WHEELS:-}" ]; then
  step headers 60 "$python" -m pip install --no-index --no-deps --find-links "$WHEELS" --upgrade \
    --target "$work/headers" 'nvidia-cuda-runtime>=13.4,<14' || exit 1
  include=$(cuda_include "$work/headers")
fi

# Site-packages of the interpreter stay as they are: the package goes into a folder that only this run sees.
if "$python" -c 'import Cython, scikit_build_core' 2>/dev/null; then
  PATH=$(dirname "$python"):$PATH
  include=${include:-$(cuda_include)}
  [ -n "$include" ] || { echo "no cuda.h of 13.4 or newer: give WHEELS, or install nvidia-cuda-runtime"; exit 1; }
  rm -rf "$work/site"
  step build 240 "$python" -m pip install --no-index --no-build-isolation --no-deps --target "$work/site" \
    --config-settings=build-dir="$build" --config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE="$include" \
    "$repository" || exit 1
  export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
else
  step tools 240 bash -c '"$1" -m venv "$2" && "$2/bin/python" -m pip install cmake ninja Cython scikit-build-core \
    "nvidia-cuda-runtime>=13.4,<14"' - "$python" "$work/venv" || exit 1
  python=$work/venv/bin/python
  PATH=$work/venv/bin:$PATH
  include=${include:-$(cuda_include)}
  step build 300 "$python" -m pip install --no-build-isolation --config-settings=build-dir="$build" \
    --config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE="$include" "$repository[test]" || exit 1
fi

# The software driver is found by the programs that open libcuda.so.1 by name, if it is the one in use.
library_path=${LD_LIBRARY_PATH:-}
if [ -n "$simulated" ]; then
  echo 'simulated: everything below ran on the software driver' | tee -a "$summary"
  package=$(cd "$work" && "$python" -c 'import os, cuda_gctx; print(os.path.dirname(cuda_gctx.__file__))')
  library_path=$package/sim/lib${library_path:+:$library_path}
fi

cd "$work" || exit 1
step cpp_build 180 cmake --build "$build" --target cpp_tests &&
  step cpp_tests 120 ctest --test-dir "$build" --output-on-failure

# With python -m the current folder comes first on the path of modules: it is $work, not the sources.
# Each file in a process of its own: a crash, a hang or an error that stays with the process costs no other file.
for file in "$repository"/tests/test_*.py; do
  name=$(basename "$file" .py)
  step "$name" 120 "$python" -m pytest "$file" -p no:cacheprovider "${pytest_options[@]}" --durations=5 \
    --junit-xml="$output/$name.xml"
  tail -n 1 "$output/$name.log" | sed 's/^=* */    /; s/ *=*$//' | tee -a "$summary"
done

step record 240 env LD_LIBRARY_PATH="$library_path" "$python" "$repository/tests/hardware/record.py" \
  --out "$output/recording.json"

if "$python" -c 'import click, rich' 2>/dev/null; then
  step demo 60 "$python" -m cuda_gctx.cli demo
  sed -n '/^short kernel on/,/^At p99/p' "$output/demo.log" >>"$summary"
  step bench 60 "$python" -m cuda_gctx.cli bench --quick
else
  echo 'demo and bench did not run: click or rich is not installed' | tee -a "$summary"
fi

step calls 120 "$python" "$repository/benchmarks/calls.py" --out "$output/benchmarks"
grep -E '^\| ' "$output/calls.log" >>"$summary"

step partitions 180 "$python" "$repository/benchmarks/partitions.py" --out "$output/benchmarks"

mkdir -p "$output/pictures"
step pictures 60 "$python" "$repository/examples/timeline.py" --pictures "$output/pictures"

if [ -n "$simulated" ] || ! "$python" -c 'import torch' 2>/dev/null; then
  echo 'studies did not run: they need torch and a GPU' | tee -a "$summary"
else
  step studies 300 "$python" "$repository/benchmarks/studies.py" --out "$output/benchmarks"
  if [ "$("$python" -c 'import torch; print(torch.cuda.device_count())')" -ge 2 ]; then
    step allreduce 300 "$python" "$repository/benchmarks/allreduce.py" --out "$output/benchmarks"
  else
    echo 'allreduce did not run: it needs two GPUs' | tee -a "$summary"
  fi
fi

if [ $failed -eq 0 ]; then echo "every step passed"; else echo "something FAILED"; fi | tee -a "$summary"
echo "logs and results: $output"
exit $failed
