"""Run in a process of its own, without the interpreter: compile what the launch would, for GPUs that need not be there.

    compile_kernels.py TARGET CASE ...     prints what was compiled, as JSON
    compile_kernels.py --record FILE       every case for every target: the most registers and stack, kept in FILE

A case is "casting_mode-dtype-w_dtype-offset-n_rows-n_cols", perhaps with "-residual". The launch itself says which
kernels and tiles it gets: it runs on tensors without data, and its launches are recorded in place of being carried out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before rmsnorm is imported: @triton.jit reads it

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rmsnorm.fused import launch, plans
from rmsnorm.fused.tiles import Processors
from rmsnorm.fused.variant import Variant

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
CASES = (
    "llama-bfloat16-bfloat16-0-4096-1024",
    "llama-bfloat16-bfloat16-0-4096-4096",
    "none-bfloat16-bfloat16-1-4096-4104",  # rows that are aligned, of a length that no power of two divides
    "none-bfloat16-bfloat16-1-4096-8192",
    "llama-bfloat16-bfloat16-0-4096-16384",
    "none-float16-float16-1-2048-65536",  # streamed chunks forward, split rows backward
    "gemma-float16-float32-1-4096-1024",
    "llama-bfloat16-bfloat16-0-4096-24576",  # slices of a number that is no power of two
    "llama-bfloat16-bfloat16-0-16-4096",  # few rows
    "none-float32-bfloat16-1-64-128",  # few rows, block-wise
    "llama-bfloat16-bfloat16-0-1048576-64",  # block-wise
    "gemma-bfloat16-bfloat16-1-262144-256",
    "llama-float32-float32-0-4096-4096",
    "none-float32-bfloat16-1-4096-4100",
    "llama-float32-float32-0-4096-16384",
    "gemma-float32-float32-1-2048-65536",
    "llama-float64-float64-0-4096-1024",
    "none-float64-float32-1-4096-8192",
    "llama-float64-float64-0-2048-65536",
    "llama-bfloat16-bfloat16-0-4096-4096-residual",
    "none-bfloat16-bfloat16-1-4096-8192-residual",
    "none-float16-float16-1-2048-65536-residual",
    "llama-bfloat16-bfloat16-0-16-4096-residual",
    "llama-bfloat16-bfloat16-0-1048576-64-residual",
    "gemma-float32-float32-1-2048-65536-residual",
    "llama-float64-float64-0-4096-1024-residual",
)

POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
H200 = Processors(count=132, shared_memory=232448, cooperative=True)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

Recorded = tuple[Variant, tuple[torch.Tensor | None, ...], tuple[int, ...]]


def launches(case: str) -> list[Recorded]:
    """The launches of a forward and a backward with both gradients."""
    casting_mode, dtype, w_dtype, offset, n_rows, n_cols, *residual = case.split("-")
    recorded: list[Recorded] = []

    def record(variant: Variant, n_programs: int, tensors: Any, integers: Any) -> None:
        recorded.append((variant, tensors, integers))

    Variant.launch = record
    Variant.resident_programs = lambda *_: sys.maxsize
    plans.processors = lambda device: H200
    x = torch.empty(int(n_rows), int(n_cols), dtype=getattr(torch, dtype), device="meta")
    w = torch.empty(int(n_cols), dtype=getattr(torch, w_dtype), device="meta")
    about: dict[str, Any] = {"offset": float(offset), "casting_mode": casting_mode}
    r, s, ds = (torch.empty_like(x) if residual else None for _ in range(3))
    y, rstd = launch.rms_norm_forward(x, w, eps=1e-6, r=r, s=s, **about)
    launch.rms_norm_backward(torch.empty_like(x), x, w, rstd, dx=y, needs_dw=True, ds=ds, **about)
    return recorded


def compile_launch(case: str, recorded: Recorded, target: GPUTarget) -> dict[str, Any]:
    """What Triton compiles at such a launch with 16-byte aligned tensors and integers that fit 32 bits."""
    variant, tensors, integers = recorded
    kernel, options = variant._kernel, dict(variant._options)
    if target.backend == "hip":
        options.pop("launch_cooperative_grid", None)  # it has none; the launch splits no rows there
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes = {}
    arguments = (*tensors, *integers, *variant._constants)
    for i, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=True)):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif len(tensors) <= i < len(tensors) + len(integers):
            signature[name] = "i32"
        else:
            signature[name] = "constexpr"
            constants[(i,)] = value
    compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target=target, options=options)
    read = _read_cuda if target.backend == "cuda" else _read_hip
    return {
        "case": case,
        "kernel": kernel.__name__,
        "constants": {kernel.arg_names[i]: value for (i,), value in constants.items()},
        "itemsizes": {n: t.itemsize for n, t in zip(kernel.arg_names, tensors, strict=False) if t is not None},
        "options": variant._options,
        **read(compiled.asm),
    }


def _read_cuda(asm: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(asm["cubin"])
        command = [CUOBJDUMP, "--dump-resource-usage", cubin.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return {"registers": int(found[1]), "stack": int(found[2]), "assembly": asm["ptx"]}


def _read_hip(asm: Any) -> dict[str, Any]:
    text = asm["amdgcn"]
    found = [re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "private_segment_fixed_size")]
    registers, stack = (int(match[1]) for match in found if match)
    return {"registers": registers, "stack": stack, "assembly": text}


def compiled(target: str, cases: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for case in cases:
        for recorded in launches(case):
            yield compile_launch(case, recorded, TARGETS[target])


def record(path: Path) -> None:
    """Raise what is in the file to what this Triton needs: several versions can be recorded one after another."""
    usage = json.loads(path.read_text()) if path.exists() else {}
    for target in TARGETS:
        for kernel in compiled(target, CASES):
            name = f"{target} {kernel['case']} {kernel['kernel']}"
            before = usage.get(name, [0, 0])
            usage[name] = [max(before[0], kernel["registers"]), max(before[1], kernel["stack"])]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(most)}" for name, most in sorted(usage.items()))
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(Path(sys.argv[2]))
    else:
        json.dump(list(compiled(sys.argv[1], tuple(sys.argv[2:]) or CASES)), sys.stdout)
