"""The kernels compile for GPUs that need not be there, and the machine code keeps what the source says.

`resource_usage.json` holds the most registers and bytes of stack (spilled registers) a thread that any recorded Triton
version needed, for each target, case and kernel. A change that needs more must be measured, and recorded again, with
each version; a file that is there is only ever raised:

    python3 -m tests.rmsnorm.triton.probes.compile_kernels --record tests/rmsnorm/triton/resource_usage.json
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from tests.rmsnorm.triton import ptx_rules  # noqa: E402

ROOT = Path(__file__).parents[3]
KERNELS = sorted((ROOT / "rmsnorm" / "fused").glob("*kernels.py"))
COMPILE = Path(__file__).parent / "probes" / "compile_kernels.py"
USAGE = json.loads((Path(__file__).parent / "resource_usage.json").read_text())
ALL = sorted({name.split()[1] for name in USAGE})

# Every kernel, mode, element size, and aligned rows of a length that no power of two divides.
QUICK = {
    "sm_90": [
        "llama-bfloat16-bfloat16-0-4096-4096",
        "none-bfloat16-bfloat16-1-4096-4104",
        "none-float16-float16-1-2048-65536",
        "llama-bfloat16-bfloat16-0-1048576-64",
        "gemma-float16-float32-1-4096-1024",
        "llama-bfloat16-bfloat16-0-16-4096",
        "llama-float32-float32-0-4096-4096",
        "gemma-float32-float32-1-2048-65536",
        "llama-float64-float64-0-4096-1024",
        "llama-bfloat16-bfloat16-0-4096-4096-residual",
        "none-float16-float16-1-2048-65536-residual",
        "llama-bfloat16-bfloat16-0-16-4096-residual",
    ],
    "sm_80": ["none-bfloat16-bfloat16-1-4096-4104", "gemma-float32-float32-1-2048-65536"],
    "sm_100": ["none-bfloat16-bfloat16-1-4096-4104", "gemma-float32-float32-1-2048-65536"],
    "gfx942": ["none-bfloat16-bfloat16-1-4096-4104", "llama-float32-float32-0-4096-4096"],
}


def compile_cases(target: str, cases: list[str], cache: Path) -> list[dict[str, Any]]:
    # A cache of its own: what another checkout left in the user's names that checkout's sources, gone or changed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_CACHE_DIR": str(cache)}
    del environment["PYTEST_CURRENT_TEST"]
    run = subprocess.run(
        [sys.executable, str(COMPILE), target, *cases], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def findings(target: str, kernel: dict[str, Any]) -> list[str]:
    name = f"{target} {kernel['case']} {kernel['kernel']}"
    registers, stack = USAGE[name]
    found = []
    if kernel["registers"] > registers:
        found.append(f"{name}: {kernel['registers']} registers, recorded are {registers}")
    if kernel["stack"] > stack:
        found.append(f"{name}: {kernel['stack']} bytes of stack, recorded are {stack}")
    if target.startswith("sm_"):
        found += [f"{name}: {violation}" for violation in ptx_rules.violations(kernel)]
    if kernel["options"]["enable_fp_fusion"] is not True:
        found.append(f"{name}: contraction is not pinned")
    return found


BATCHES = [
    *(pytest.param(target, cases, id=target) for target, cases in QUICK.items()),
    *(pytest.param(target, ALL, id=f"{target}-all", marks=pytest.mark.slow) for target in QUICK),
]


@pytest.mark.parametrize(("target", "cases"), BATCHES)
def test_kernels_compile_and_keep_the_rules(target: str, cases: list[str], tmp_path: Path) -> None:
    kernels = compile_cases(target, cases, tmp_path)
    few = sum(int(case.split("-")[4]) <= 132 and int(case.split("-")[5]) <= 8192 for case in cases)
    assert len(kernels) == 3 * len(cases) - few, "a forward, a backward and, of many rows, the sum of its partial rows"
    assert [finding for kernel in kernels for finding in findings(target, kernel)] == []


def test_every_kernel_is_compiled() -> None:
    functions = [node for path in KERNELS for node in ast.walk(ast.parse(path.read_text()))]
    kernels = {f.name for f in functions if isinstance(f, ast.FunctionDef) and f.name.startswith("rms_norm_")}
    assert {name.split()[2] for name in USAGE} == kernels
    assert {name.split()[0] for name in USAGE} == set(QUICK)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_kernels_know_no_gpu(path: Path) -> None:
    # Neither threads a warp nor processors nor shared memory: what remains are modes, identities and bit patterns.
    numbers = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    numbers = {value for value in numbers if type(value) in (int, float)}
    assert numbers <= {0, 1, 2, 0x7FFFDEAD, 0x7FFFDEAD7FFFDEAD}


def kernel(assembly: str, **changes: Any) -> dict[str, Any]:
    """A forward of 16 × 256 bfloat16 in 32 threads, eight elements each, with this PTX."""
    return {
        "case": "llama-bfloat16-bfloat16-0-16-256",
        "kernel": "rms_norm_forward_kernel",
        "constants": {"n_cols": 256, "BLOCK_ROWS": 1, "BLOCK_COLS": 256, "N_HELD": 1},
        "itemsizes": {"x_ptr": 2, "w_ptr": 2},
        "options": {"num_warps": 1},
        "assembly": assembly,
        **changes,
    }


RIGHT = "cvt.rn.bf16x2.f32 %r1, %f1, %f2;\n" * 4 + "mul.bf16x2 %r1, %r2, %r3;\n" * 4


@pytest.mark.parametrize(
    ("rule", "ptx"),
    [
        ("cast", "cvt.rz.bf16.f32 %rs1, %f1;"),
        ("cast", "cvt.rna.bf16x2.f32 %r1, %f1, %f2;"),
        ("double", "mul.f64 %fd1, %fd2, %fd3;"),
        ("double", "cvt.f64.f32 %fd1, %f1;"),
        ("rounded", "div.full.f32 %f1, %f2, %f3;"),
        ("rounded", "sqrt.approx.f32 %f1, %f2;"),
        ("rounded", "rsqrt.approx.ftz.f32 %f1, %f2;"),
        ("rounded", "mul.ftz.f32 %f1, %f2, %f3;"),
        ("rounded", "sqrt.rz.f32 %f1, %f2;"),
        ("wide", "@%p1 ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];"),
        ("wide", "@%p1 ld.global.L1::evict_last.L2::cache_hint.b16 { %rs1 }, [ %rd1 + 0 ], %rd2;"),
        ("wide", "st.global.b16 [ %rd1 + 0 ], { %rs1 };"),
        ("wide", "cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;"),
        ("points", "cvt.rn.bf16.f32 %rs1, %f1;"),
    ],
)
def test_each_rule_sees_a_violation(rule: str, ptx: str) -> None:
    assert ptx_rules.violations(kernel(RIGHT)) == []
    broken = ptx_rules.violations(kernel(RIGHT + ptx))
    assert broken and {violation.split(":")[0] for violation in broken} == {rule}


def test_a_missing_rounding_is_seen() -> None:
    lost = RIGHT.replace("cvt.rn.bf16x2.f32 %r1, %f1, %f2;\n", "", 1)
    assert ptx_rules.violations(kernel(lost)) == ["points: 14 roundings, 16 specified"]


def test_one_element_a_row_need_not_be_wide(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("tl.store(rstd_ptr + rows, rstd)\n")
    store = f'.loc 1 1 0\nst.global.b32 [ %rd1 + 0 ], {{ %r1 }};\n.file 1 "{source}"\n'
    assert ptx_rules.violations(kernel(RIGHT + store)) == []


@pytest.mark.parametrize(("volatile", "found"), [(".volatile", []), ("", ["waits: 0 of 1 reads"])])
def test_a_cache_may_not_answer_who_waits(volatile: str, found: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("bits = tl.load(slots, mask=splits < N_SPLITS, other=0)\n")
    load = f'.loc 1 1 0\nld{volatile}.global.b32 {{ %r1 }}, [ %rd1 + 0 ];\n.file 1 "{source}"\n'
    assert [text[: len("waits: 0 of 1 reads")] for text in ptx_rules.violations(kernel(RIGHT + load))] == found
