#!/bin/bash
# A call of some seven minutes on a GPU: tests, training steps, JAX' steps.
#
#     benchmarks/gpu_runs/first.sh OUTPUT COMMIT [--pretend]
#
# Every part has a limit of its own, so that the next one has its time too.
cd "$(dirname "$0")/../.." || exit
output=$1
given=(--output "$1" --commit "$2" "${@:3}")
export PYTHONPATH=$PWD:$PYTHONPATH TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1
mkdir -p "$output"

part() { # NAME LIMIT COMMAND...: its output in the log, its end on the screen
  local begin=$SECONDS log
  log=$(mktemp)
  timeout "$2" "${@:3}" >"$log" 2>&1
  echo "== $1: status $?, $((SECONDS - begin)) s" | tee -a "$output/log.txt"
  tail -n 8 "$log" | cut -c 1-200
  cat "$log" >>"$output/log.txt"
}

# In float32, as the references are. No second process beside a clock.
tests=(tests/test_lanton.py tests/keras/test_nonfinite.py
  tests/backends/test_kernels.py)
pytest=(timeout 45 python3 -m pytest -p no:cacheprovider --maxfail=4)
KERAS_BACKEND=torch part tests_torch 50 "${pytest[@]}" "${tests[@]}"
JAX_DEFAULT_MATMUL_PRECISION=highest KERAS_BACKEND=jax \
  part tests_jax 50 "${pytest[@]}" "${tests[@]}"
KERAS_BACKEND=torch part training_torch 110 \
  python3 benchmarks/gpu_runs/training.py "${given[@]}" --seconds 95 \
  --batches 65k 8k
XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 KERAS_BACKEND=jax \
  part training_jax 130 python3 benchmarks/gpu_runs/training.py \
  "${given[@]}" --seconds 115 --batches 65k 8k
KERAS_BACKEND=jax part steps_jax 110 \
  python3 benchmarks/gpu_runs/steps.py "${given[@]}" --seconds 95
