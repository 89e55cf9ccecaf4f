"""Run under compute-sanitizer: a kernel with the fault that the tool in the argument looks for."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

N = 1024


@triton.jit
def beyond_kernel(target_ptr, BLOCK: tl.constexpr):
    """Write a block behind the tensor."""
    offsets = BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + offsets, offsets)


@triton.jit
def copy_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets) + 1)


@triton.jit
def race_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    """Sum through shared memory, of which all threads then write and read one word."""
    offsets = tl.arange(0, BLOCK)
    value = tl.load(source_ptr + offsets)
    value += tl.sum(value, axis=0)
    value = tl.inline_asm_elementwise(
        "st.shared.b32 [global_smem], $1; ld.shared.b32 $0, [global_smem];",
        "=r,r",
        [value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(target_ptr + offsets, value)


def main(tool: str) -> None:
    target = torch.empty(N, dtype=torch.int32, device="cuda")
    if tool == "memcheck":
        beyond_kernel[(1,)](target, BLOCK=N)
    elif tool == "initcheck":
        copy_kernel[(1,)](torch.empty_like(target), target, BLOCK=N)
    elif tool == "racecheck":
        race_kernel[(1,)](torch.arange(N, dtype=torch.int32, device="cuda"), target, BLOCK=N)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
