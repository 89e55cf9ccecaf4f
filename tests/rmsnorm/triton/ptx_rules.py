"""What the machine code of a kernel must keep, found in its PTX: what a compiler could quietly undo.

cast        a conversion to 16 bits rounds to nearest
double      no float64 instruction where X is narrower
rounded     division and square root are IEEE's: no approximation, no flush of subnormals
wide        an access is as wide as a thread's share of a row, up to 16 bytes
points      each rounding point of the casting mode is there, once for each element
waits       a read that waits for another program is volatile: a cache would give what it has for ever
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCESS = re.compile(
    r"\b(?:(?:ld|st)\.(?:relaxed\.|volatile\.)?(?:\w+\.)?global\S*?(?:\.v(?P<vector>\d))?\.b(?P<bits>\d+)\s"
    r"|cp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(?P<bytes>\w+))"
)
LOCATION = re.compile(r"\s*\.loc\s+(\d+) (\d+)")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]+)"')
ROUNDING = re.compile(r"\b(?:cvt\.rn|mul(?:\.rn)?|add(?:\.rn)?|fma\.rn)\.b?f16(x2)?\b")
SCALARS = ("rstd_ptr", "exchange_ptr", "slots", "dw_ptr")  # one element a row or a column, not a part of a row

# Rounding points of an element in the forward and in the backward, y's and dx's own rounding included.
POINTS = {
    "rms_norm_forward_kernel": {"llama": 2, "gemma": 1, "none": 4},
    "rms_norm_backward_kernel": {"llama": 2, "gemma": 1, "none": 3},
}
ROW_POINTS = {"rms_norm_forward_kernel": {"none": 3}}  # mean_square, variance and rstd


def violations(kernel: dict[str, Any]) -> list[str]:
    """What a kernel that `probes/compile_kernels.py` compiled breaks."""
    ptx, x_dtype = kernel["assembly"], kernel["case"].split("-")[1]
    found = [f"cast: {text}" for text in _matches(r"\bcvt\.(?!rn\.)[\w.]*\bb?f16(?:x2)?\.f\d+", ptx)]
    if x_dtype != "float64":
        found += [f"double: {text}" for text in _matches(r"\b[a-z][\w.]*\.f64\b", ptx)]
    found += [f"rounded: {text}" for text in _matches(r"\b[a-z][\w.]*\.(?:approx|ftz|full)\b[\w.]*|\brsqrt[\w.]*", ptx)]
    found += [f"rounded: {text}" for text in _matches(r"\b(?:div|sqrt|rcp)\.(?!rn\.)[\w.]*f\d+", ptx)]
    return found + list(_narrow_accesses(kernel)) + list(_lost_points(kernel)) + list(_cached_waits(ptx))


def _cached_waits(ptx: str) -> Iterator[str]:
    waits = sum("tl.load(slots" in line for line, _ in accesses(ptx))
    volatile = len(re.findall(r"\bld\.volatile\.", ptx))
    if volatile != waits:
        yield f"waits: {volatile} of {waits} reads of other programs' sums are volatile"


def _matches(pattern: str, text: str) -> list[str]:
    return sorted(set(re.findall(pattern, text)))


def accesses(ptx: str) -> Iterator[tuple[str, int]]:
    """Each access to global memory: the source line that it comes from, and its bytes."""
    files = {number: Path(path).read_text().splitlines() for number, path in FILE.findall(ptx)}
    line, inside, located = "", False, False
    for text in ptx.splitlines():
        if "inline asm" in text:
            inside, located = "begin" in text, False
        elif location := LOCATION.match(text):
            if not located:
                line = files[location[1]][int(location[2]) - 1].strip()
            located = inside  # through the lines of an inline assembly LLVM counts on
        elif access := ACCESS.search(text):
            if access["bytes"]:
                yield line, int(access["bytes"], 0)
            else:
                yield line, int(access["vector"] or 1) * int(access["bits"]) // 8


def _narrow_accesses(kernel: dict[str, Any]) -> Iterator[str]:
    constants, itemsizes = kernel["constants"], kernel["itemsizes"]
    threads = 32 * kernel["options"]["num_warps"]
    for line, width in accesses(kernel["assembly"]):
        if any(pointer in line for pointer in SCALARS):
            continue
        pointer = next((name for name in ("dw_partial_ptr", "w_ptr") if name in line), "x_ptr")
        # Whole tiles are read and written by _load_rows and _store_rows, the rest is one row's or one column's.
        of_tile = constants.get("BLOCK_ROWS", 1) if "ptr + offsets" in line or "(rows *" in line else 1
        of_tile = constants.get("BLOCK_PARTIALS", of_tile)
        elements = of_tile * constants["BLOCK_COLS"]
        if "SUM_COLS" in constants:  # the programs of dw read by the same line
            elements = min(elements, constants["SUM_ROWS"] * constants["SUM_COLS"])
        share = max(1, elements // threads) * itemsizes[pointer]
        if width < min(16, share):
            yield f"wide: {width} bytes of {min(16, share)}: {line}"


def roundings(ptx: str) -> int:
    """Results rounded to 16 bits: conversions, and operations that LLVM has merged with one."""
    return sum(2 if pair else 1 for pair in ROUNDING.findall(ptx))


def _lost_points(kernel: dict[str, Any]) -> Iterator[str]:
    name, constants = kernel["kernel"], kernel["constants"]
    mode, dtype = kernel["case"].split("-")[:2]
    if name not in POINTS or dtype not in ("float16", "bfloat16"):
        return
    n_chunks = -(-constants["n_cols"] // constants["BLOCK_COLS"])
    if constants.get("N_HELD", n_chunks) != n_chunks or (constants["BLOCK_ROWS"] > 1 and mode == "none"):
        return  # how often a loop's body stands in the code is the compiler's choice
    elements = n_chunks * constants["BLOCK_ROWS"] * constants["BLOCK_COLS"] // (32 * kernel["options"]["num_warps"])
    points = POINTS[name][mode] + bool(constants.get("HAS_RESIDUAL"))  # s
    wanted = elements * points + ROW_POINTS.get(name, {}).get(mode, 0)
    if roundings(kernel["assembly"]) != wanted:
        yield f"points: {roundings(kernel['assembly'])} roundings, {wanted} specified"
