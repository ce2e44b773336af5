#!/usr/bin/env bash
# Checks every kernel on one GPU against float64 on the host, then times it: under 8 minutes. Asks
# what the branch of the squared distance, full precision and other sums of absolute differences
# cost, and, where there are several GPUs, what a batch shared by all of them does.
#
#   benchmarks/gpu.sh [FOLDER]      # default results/speed
#   DRY_RUN=1 benchmarks/gpu.sh FOLDER      # everything once, with few numbers, on any device
#
# Needs jax (with CUDA), flax and optax; packages may be put on PYTHONPATH by hand. PYTHON names the
# interpreter. Every file is written row by row, so that what was measured stays if time runs out.
set -uo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:-$repository/results/speed}")
cd "$repository"
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" XLA_PYTHON_CLIENT_PREALLOCATE=false
"$python" -c 'import jax, flax, optax
import os
assert jax.default_backend() == "gpu" or os.environ.get("DRY_RUN"), f"no GPU: jax runs on {jax.default_backend()}"
print(jax.devices()[0].device_kind, "jax", jax.__version__)' || exit 1

status=0
run() { # SECONDS COMMAND...: what fails or runs out of time does not keep the rest from running
  local limit=$1
  shift
  [ -z "${DRY_RUN:-}" ] || limit=$((5 * limit)) # compiling is slow on CPU
  echo "== benchmarks $*"
  timeout "$limit" "$python" -m benchmarks "$@" || { status=1; echo "failed: $*" >&2; }
}
backend=gpu few=()
layers=(--rounds 11 --seconds 0.3 --shapes "ResNet-50 middle" "ImageNet stem" "CIFAR stem"
  "CIFAR middle" --rivals "convolution + ReLU" linear polynomial sigmoid Gaussian L2 L1
  "patches: L1")
if [ -n "${DRY_RUN:-}" ]; then
  backend=$("$python" -c 'import jax; print(jax.default_backend())') few=(--quick)
  layers=(--rounds 3 --seconds 0.01 --shapes "LeNet conv2" --rivals polynomial L1)
fi
run 120 correctness --out "$out/correctness-$backend.json"
run 150 operator --out "$out/operator-$backend.json" --no-peak --no-compile \
  --modes "forward + backward" "${layers[@]}"
run 100 questions --out "$out/questions-$backend.json" "${few[@]}"
run 80 step --out "$out/step-$backend.json" "${few[@]}"
run 20 report --folder "$out"
exit $status
