"""Rules that a kernel's text must keep, found in its syntax tree: what no run on a CPU, or no run at all, can show.

masked-load   a load with a mask says what the masked elements are (`other=`)
load-mask     a load has a mask, or stands in LOADS_WITHOUT_MASK with the reason
store-mask    a store has a mask, or stands in STORES_WITHOUT_MASK with the reason
int64         a program id or loop counter is cast to int64 before it is multiplied, or handed on as a row
upcast        what was loaded is cast before it enters arithmetic
rounding      a cast to x's dtype stands in `_round` or as the value of a store
hint          no tl.assume, tl.multiple_of, tl.max_contiguous: they can lie
atomic        no atomics: sums have one order
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# (function, pointer) → why the mask may be missing.
LOADS_WITHOUT_MASK = {
    ("rms_norm_backward_split_kernel", "rstd_ptr + row"): "one element of a row that exists",
}
STORES_WITHOUT_MASK = {("_publish", "exchange_ptr + row * N_SPLITS + split"): "one slot, of a row that exists"}

COMPUTE_DTYPE_POINTERS = ("rstd_ptr", "dw_partial_ptr")  # what lies there needs no cast
HINTS = ("assume", "multiple_of", "max_contiguous")
LOADERS = ("load", "_load_rows", "_load_slice", "_load_weight")
LOW_PRECISION = ("bfloat16", "float16", "X_DTYPE", "element_ty")


@dataclass(frozen=True)
class Violation:
    rule: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}, line {self.line}: {self.text}"


def violations(source: str) -> list[Violation]:
    """What the kernels (functions decorated with @triton.jit) in `source` break."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in function.decorator_list):
            for rule, node in _Kernel(function).broken():
                found.append(Violation(rule, node.lineno, ast.unparse(node)))
    return found


def violations_in(root: Path) -> list[str]:
    """Violations in every kernel file of the checkout at `root`."""
    return [
        f"{path.name}: {violation}"
        for path in sorted((root / "rmsnorm" / "fused").glob("*kernels.py"))
        for violation in violations(path.read_text(encoding="utf-8"))
    ]


class _Kernel:
    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        self.narrow = {"program_id": set[str](), "loaded": set[str]()}
        for _ in range(3):  # names of names of names
            self._collect_names()

    def broken(self) -> Iterator[tuple[str, ast.expr]]:
        stored = set()
        for node in ast.walk(self.function):
            if isinstance(node, ast.Call) and _called(node) in ("store", "_store_rows"):
                stored |= {id(child) for child in (*node.args, *(k.value for k in node.keywords))}
        for node in ast.walk(self.function):
            if isinstance(node, ast.Call):
                yield from self._call(node, stored)
            elif isinstance(node, ast.BinOp):
                yield from self._arithmetic(node, (node.left, node.right))
            elif isinstance(node, ast.AugAssign):
                yield from self._arithmetic(
                    ast.BinOp(node.target, node.op, node.value, lineno=node.lineno), (node.value,)
                )

    def _call(self, node: ast.Call, stored: set[int]) -> Iterator[tuple[str, ast.expr]]:
        name, keywords = _called(node), {k.arg for k in node.keywords}
        if name == "load" and "mask" in keywords and "other" not in keywords:
            yield "masked-load", node
        place = (self.function.name, ast.unparse(node.args[0]) if node.args else "")
        if name == "load" and "mask" not in keywords and place not in LOADS_WITHOUT_MASK:
            yield "load-mask", node
        if name == "store" and "mask" not in keywords and place not in STORES_WITHOUT_MASK:
            yield "store-mask", node
        if any(isinstance(a, ast.Name) and "row" in a.id and self._is("program_id", a) for a in node.args):
            yield "int64", node
        if name in HINTS:
            yield "hint", node
        if name.startswith("atomic_"):
            yield "atomic", node
        if name == "to" and self.function.name != "_round" and id(node) not in stored and node.args:
            target = ast.unparse(node.args[0])
            if target.split(".")[-1] in LOW_PRECISION:
                yield "rounding", node

    def _arithmetic(self, node: ast.BinOp, operands: tuple[ast.expr, ...]) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(node.op, ast.Mult) and any(self._is("program_id", operand) for operand in operands):
            yield "int64", node
        if any(self._is("loaded", operand) for operand in operands):
            yield "upcast", node

    def _collect_names(self) -> None:
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                for kind, names in self.narrow.items():
                    if self._is(kind, node.value):
                        names.add(node.targets[0].id)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and self._counts_rows(node.iter):
                self.narrow["program_id"].add(node.target.id)

    def _counts_rows(self, loop: ast.expr) -> bool:
        """Whether a loop's counter is a number of rows or programs: an int32, and in the interpreter a Python int."""
        if not isinstance(loop, ast.Call) or _called(loop) != "range":
            return False
        of_programs = any(self._is("program_id", bound) for bound in loop.args)
        return of_programs or any(word in ast.unparse(loop) for word in ("program", "partials", "n_rows"))

    def _is(self, kind: str, node: ast.expr) -> bool:
        """Whether the expression is such a value, and no cast stands around it."""
        if isinstance(node, ast.Name):
            return node.id in self.narrow[kind]
        if isinstance(node, ast.Subscript):
            return self._is(kind, node.value)
        if isinstance(node, ast.BinOp) and kind == "program_id":
            # A sum or quotient with a program id is one; a product is reported where it stands.
            return not isinstance(node.op, ast.Mult) and (self._is(kind, node.left) or self._is(kind, node.right))
        if isinstance(node, ast.Call):
            if kind == "program_id":
                return _called(node) == "program_id"
            return _called(node) in LOADERS and not ast.unparse(node.args[0]).startswith(COMPUTE_DTYPE_POINTERS)
        return False


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
