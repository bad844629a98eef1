#!/usr/bin/env bash
# Runs what cuda_gctx.comm has for several GPUs on a machine that has them: the benchmark and the cases of the suite.
#
#   tests/comm/several_gpus.sh [--limit SECONDS] [--site DIR] OUTPUT
#
# OUTPUT receives the logs and results, as they come: a run that is stopped keeps what it has. Every program is under a
# time limit of its own. --site: a folder with the installed package; without it, the package is built into OUTPUT/site.
# The exit code is 0 if every step passed.
set -u

limit=240 site='' output=''
while [ $# -gt 0 ]; do
  case $1 in
    --limit) limit=$2 && shift 2 ;;
    --site) site=$2 && shift 2 ;;
    *) output=$1 && shift ;;
  esac
done
[ -n "$output" ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
mkdir -p "$output" && output=$(cd "$output" && pwd) || exit 2
here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "${PYTHON:-python3}") || exit 2
# Multicast over NVLink can put the GPUs of a whole server out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
failed=0

# step NAME SECONDS COMMAND...
step() {
  local name=$1 most=$2 left=$((limit - SECONDS)) begin=$SECONDS code
  shift 2
  [ "$most" -le "$left" ] || most=$left
  if [ "$most" -lt 10 ]; then
    echo "== $name: not run, the limit of $limit s is reached"
    failed=1
    return 1
  fi
  timeout -s KILL "$most" "$@" >"$output/$name.log" 2>&1 </dev/null
  code=$?
  echo "== $name: $([ $code = 0 ] && echo passed || echo "FAILED, exit code $code") in $((SECONDS - begin)) s"
  [ $code = 0 ] && return
  failed=1
  tail -n 30 "$output/$name.log"
  return 1
}

if [ -z "$site" ]; then
  site=$output/site
  step build 100 "$python" "$here/gpu_suite.py" --out "$output" --build machine || exit 1
fi
[ -d "$site/cuda_gctx" ] || { echo "$site has no cuda_gctx: give the folder that contains the installed package"; exit 2; }
site=$(cd "$site" && pwd)
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
cd "$output" || exit 2  # not the sources

benchmark() { # NAME SECONDS OPTIONS...
  local name=$1 most=$2
  shift 2
  [ "$most" -le $((limit - SECONDS - 5)) ] || most=$((limit - SECONDS - 5))
  [ "$most" -ge 10 ] || most=10
  step "$name" $((most + 4)) "$python" "$here/../../benchmarks/communication.py" --out "$output" --limit "$most" "$@"
}

gpus=$("$python" -c 'from cuda_gctx import Device; print(Device.count())') || exit 2
cases="missing_ranks staged_copies_between_gpus copies_behind_kernels other_types nodes_through_nvshmem concurrency_is_proven autotune programmatic_launches nodes_on_one_gpu"
if [ "$gpus" -ge 4 ]; then
  cases="broadcast_on_four_gpus copies_on_four_gpus groups_of_four_gpus hosts_on_several_gpus threads_on_four_gpus faults_on_four_gpus processes_on_four_gpus staged_in_parts staged_in_rounds $cases"
else
  cases="copy_engines_on_two_gpus all_to_all_on_two_gpus broadcast_on_two_gpus hosts_on_several_gpus threads_on_two_gpus nodes_on_two_gpus calls_on_two_gpus processes_on_two_gpus staged_in_parts staged_in_rounds moved_programs $cases"
fi
# shellcheck disable=SC2086  # the cases are words
step suite 150 "$python" "$here/gpu_suite.py" --out "$output/suite" --jobs 4 --limit 140 $cases
example() { # NAME COMMAND...
  local name=$1
  shift
  step "$name" 30 "$@"
  grep -q 'True' "$output/$name.log" && ! grep -q 'False' "$output/$name.log" || failed=1
}
examples=$here/../../examples/frameworks
example torchrun "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" "$examples/../comm_compute/several_gpus.py"
example local-world "$python" "$examples/../comm_compute/one_gpu.py"
benchmark sweep 70 --part sweep ||
  benchmark sweep-again 40 --part sweep --skip mapped programmatic --out "$output/sweep-again"
benchmark overlap 60 --part overlap
benchmark autotune 120 --part autotune
benchmark nodes 40 --part nodes
benchmark eager 30 --part eager
rm -rf "${output:?}/site"
exit $failed
