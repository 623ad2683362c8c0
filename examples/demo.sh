#!/usr/bin/env bash
# The main job on a generated graph: partition, look, train over two processes, predict. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Print a command as one would type it, in quotes where the shell needs them, and run it.
step() {
  local word line=""
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    line+=" $word"
  done
  printf '\n$%s\n' "$line"
  "$@"
}

step dgl-gt partition "sample:communities?nodes=20000&seed=0" --parts 2 --out .demo/shards --force
step dgl-gt inspect .demo/shards
step dgl-gt train .demo/shards --nproc 2 --epochs 40 --out .demo/model --force
step dgl-gt predict .demo/shards --model .demo/model --out .demo/predictions.csv --force
step head -n 4 .demo/predictions.csv
