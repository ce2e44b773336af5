#!/usr/bin/env bash
# On one GPU, in under four minutes: FastNet to 94 % on CIFAR-10, as a CNN and as a KNN whose first
# learned convolution is the paper's layer, 20 seeds of each or as many as there is time for.
#
#   experiments/cifar/gpu.sh DATA [FILE] [options of `python -m experiments cifar`]
#   DRY_RUN=1 experiments/cifar/gpu.sh DATA FILE [options]      # on any device
#
# DATA is a Keras-style .npz file of CIFAR-10, or cifar10 for a prepared TensorFlow Dataset; FILE
# gets the rows, default runs/cifar-gpu.jsonl. Needs jax (with CUDA), flax, optax and what else the
# extra "experiments" has, but for TensorFlow Datasets where DATA is a file. PYTHON names the
# interpreter. A row is written for each run, so that what was run stays if time runs out.
set -euo pipefail
data=${1:?"usage: experiments/cifar/gpu.sh DATA [FILE] [OPTIONS]"}
[ ! -e "$data" ] || data=$(realpath "$data")
out=$(realpath -m "${2:-runs/cifar-gpu.jsonl}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
"$python" -c 'import jax, os
assert jax.default_backend() == "gpu" or os.environ.get("DRY_RUN"), f"no GPU: jax runs on {jax.default_backend()}"
print(jax.devices()[0].device_kind, "jax", jax.__version__)'
"$python" -m experiments cifar --presets fast-cifar10-cnn fast-cifar10-polynomial --seeds 20 \
  --minutes 3 --data "$data" --out "$out" "${@:3}"
