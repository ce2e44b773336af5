#!/usr/bin/env bash
# Checks the operator on one GPU against float64 on the host, then times it: under 8 minutes.
#
#   benchmarks/gpu.sh [FOLDER]      # default results/speed
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
assert jax.default_backend() == "gpu", f"no GPU: jax runs on {jax.default_backend()}"
print(jax.devices()[0].device_kind, "jax", jax.__version__)' || exit 1

status=0
run() { # SECONDS COMMAND...: what fails or runs out of time does not keep the rest from running
  local limit=$1
  shift
  echo "== benchmarks $*"
  timeout "$limit" "$python" -m benchmarks "$@" || { status=1; echo "failed: $*" >&2; }
}
run 120 correctness --out "$out/correctness-gpu.json"
run 200 operator --out "$out/operator-gpu.json" --rounds 11 --seconds 0.3 --no-peak --no-compile \
  --modes "forward + backward" --shapes "ResNet-50 middle" "ImageNet stem" "CIFAR stem" \
  "CIFAR middle" --rivals "convolution + ReLU" linear polynomial sigmoid Gaussian L2 L1 \
  "patches: L1"
run 120 step --out "$out/step-gpu.json"
run 20 report --folder "$out"
exit $status
