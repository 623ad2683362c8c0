"""The Triton kernels compiled for a GPU that need not be there; the interpreter accepts much that the compiler does not."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; pip install triton")

import triton
from attention_cases import Case, draw_csc, draw_inputs
from slow_case import slow
from test_additive_attention import SLOPE
from test_additive_attention import draw as draw_additive
from test_sparse_attention import SEED

from dgl_gt.ops.gpu import attention as kernels
from dgl_gt.ops.gpu import passes

# dtype, D, whether with bias, dropout and packed tensors, and the dtype of indices
COMPILED = [
    (torch.float32, 16, True, torch.int32),
    (torch.bfloat16, 33, False, torch.int64),
    (torch.float16, 64, True, torch.int64),
    (torch.float64, 16, True, torch.int64),
]
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def compile_for_hopper(which):
    """Compile what runs of both scores would launch to machine code, of these cases."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def compile_kernel(kernel, programs, values):
        signature, constants, aligned = {}, {}, {}
        for number, parameter in enumerate(kernel.params):
            name, value = parameter.name, values[parameter.name]
            is_one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or is_one:
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name], aligned[number,] = POINTERS[value.dtype], [["tt.divisibility", 16]]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
        options = dict(num_warps=values["num_warps"], enable_fp_fusion=True)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        print(kernel.__name__, values["ADDITIVE"], "cubin" in compiled.asm)

    passes.launch = compile_kernel
    for dtype, width, packed, index_dtype in (COMPILED[each] for each in which):
        case = Case("", 20, 20, 600, heads=8, width=width, bias=True, packed=packed, index_dtype=index_dtype)
        csc, dot, additive = draw_csc(case), draw_inputs(case, dtype)[1], (*draw_additive(case, dtype)[1], None)
        edge, kind = torch.zeros(600, 7, dtype=dtype), torch.zeros(600, dtype=torch.int32)
        for (q, k, v, bias), slope, features in ((dot, None, None), (additive, SLOPE, None), (dot, None, edge)):
            bias = bias if packed else None
            numbers = (bias, width**-0.5, 0.1 if packed else 0.0, SEED)
            terms = (None, None) if features is None else (features, kind if packed else None)
            with torch.no_grad():
                q = q if features is None else torch.cat([q, torch.zeros(20, 8, 7, dtype=dtype)], 2)
                grads = [None if tensor is None else torch.empty_like(tensor) for tensor in (q, k, v, bias, features)]
                out, lse = kernels.forward(csc, q, k, v, *numbers, slope, *terms)
                kernels.backward(csc, out, lse, out, lse, q, k, v, *numbers, grads, slope, *terms)


@pytest.mark.parametrize("which", [(0, 1), slow((2, 3))])
def test_compiles_for_a_gpu_that_is_not_there(tmp_path, which):
    if (
        "nvidia" not in triton.backends.backends
        or "constexprs" not in inspect.signature(triton.compiler.ASTSource.__init__).parameters
    ):
        pytest.skip(f"triton {triton.__version__} has no NVIDIA backend, or another interface to its compiler")
    here = Path(__file__).parent
    folders = [here, here.parent / "helpers", here.parents[1]]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), environment.get("PYTHONPATH", "")])
    script = f"import test_gpu_compiled; test_gpu_compiled.compile_for_hopper({which})"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    kernels = ("_forward", "_gradients", "_merge")
    assert {(name, score) for name, score, _ in lines} == {(each, s) for each in kernels for s in ("True", "False")}
    assert all(is_machine_code == "True" for *_, is_machine_code in lines)
