#!/bin/bash
# A call of some seven minutes on a GPU: tests, training steps, the ladder.
#
#     benchmarks/gpu_runs/first.sh OUTPUT COMMIT TOKENS
#
# TOKENS is from `ladder.py --prepare`; without the file its text has no sense.
# `PRETEND=--pretend` does all of it on a CPU. Each part has a limit of its own.
cd "$(dirname "$0")/../.." || exit
output=$1
given=(--output "$1" --commit "$2" $PRETEND)
export PYTHONPATH=$PWD:$PYTHONPATH TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-/tmp/jax-cache}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=1
mkdir -p "$output"

part() { # NAME LIMIT COMMAND...: its output in the log, its end on the screen
  local begin=$SECONDS log
  log=$(mktemp)
  timeout "$2" "${@:3}" >"$log" 2>&1
  echo "== $1: status $?, $((SECONDS - begin)) s" | tee -a "$output/log.txt"
  tail -n 12 "$log" | cut -c 1-300
  cat "$log" >>"$output/log.txt"
}

ladder=(python3 benchmarks/gpu_runs/ladder.py "${given[@]}"
  --results benchmarks/results/gpu_h200/ladder.jsonl)
[ -f "$3" ] && ladder+=(--tokens "$3")

# Without a clock, three at a time; tests in float32, as the references are.
tests=(tests/gpu tests/fast/test_kernels.py tests/test_lanton.py
  tests/keras/test_nonfinite.py)
pytest=(timeout -s INT 75 python3 -m pytest -v --tb=short -p no:cacheprovider
  --maxfail=9)
export XLA_PYTHON_CLIENT_PREALLOCATE=false
KERAS_BACKEND=torch part tests_torch 80 "${pytest[@]}" "${tests[@]}" &
JAX_DEFAULT_MATMUL_PRECISION=highest KERAS_BACKEND=jax \
  part tests_jax 80 "${pytest[@]}" "${tests[@]}" &
part ladder_1 90 "${ladder[@]}" --seconds 75 &
wait

# No second process beside a clock.
KERAS_BACKEND=torch part training_torch 100 \
  python3 benchmarks/gpu_runs/training.py "${given[@]}" --seconds 80 \
  --batches 65k 8k
KERAS_BACKEND=jax part training_jax 165 \
  python3 benchmarks/gpu_runs/training.py "${given[@]}" --seconds 140 \
  --batches 65k
part ladder_2 130 "${ladder[@]}" --seconds "${LADDER_SECONDS:-115}"
