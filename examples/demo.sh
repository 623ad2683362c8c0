#!/usr/bin/env bash
# The main job on a generated graph: partition, look, train over two processes, predict. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n$'; printf ' %q' "$@"; printf '\n'; "$@"; }

step dgl-gt partition "sample:communities?nodes=20000&seed=0" --parts 2 --out .demo/shards --force
step dgl-gt inspect .demo/shards
step dgl-gt train .demo/shards --nproc 2 --epochs 40 --out .demo/model --force
step dgl-gt predict .demo/shards --model .demo/model --out .demo/predictions.csv --force
step head -n 4 .demo/predictions.csv
