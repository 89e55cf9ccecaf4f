"""Mutants made by rule, of the kernels' room and of the judge: every operator, comparison, constant, condition, loop
bound and option of a kernel call.

The curated mutants are the faults that people make; these ask whether the suite sees a change that nobody thought of.
They come from the syntax trees of today's files, so they are never out of date. `SURVIVORS` in `survivors.py` says for
each one that lives why nothing can tell it from the original.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutant import CELLS, STATIC, Mutant
from tests.mutation.survivors import SURVIVORS

LIMIT = 250  # of a part's mutants: what two cores judge in half an hour

_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
_BITS = {ast.BitAnd: "|", ast.BitOr: "&"}
_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
}

_TILES, _HARD = "tests/rmsnorm/triton/test_tiles.py", "tests/rmsnorm/triton/test_hard_inputs.py"
_LAUNCH, _VARIANT, _HOST = (
    "tests/rmsnorm/triton/test_launch.py",
    "tests/rmsnorm/triton/test_variant.py",
    "tests/rmsnorm/triton/test_host_contract.py",
)
_RESIDUAL = "tests/rmsnorm/torch/test_residual.py -k forward_tiles or rounds_once"
_RULES, _MANY = "tests/rmsnorm/triton/test_rules.py", "tests/rmsnorm/triton/test_many_rows.py"
_JUDGE = "tests/references"
_JOINTS, _VERDICT = f"{_JUDGE}/judge/test_joints.py", f"{_JUDGE}/judge/test_verdict.py"
_PLANTED, _PATTERNS = f"{_JUDGE}/judge/test_planted_faults.py", f"{_JUDGE}/judge/test_patterns.py"
_BOUNDS = f"{_JUDGE}/bounds/test_tolerances.py -k not sound_and_tight and not many_rows"
_SOUND = f"{_JUDGE}/bounds/test_tolerances.py -k sound_and_tight or many_rows"  # the slowest: hundreds of draws
_ROUNDING, _TERMS = f"{_JUDGE}/bounds/test_rounding.py", f"{_JUDGE}/bounds/test_terms.py"
_CELLS, _REPEATED = f"{_JUDGE}/cells/test_cells.py", f"{_JUDGE}/candidates/test_repetition.py"
_REPORT = f"{_JUDGE}/report/test_report.py"
# part → file → what is asked, in this order.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "kernels": {
        "rmsnorm/fused/kernels.py": (STATIC, CELLS, _TILES, f"{_HARD}::test_guard_pages", _RESIDUAL),
        "rmsnorm/fused/few_rows_kernels.py": (
            STATIC,
            _RESIDUAL,
            f"{_TILES} -k test_tiles and few_rows",
            f"{_HARD}::test_guard_pages",
        ),
        "rmsnorm/fused/split_kernels.py": (
            STATIC,
            _RESIDUAL,
            f"{_TILES} -k test_tiles and split",
            f"{_LAUNCH}::test_split_rows_do_not_wait_for_ever_on_nan",
            "tests/rmsnorm/triton/test_exchange.py",
            f"{_HARD}::test_guard_pages",
            f"{_LAUNCH} -k split",
            "tests/rmsnorm/triton/test_portability.py -k keep_the_rules",
        ),
        "rmsnorm/fused/plans.py": (
            _RULES,
            _MANY,
            _HOST,
            _VARIANT,
            f"{_LAUNCH} -k in_place or idle",
            CELLS,
            f"{_HARD} -k layouts or alignment",
            _TILES,
        ),
        "rmsnorm/fused/launch.py": (
            _RULES,
            "tests/rmsnorm/torch/test_residual.py -k layouts and kernels",
            _HOST,
            _VARIANT,
            f"{_LAUNCH} -k in_place or idle",
            CELLS,
            f"{_HARD} -k layouts or alignment",
            _TILES,
        ),
        "rmsnorm/fused/variant.py": (_VARIANT, _HOST, CELLS),
        "rmsnorm/fused/tiles.py": (
            _RULES,
            _MANY,
            f"{_LAUNCH} -k rule or shape or row_s_tile or another or fewest",
            _HOST,
            CELLS,
        ),
    },
    "judge": {
        "references/bounds/bound.py": (f"{_JUDGE}/bounds/test_bound.py", _JOINTS, _VERDICT, _BOUNDS, _SOUND),
        "references/bounds/enclosure.py": (_ROUNDING, _BOUNDS, _PLANTED, _SOUND),
        "references/bounds/modes.py": (f"{_JUDGE}/bounds/test_modes.py", f"{_JUDGE}/candidates/test_profile.py"),
        "references/bounds/rounding.py": (_ROUNDING, _BOUNDS, _PLANTED, _VERDICT, _SOUND),
        "references/bounds/tolerances.py": (_TERMS, _BOUNDS, _JOINTS, _PLANTED, _VERDICT, _SOUND),
        "references/cells/cell.py": (_CELLS, _PLANTED),
        "references/cells/levels.py": (_CELLS,),
        "references/cells/pairwise.py": (_CELLS,),
        "references/judge/comparison.py": (f"{_JUDGE}/judge/test_measure.py", _JOINTS, _VERDICT, _PLANTED, _PATTERNS),
        "references/judge/verdict.py": (
            f"{_JUDGE}/judge/test_findings.py",
            f"{_JUDGE}/judge/test_habits.py",
            _VERDICT,
            _JOINTS,
            _PLANTED,
            _REPEATED,
        ),
        "references/candidates/repetition.py": (_REPEATED,),
        "references/candidates/profile.py": (f"{_JUDGE}/candidates/test_profile.py",),
        "references/report/summary.py": (f"{_JUDGE}/report/test_summary.py", _REPORT),
    },
}


@dataclass(frozen=True)
class Edit:
    """Characters start to end of a file are replaced."""

    operator: str
    function: str
    start: int
    end: int
    new: str


def every_mutant(root: Path, *parts: str) -> list[Mutant]:
    """All that the rules give for these parts (or all) of the checkout at `root`, by file and place."""
    return [m for part in parts or PARTS for file, asked in PARTS[part].items() for m in _mutants_of(root, file, asked)]


def sample(root: Path, part: str, seed: int = 0) -> list[Mutant]:
    """About LIMIT of a part's, of each file and operator the same share; the same for the same files and seed."""
    mutants = every_mutant(root, part)
    strata: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        strata.setdefault(_stratum(mutant), []).append(mutant)
    chosen: set[str] = set()
    for name, members in strata.items():
        count = max(1, round(len(members) * LIMIT / len(mutants)))
        chosen |= {mutant.id for mutant in random.Random(f"{seed} {name}").sample(members, count)}
    return [mutant for mutant in mutants if mutant.id in chosen]


def complaints(mutants: list[Mutant]) -> list[str]:
    """Entries of SURVIVORS that name no mutant, or one of which the line has become another."""
    lines = {mutant.id: mutant.fault for mutant in mutants}
    return [
        f"{id}: {'no such mutant' if id not in lines else f'is now {lines[id]}'}"
        for id, survivor in SURVIVORS.items()
        if lines.get(id) != survivor.line
    ]


def _stratum(mutant: Mutant) -> str:
    file, operator = mutant.id.split(".")[0], mutant.id.rsplit(".", 1)[1].rstrip("0123456789")
    return f"{file} {operator}"


def _mutants_of(root: Path, file: str, asked: tuple[str, ...]) -> Iterator[Mutant]:
    stem = Path(file).stem
    text = (root / file).read_text(encoding="utf-8")
    seen: dict[str, int] = {}
    for edit in sorted(_Edits(text).found, key=lambda edit: (edit.start, edit.end, edit.operator, edit.new)):
        name = f"{stem}.{edit.function}.{edit.operator}"
        seen[name] = seen.get(name, 0) + 1
        id = f"{name}{seen[name]}"
        yield Mutant(
            id,
            file,
            text[edit.start : edit.end],
            edit.new,
            _line(text, edit),
            asked[0],
            equivalent=SURVIVORS[id].reason if id in SURVIVORS else None,
            at=edit.start,
            then=asked[1:],
        )


def _line(text: str, edit: Edit) -> str:
    """The line as it becomes, and what always holds in it."""
    first, last = text.rfind("\n", 0, edit.start) + 1, text.find("\n", edit.end)
    line = " ".join((text[first : edit.start] + edit.new + text[edit.end : last]).split())
    return f"{line}  # {text[edit.start : edit.end]}" if edit.operator == "always" else line


class _Edits(ast.NodeVisitor):
    """Collects the edits of one file."""

    def __init__(self, text: str) -> None:
        self.found: list[Edit] = []
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._scope = ["module"]
        self.visit(ast.parse(text))

    def _at(self, line: int, column: int) -> int:
        """The position in the text; the tree counts bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, operator: str, start: int, end: int, new: str) -> None:
        scope = ".".join(self._scope[1:]) or "module"
        self.found.append(Edit(operator, scope, start, end, new))

    def _between(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the symbol that stands between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        at = self._text.index(old, start, end)
        self._add(operator, at, at + len(old), new)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scope.append(node.name)
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(default)
        for statement in node.body:  # not the decorators: they set sizes of caches
            self.visit(statement)
        self._scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        for operator, table in (("arithmetic", _ARITHMETIC), ("mask", _BITS)):
            if type(node.op) in table and not (isinstance(node.op, ast.BitOr) and "None" in ast.unparse(node)):
                old = _SYMBOLS[type(node.op)]
                self._between(operator, node.left, node.right, old, table[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC and not isinstance(node.value, ast.Tuple):
            old, new = _SYMBOLS[type(node.op)] + "=", _ARITHMETIC[type(node.op)] + "="
            self._between("arithmetic", node.target, node.value, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, _ = self._span(node)
        if isinstance(node.op, ast.Not):
            self._add("boolean", start, start + len("not"), "")
        elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add("arithmetic", start, start + 1, "")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            if type(op) in _COMPARISONS:
                self._between("comparison", left, right, _SYMBOLS[type(op)], _COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("boolean", left, right, old, new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", *self._span(node), str(not value))
        elif isinstance(value, int):
            self._add("constant", *self._span(node), str(value + 1))
        elif isinstance(value, float):
            other = 0.0 if value == 1.0 else value + 1.0 if value + 1.0 != value else value / 2
            self._add("constant", *self._span(node), str(other))

    def _condition(self, test: ast.expr) -> None:
        start, end = self._span(test)
        self._add("condition", start, end, f"not ({self._text[start:end]})")

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test)
        self._add("always", *self._span(node.test), "True")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self._add("always", *self._span(node.test), "True")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func).endswith("range"):
            stop = node.iter.args[0 if len(node.iter.args) == 1 else 1]
            self._add("loop", self._span(stop)[1], self._span(stop)[1], " - 1")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        start = self._at(node.lineno, node.col_offset)
        self._add("loop", start, start + len("continue"), "break")

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).startswith("tl."):
            befores: list[ast.expr | ast.keyword] = [*node.args[-1:], *node.keywords]
            for before, keyword in zip(befores, node.keywords, strict=False):
                previous: ast.expr = before.value if isinstance(before, ast.keyword) else before
                self._add("option", self._span(previous)[1], self._span(keyword.value)[1], "")
        self.generic_visit(node)
