#!/usr/bin/env bash
# Builds the package and runs what needs a GPU: the C++ tests, the Python tests that use the driver (tests/on_gpu.py), the
# benchmarks and the demo.
#
#   tests/run_on_gpu.sh [--only STEPS] [--resume SUMMARY] [--limit SECONDS] [--wheels DIR] [--archive] [OUTPUT]
#
# OUTPUT (default: $OUT) receives one log per step, the results of the benchmarks, and summary.txt with a line per step
# and per file of tests. A step that fails does not stop the others, except the build. The exit code is 0 if every step
# passed, 1 if one failed, and 75 if none failed and the limit left some out: continue with --resume.
#
#   --resume SUMMARY continue a run, on the same machine or on another one. SUMMARY is summary.txt of that run, which
#                    may be in OUTPUT. Its steps and files of tests that passed do not run again, and their lines are in
#                    the new summary too. It must be of the same sources (the line "tree") and the same kind of driver.
#   --only STEPS     steps to run, separated by commas: cpp, tests (or one folder of them: tests/interop), calls,
#                    partitions, demo, pictures, pages (the blocks of the documents, and examples), record, ptx, contract,
#                    questions, processes, trace, studies, pairs (ten minutes), control (the tuner at three rates of calls), comm, answers, sanitizers, soak, or all. Default: cpp,tests,calls,partitions,demo,pictures.
#   --limit SECONDS  limit of the whole run; steps that do not begin in time are reported as "later". Default: 540, with all 3600.
#   --wheels DIR     a folder of wheels, for machines without a package registry
#   --archive        leave only summary.txt and results.tar.gz in OUTPUT
#
# From the environment:
#   PYTHON  the interpreter (default: python3). If it has Cython and scikit-build-core, nothing is fetched from a registry
#           and nothing is installed into it; else a virtual environment is made with pip.
#   SOAK_SECONDS, SOAK_SEEDS  how long the step soak takes (default: 540), and the seeds of its processes, which share
#           the card (default: "1 2 3"); the first one also starts programs beside it.
#   WORK    a folder for what is built, kept for the next run, which does not build the same sources again (default: a
#           temporary one, removed at the end).
#   COMMIT  the commit, for the summary, where the sources are no clone.
#   TEST_FILES  how many files of tests run side by side (default: 4).
#   CUDA_GCTX_DRIVER=sim  rehearses the same steps on the software driver: everything is then simulated.
#
# Without a registry the interpreter needs: Cython>=3.1, scikit-build-core>=0.11, cmake>=3.20, ninja, numpy, cuda-core>=1.0,
# cuda-bindings, pytest>=8; torch, cupy and numba-cuda for the tests of these frameworks. The folder of wheels must hold
#   nvidia-cuda-runtime>=13.5,<14   always: the build uses its cuda.h, and the installed one is not replaced
#   hatch-fancy-pypi-readme   if it is not installed: the build
#   click, rich, markdown-it-py, mdurl, pygments   if they are not installed: the tests of the command line and the demo
# (pip download --only-binary :all: -d DIR 'nvidia-cuda-runtime>=13.5,<14' hatch-fancy-pypi-readme click rich). Other wheels are used if the
# interpreter lacks them. The tests of models (tests/interop/test_models_on_gpu.py) need transformers: 23 MB for Python 3.12, with
#   pip download --no-deps --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d DIR \
#     'transformers==4.57.*' 'tokenizers<0.23' 'huggingface_hub<1' safetensors regex pyyaml tqdm requests packaging filelock fsspec \
#     typing_extensions charset_normalizer idna urllib3 certifi hf-xet
set -u

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
default_steps=cpp,tests,calls,partitions,demo,pictures
all_steps=$default_steps,pages,record,ptx,contract,questions,processes,trace,studies,pairs,control,comm,answers,sanitizers,soak
only=$default_steps resume='' limit='' wheels='' archive='' output=${OUT:-}
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=${2:-} && shift 2 || usage ;;
    --resume) resume=${2:-} && shift 2 || usage ;;
    --limit) limit=${2:-} && shift 2 || usage ;;
    --wheels) wheels=${2:-} && shift 2 || usage ;;
    --archive) archive=yes && shift ;;
    -*) usage ;;
    *) output=$1 && shift ;;
  esac
done
[ -n "$output" ] || usage
[ "$only" = all ] && only=$all_steps limit=${limit:-3600}
limit=${limit:-540}
repository=$(cd "$(dirname "$0")/.." && pwd)
for name in ${only//,/ }; do
  case ,$all_steps, in
    *,"$name",*) ;;
    *) [ "${name#tests/}" != "$name" ] && [ -d "$repository/$name" ] || { echo "no step $name: $all_steps"; exit 2; } ;;
  esac
done

# Everything that a step reads; results and evidence may be written between two runs. The commit alone would not do: the
# sources need not be a clone.
tree=$(cd "$repository" && find CMakeLists.txt README.md pyproject.toml benchmarks cmake cuda_gctx docs examples software_driver tests tools \
  \( -name '.*' -o -name __pycache__ -o -path software_driver/build -o -path software_driver/dist -o -path benchmarks/results \
  -o -path docs/evidence \) -prune -o -type f ! -name '*.so' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16)
case ${CUDA_GCTX_DRIVER:-} in
  sim | sim:*) simulated=yes tree="tree $tree, simulated" ;;
  *) simulated='' tree="tree $tree" ;;
esac
former=''
if [ -n "$resume" ]; then
  grep -qxF "$tree" "$resume" || { echo "$resume is no summary of these sources ($tree): run without --resume"; exit 2; }
  # The results of what passed. What is built may be on another machine.
  former=$(awk '$2 ~ /^(FAILED|later|again)$/ || /^(tree|every step passed|[0-9]+ steps|[0-9]+ files) / { next }
    $2 == "ok" && $1 ~ /^(headers|wheels|tools|build|driver|raw|tests|cpp\/build)$/ { next } { print }' "$resume")
fi
# passed NAME: whether a former run has passed a step.
passed() { grep -qE "^$1 +ok " <<<"$former"; }

mkdir -p "$output" || exit 2
output=$(cd "$output" && pwd)
logs=$output/logs
mkdir -p "$logs"
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd) || exit 2
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
case $python in
  /*) ;;
  *) python=$PWD/$python ;;
esac
build=$work/build

failed=() later=()
summary=$output/summary.txt
[ -z "$resume" ] || [ ! -f "$output/results.tar.gz" ] || tar -xzf "$output/results.tar.gz" -C "$output"
echo "$tree" >"$summary"
[ -z "$former" ] || echo "$former" >>"$summary"
note() { echo "$*" | tee -a "$summary"; }

# wanted STEP: whether it was asked for, itself or with its folder, and has not passed before.
wanted() {
  passed "$1" && return 1
  case ,$only, in
    *,"$1",* | *,"${1%%/*}",*) return 0 ;;
    *) return 1 ;;
  esac
}

# step NAME SECONDS COMMAND...: runs it under a time limit, with its output in a log, and notes how it ended.
step() {
  local name=$1 most=$2 log=$logs/${1//\//.}.log left=$((limit - SECONDS)) begin=$SECONDS code outcome remark is_cut=''
  shift 2
  passed "$name" && return
  if [ $left -lt 5 ]; then
    later+=("$name")
    note "$(printf '%-38s later   %4d s  not run: the limit of %d s is reached' "$name" 0 "$limit")"
    return 1
  fi
  [ $most -le $left ] || most=$left is_cut=yes
  timeout -s KILL "$most" "$@" >"$log" 2>&1 </dev/null
  code=$?
  case $code$is_cut in
    0*) outcome=ok remark='' ;;
    75*) outcome=later remark='the limit left files out' ;;
    137yes) outcome=later remark="cut off by the limit of $limit s" ;;
    137) outcome=FAILED remark="killed, as after its limit of $most s" ;;
    *) outcome=FAILED remark="exit code $code" ;;
  esac
  # The last line of pytest counts the tests.
  [ $outcome = ok ] && remark=$(sed -n 's/^=* *\([0-9].* in [0-9.]*s\).*$/\1/p' "$log" | tail -n 1)
  note "$(printf '%-38s %-6s  %4d s  %s' "$name" $outcome $((SECONDS - begin)) "$remark")"
  [ $outcome = ok ] && return
  [ $outcome = later ] && later+=("$name") || failed+=("$name")
  tail -n 25 "$log"
  return 1
}

finish() {
  echo
  cat "$summary"
  [ ${#failed[@]} -eq 0 ] || note "${#failed[@]} steps FAILED in $SECONDS s: ${failed[*]}"
  [ ${#later[@]} -eq 0 ] || note "${#later[@]} steps later, after $SECONDS s: ${later[*]}; continue with --resume summary.txt"
  [ $((${#failed[@]} + ${#later[@]})) -gt 0 ] || note "every step passed in $SECONDS s"
  if [ -n "$archive" ]; then
    (cd "$output" && find . -mindepth 1 -maxdepth 1 ! -name summary.txt ! -name results.tar.gz -print0 |
      tar -czf results.tar.gz --remove-files --null -T -)
  fi
  echo "logs and results: $output"
  [ ${#failed[@]} -eq 0 ] || exit 1
  [ ${#later[@]} -eq 0 ] || exit 75
  exit 0
}

# The folder of a cuda.h that is new enough, in the installed packages or in the folder $1.
cuda_include() { "$python" "$repository/tools/requirements.py" cuda-include "$@" 2>/dev/null; }

# The wheels of a folder whose packages the interpreter lacks, but for the headers.
missing_wheels() {
  "$python" - "$wheels" <<'EOF'
import importlib.metadata, pathlib, sys
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    name = wheel.name.split("-")[0].replace("_", "-")
    if name != "nvidia-cuda-runtime" and not list(importlib.metadata.distributions(name=name)):
        print(wheel)
EOF
}

"$python" -c 'import sys; print("Python", sys.version.split()[0], "at", sys.executable)'
commit=${COMMIT:-$(git -C "$repository" rev-parse --short HEAD 2>/dev/null)}
note "commit ${commit:-unknown}, $(date -u +%F), $(
  [ -n "$simulated" ] && echo "$CUDA_GCTX_DRIVER" || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | paste -sd ';')"

# What WORK has of these sources is not built again.
is_built=''
[ "$(cat "$work/tree" 2>/dev/null)" = "$tree" ] && is_built=yes
build_step() { [ -n "$is_built" ] || step "$@"; }

include=
if [ -n "$wheels" ]; then
  build_step headers 60 "$python" -m pip install -q --no-index --no-deps --find-links "$wheels" --upgrade \
    --target "$work/headers" 'nvidia-cuda-runtime>=13.5,<14' || finish
  include=$(cuda_include "$work/headers")
fi

# Site-packages of the interpreter stay as they are: the package goes into a folder that only this run sees.
if "$python" -c 'import Cython, scikit_build_core' 2>/dev/null; then
  PATH=$(dirname "$python"):$PATH
  include=${include:-$(cuda_include)}
  [ -n "$include" ] || { echo "no cuda.h of 13.5 or newer: give --wheels, or install nvidia-cuda-runtime"; exit 1; }
  [ -n "$is_built" ] || rm -rf "$work/site" "$work/wheels"
  export PYTHONPATH=$work/site:$work/wheels${PYTHONPATH:+:$PYTHONPATH}
  if [ -n "$wheels" ]; then
    mapfile -t missing < <(missing_wheels)
    [ ${#missing[@]} -eq 0 ] ||
      build_step wheels 60 "$python" -m pip install -q --no-index --no-deps --target "$work/wheels" "${missing[@]}" || finish
  fi
  build_step build 540 "$python" -m pip install --no-index --no-build-isolation --no-deps --target "$work/site" \
    --config-settings=build-dir="$build" --config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE="$include" \
    "$repository" || finish
  build_step driver 300 "$python" -m pip install --no-index --no-build-isolation --no-deps --target "$work/site" \
    --config-settings=build-dir="$work/driver" --config-settings=cmake.define.SOFTWARE_DRIVER_CUDA_INCLUDE="$include" \
    "$repository/software_driver" || finish
else
  build_step tools 240 bash -c '"$1" -m venv "$2" && "$2/bin/python" -m pip install cmake ninja Cython scikit-build-core \
    "hatch-fancy-pypi-readme>=25.1" "nvidia-cuda-runtime>=13.5,<14"' - "$python" "$work/venv" || finish
  python=$work/venv/bin/python
  PATH=$work/venv/bin:$PATH
  include=${include:-$(cuda_include)}
  "$python" "$repository/tools/requirements.py" of test > "$work/test-requirements.txt"
  build_step build 540 "$python" -m pip install -r "$work/test-requirements.txt" --no-build-isolation --config-settings=build-dir="$build" \
    --config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE="$include" "$repository[cli,comm]" || finish
  build_step driver 300 "$python" -m pip install --no-build-isolation --config-settings=build-dir="$work/driver" \
    --config-settings=cmake.define.SOFTWARE_DRIVER_CUDA_INCLUDE="$include" "$repository/software_driver" || finish
fi

echo "$tree" >"$work/tree"

# The software driver is found by the programs that open libcuda.so.1 by name, if it is the one in use.
library_path=${LD_LIBRARY_PATH:-}
if [ -n "$simulated" ]; then
  note 'simulated: everything below ran on the software driver'
  library_path=$(cd "$work" && "$python" -m cuda_software_driver path)${library_path:+:$library_path}
fi

# With python -m the current folder comes first on the path of modules: it is $work, not the sources.
cd "$work" || exit 1
has() { "$python" -c "import $1" 2>/dev/null; }

if wanted cpp; then
  step cpp/build 180 cmake --build "$build" --target cpp_tests &&
    step cpp 120 env CUDA_SOFTWARE_DRIVER="$("$python" -m cuda_software_driver path)/libcuda_software_driver.so" \
      ctest --test-dir "$build" --output-on-failure --parallel "$CMAKE_BUILD_PARALLEL_LEVEL"
fi

# The raw driver calls, which calls and partitions compare the package with.
raw_calls_are_built=''
if wanted calls || wanted partitions; then
  step raw 120 bash -c 'cmake -S "$1/benchmarks/raw" -B "$2" -DPython_EXECUTABLE="$3" -DCUDA_GCTX_CUDA_INCLUDE="$4" &&
    cmake --build "$2"' - "$repository" "$work/raw" "$python" "$include" && raw_calls_are_built=yes
  export PYTHONPATH=$work/raw${PYTHONPATH:+:$PYTHONPATH}
  [ -n "$raw_calls_are_built" ] &&
    step raw/tests 60 "$python" -m pytest -q -p no:cacheprovider "$repository/benchmarks/tests"
fi

# What was seen on the card first, in case that the time runs out.
if [ -n "$raw_calls_are_built" ] && wanted calls; then
  step calls 120 "$python" "$repository/benchmarks/calls.py" --out "$output/benchmarks" &&
    grep -E '^\| ' "$logs/calls.log" >>"$summary"
fi
[ -n "$raw_calls_are_built" ] && wanted partitions && step partitions 180 "$python" "$repository/benchmarks/partitions.py" --out "$output/benchmarks"

if wanted demo; then
  if has click && has rich; then
    step demo 60 "$python" -m cuda_gctx.cli demo &&
      sed -n '/^short kernel on/,/^At p99/p' "$logs/demo.log" >>"$summary"
  else
    note 'demo did not run: click or rich is not installed'
  fi
fi

# What needs no GPU does not run again: "make test" runs it. A line for each file is in the summary.
folders=()
for folder in "$repository"/tests/*/; do
  wanted "tests/$(basename "$folder")" && folders+=("tests/$(basename "$folder")")
done
if [ ${#folders[@]} -gt 0 ]; then
  # The pictures come after the tests, and take less than a minute.
  most=$((limit - SECONDS - 20))
  echo "$former" >"$work/former"
  step tests $((most + 10)) "$python" "$repository/tests/on_gpu.py" --out "$logs/tests" --limit $most \
    --jobs "${TEST_FILES:-4}" --passed "$work/former" ${simulated:+--simulated} "${folders[@]}"
  grep -E '^tests/|^[0-9]+ files' "$logs/tests.log" >>"$summary"
fi

if wanted pictures; then
  mkdir -p "$output/pictures"
  step pictures 60 "$python" "$repository/examples/timeline.py" --pictures "$output/pictures"
fi

wanted pages && step pages 480 env LD_LIBRARY_PATH="$library_path" "$python" "$repository/docs/run_on_gpu.py" \
  --out "$output/pages.json"

wanted record && step record 240 env LD_LIBRARY_PATH="$library_path" "$python" "$repository/software_driver/tests/hardware/record.py" \
  --out "$output/recording.json"

# Random PTX programs, whose results the software driver's interpreter has bit by bit.
wanted ptx && step ptx 120 env LD_LIBRARY_PATH="$library_path" "$python" "$repository/software_driver/tests/hardware/compare_ptx.py"

# Questions about the driver and libraries, each under its own time limit.
for name in questions processes; do
  wanted $name && step $name 300 "$python" "$repository/tests/hardware/$name.py" --out "$output/benchmarks"
done
wanted trace && step trace 540 "$python" "$repository/tests/hardware/trace_on_card.py" --out "$output/benchmarks"

# The part of the recording that asks about single functions.
wanted contract && step contract 120 env LD_LIBRARY_PATH="$library_path" "$python" "$repository/software_driver/tests/hardware/record.py" \
  --only device --only contract --only sentences --only codes --out "$output/contract.json"

if wanted comm; then
  if [ -n "$simulated" ] || ! has torch; then
    note 'comm did not run: it needs torch and a GPU'
  else
    step comm 110 "$python" "$repository/tests/comm/gpu_suite.py" --out "$output/comm" --limit 100
  fi
fi

wanted answers && step answers 60 env --chdir="$repository" "$python" -m tests.trust.silent_answers --card --programs 60

if wanted sanitizers && [ -n "$simulated" ]; then
  note 'sanitizers did not run: they need a GPU'
elif wanted sanitizers; then
  step sanitizers 90 "$python" "$repository/tests/trust/device_sanitizers.py" --only core --limit 80 --each 20 \
    --out "$output/sanitizers.json"
fi

if wanted soak; then
  seconds=${SOAK_SECONDS:-540} seeds=(${SOAK_SEEDS:-1 2 3}) alone=
  [ ${#seeds[@]} -gt 1 ] || alone=--alone
  mkdir -p "$output/soak"
  step soak $((seconds + 110)) bash -c '
    code=0 pids=() programs=--programs
    for seed in "${@:6}"; do
      timeout -s KILL $(($4 + 100)) "$1" "$2/tests/trust/soak.py" --seconds "$4" --seed "$seed" $5 $programs \
        --out "$3/$seed.json" &
      pids+=($!) programs=
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=1; done
    exit $code' - "$python" "$repository" "$output/soak" "$seconds" "$alone" "${seeds[@]}" &&
    for seed in "${seeds[@]}"; do
      note "soak $seed: $(tail -n 1 "$output/soak/$seed.json")"
    done
fi

if wanted studies || wanted pairs || wanted control; then
  if [ -n "$simulated" ] || ! has torch; then
    note 'studies, pairs and control did not run: they need torch and a GPU'
  else
    wanted studies && step studies 300 "$python" "$repository/benchmarks/studies.py" --budget 22 --limit 290 --out "$output/benchmarks"
    wanted pairs && step pairs 670 "$python" "$repository/benchmarks/overlap_pairs.py" --limit $((limit - SECONDS < 670 ? limit - SECONDS - 5 : 660)) --out "$output/benchmarks/pairs.json"
    wanted control && step control 240 "$python" "$repository/benchmarks/control_loop.py" --out "$output/benchmarks/control.json"
  fi
fi

finish
