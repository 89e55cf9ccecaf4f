"""What a candidate claims: read from a file, found out by tiny runs, and held against what it does."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from references import numpy_reference
from references.bounds.modes import computed_mode
from references.bounds.rounding import SEQUENTIAL, sequential_depth, tree_depth
from references.candidates.outputs import Implementation
from references.candidates.probing import BASE, probe
from references.candidates.profile import Profile, ProfileError, read
from references.cells.cell import Case, make_inputs
from references.cells.levels import LEVELS, MATRIX, OFFSETS
from references.judge.verdict import check
from references.report import terminal
from references.report.files import as_json
from references.report.terminal import complaints
from references.spec import DTYPES, CastingMode

CASE = Case("gemma", 0.5, "bfloat16", "same", False, (3, 200), 0.7)


class Pair:
    """The NumPy reference, which first lets `refuse(x, w, settings)` raise."""

    def __init__(self, refuse: Callable[..., Any] = lambda x, w, about: None) -> None:
        self.refuse = refuse

    def forward(self, x, w, *, eps, offset, casting_mode):
        self.about = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
        self.refuse(x, w, self.about)
        return numpy_reference.forward(x, w, **self.about)

    def backward(self, dy, x, w):
        return numpy_reference.backward(dy, x, w, **self.about)


class Modeless(Pair):
    """The same without a casting_mode argument; its mode is an attribute."""

    mode = "llama"

    def forward(self, x, w, *, eps, offset):
        return Pair.forward(self, x, w, eps=eps, offset=offset, casting_mode=self.mode)


def refusing(says: Callable[..., Any]) -> Pair:
    """A pair that raises where `says(x, w, settings)` holds."""

    def refuse(x, w, about):
        if says(x, w, about):
            raise NotImplementedError("not here")

    return Pair(refuse)


# Files


def test_toml_and_python_say_the_same(tmp_path: Path) -> None:
    toml, python = tmp_path / "p.toml", tmp_path / "p.py"
    toml.write_text('dtypes = ["bfloat16"]\noffsets = [0, 1.0]\ncolumn_sums = "tree"\nrow_sums = 8\nc_rs = 2\n')
    python.write_text(
        'profile = {"dtypes": ["bfloat16"], "offsets": [0, 1.0], "column_sums": "tree", "row_sums": 8, "c_rs": 2}\n'
    )
    profile = Profile().with_claims(read(toml))
    assert profile == Profile().with_claims(read(python))
    assert (profile.dtypes, profile.offsets) == (("bfloat16",), (0.0, 1.0))
    arithmetic = profile.arithmetic
    assert arithmetic.column_depth is tree_depth and arithmetic.c_rs == 2 and arithmetic.c_div == SEQUENTIAL.c_div
    assert arithmetic.row_depth(64) == 7 + 3  # 8 terms one after the other, then a tree over 8
    assert str(profile) == "dtypes bfloat16; offsets 0, 1; column_sums tree; row_sums 8; c_rs 2"


def test_nothing_claimed_is_everything_and_the_arithmetic_that_is_safe() -> None:
    assert str(Profile()) == "everything"
    assert (Profile().repeatable, Profile().batch_invariant) == (True, False), "bits repeat; a batch may change them"
    assert Profile().arithmetic == SEQUENTIAL
    assert Profile().arithmetic.column_depth is sequential_depth
    assert all(Profile().unclaimed(case) is None for case in MATRIX)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('dtype = ["bfloat16"]', "a profile has no 'dtype'; it has batch_invariant, c_div"),
        ('dtypes = ["float8"]', "dtypes cannot be 'float8'; it can be float16, bfloat16"),
        ('dtypes = "float16"', "dtypes must be a list of at least one value, not 'float16'"),
        ("dtypes = []", "at least one value"),
        ('casting_modes = ["qwen"]', "casting_modes cannot be 'qwen'"),
        ('layouts = ["diagonal"]', "layouts cannot be 'diagonal'"),
        ("in_place = [1]", "in_place cannot be 1; it can be True, False"),
        ("ranks = [true]", "ranks cannot be True"),
        ("ranks = [5]", "ranks cannot be 5"),
        ('max_columns = "many"', "max_columns must be a number of at least 1, not 'many'"),
        ("columns_multiple_of = 0", "at least 1, not 0"),
        ("c_rs = 100.0", "c_rs must be a number of at least 0 and at most 4, not 100.0"),
        ('column_sums = "kahan"', "column_sums cannot be 'kahan'; it can be any, pairwise, tree"),
        ("offsets = [inf]", "offsets must be a number"),
        ("dtypes = [", "cannot read the profile"),
    ],
)
def test_a_bad_profile_names_the_offending_value_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ProfileError) as raised:
        read(tmp_path / "p.toml")
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no dict called 'profile'"), ("profile = 3", "is a int, not a dict"), ("1/0", "division by zero")],
)
def test_a_bad_python_profile_too(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(ProfileError, match=says):
        read(tmp_path / "p.py")
    with pytest.raises(ProfileError, match="No such file"):
        read(tmp_path / "q.toml")


# What is claimed


@pytest.mark.parametrize(
    ("claims", "case", "says"),
    [
        ({"dtypes": ["float32"]}, {}, "dtype bfloat16 is not claimed"),
        ({"casting_modes": ["llama"]}, {}, "casting mode gemma is not claimed"),
        ({"offsets": [0.0]}, {}, "offset 0.5 is not claimed"),
        ({"weights": ["none"]}, {}, "weight same is not claimed"),
        ({"in_place": [True]}, {}, "in_place False is not claimed"),
        ({"layouts": ["contiguous"]}, {"dy_layout": "transposed"}, "layout transposed is not claimed"),
        ({"ranks": [3]}, {}, "rank 2 is not claimed"),
        ({"min_rows": 1}, {"shape": (0, 200)}, "rows 0 is not claimed"),
        ({"max_columns": 199}, {}, "columns 200 is not claimed"),
        ({"columns_multiple_of": 16}, {}, "columns 200 is not claimed"),
        ({"columns_multiple_of": 8, "max_columns": 200, "min_rows": 3}, {}, None),
    ],
)
def test_a_profile_says_which_setting_it_does_not_claim(claims: dict, case: dict, says: str | None) -> None:
    assert Profile().with_claims(claims).unclaimed(dataclasses.replace(CASE, **case)) == says


def test_what_is_not_claimed_is_refused_or_right_or_a_failure(candidate: Callable[..., Implementation]) -> None:
    profile = Profile(dtypes=("float32",))
    raises = candidate(refusing(lambda x, w, about: x.dtype != np.float32))
    verdict = check(raises, CASE, profile)
    assert (verdict.status, verdict.findings) == ("unsupported", [])
    assert verdict.reason == "dtype bfloat16 is not claimed; refused with NotImplementedError"
    assert check(raises, CASE).status == "fail"  # claimed, an error is a failure
    verdict = check(candidate(Pair()), CASE, profile)
    assert (verdict.status, verdict.reason) == (
        "unsupported",
        "dtype bfloat16 is not claimed; computed right all the same",
    )

    class Wrong(Pair):
        def backward(self, dy, x, w):
            dx, dw = Pair.backward(self, dy, x, w)
            return 2 * dx, dw

    verdict = check(candidate(Wrong()), CASE, profile)
    assert verdict.status == "fail"
    (finding,) = verdict.findings
    assert (finding.check, finding.tensor) == ("refusal", "dx")
    assert "dtype bfloat16 is not claimed, and no error says so: value: dx[" in finding.message


def test_the_declared_order_of_sums_sharpens_the_tolerance(candidate: Callable[..., Implementation]) -> None:
    case = dataclasses.replace(CASE, dtype="float32", shape=(2, 4096))
    loose = check(candidate(Pair()), case).measures["y"].ratio
    sharp = check(candidate(Pair()), case, Profile(column_sums="pairwise", c_rs=2.0, c_div=1.0)).measures["y"].ratio
    assert 2 * loose < sharp <= 1


def test_who_claims_everything_gets_the_cells_of_the_levels() -> None:
    for level, cells in LEVELS.items():
        assert Profile().cells(level) == cells


# Probing


def test_who_accepts_everything_claims_everything(candidate: Callable[..., Implementation]) -> None:
    found = probe(candidate(Pair()))
    assert found.profile == Profile() and found.notes == {}


@pytest.mark.parametrize(
    ("refuses", "claims"),
    [
        (lambda x, w, about: x.dtype == np.float64, {"dtypes": DTYPES[:3]}),
        (lambda x, w, about: w is None, {"weights": ("same", "float32", "bfloat16", "float16")}),
        (lambda x, w, about: about["casting_mode"] == "none", {"casting_modes": ("llama", "gemma")}),
        (lambda x, w, about: about["offset"] == 0.5, {"offsets": OFFSETS[:2]}),
        (lambda x, w, about: w is not None and w.dtype != x.dtype, {"weights": ("same", "none")}),
        (lambda x, w, about: x.strides[-1] != x.itemsize, {"layouts": None}),
        (lambda x, w, about: x.ndim == 1, {"ranks": (2, 3, 4)}),
        (lambda x, w, about: x.size == 0, {"min_rows": 1}),
        (lambda x, w, about: x.shape[-1] > 4096, {"max_columns": 4096}),
        (lambda x, w, about: x.shape[-1] % 16, {"columns_multiple_of": 16}),
    ],
)
def test_what_is_refused_is_not_claimed(candidate: Callable[..., Implementation], refuses: Any, claims: dict) -> None:
    found = probe(candidate(refusing(refuses)))
    if "layouts" in claims:
        assert not {"column_strided", "transposed"} & set(found.profile.layouts)
        assert {"contiguous", "row_strided", "misaligned"} <= set(found.profile.layouts)
    else:
        assert found.profile == Profile(**claims)
    assert set(found.notes.values()) == {"NotImplementedError: not here"}
    lines = terminal.claims(found.profile, found.notes)
    assert lines[0].startswith("claims: ") and all("not here" in line for line in lines[1:])


def test_only_an_error_refuses(candidate: Callable[..., Implementation]) -> None:
    class Wrong(Pair):
        def forward(self, x, w, *, eps, offset, casting_mode):
            y, rstd = Pair.forward(self, x, w, eps=eps, offset=offset, casting_mode=casting_mode)
            return (2 * y if x.dtype == np.float64 else y), rstd

    found = probe(candidate(Wrong()))
    assert found.profile == Profile()
    assert check(found.implementation, dataclasses.replace(CASE, dtype="float64"), found.profile).status == "fail"


def test_who_refuses_every_probe_claims_everything(candidate: Callable[..., Implementation]) -> None:
    found = probe(candidate(refusing(lambda x, w, about: True)))
    assert found.profile == Profile()
    assert list(found.notes.values()) == ["no probe ran, so every setting is claimed"] + 4 * [
        "NotImplementedError: not here"
    ]


def test_a_named_claim_is_not_probed(candidate: Callable[..., Implementation]) -> None:
    found = probe(candidate(refusing(lambda x, w, about: x.dtype == np.float64)), {"dtypes": ["float64", "float32"]})
    assert found.profile.dtypes == ("float64", "float32")
    assert check(found.implementation, dataclasses.replace(CASE, dtype="float64"), found.profile).status == "fail"


# Casting modes


@pytest.mark.parametrize("mode", CastingMode)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_mode_of_a_candidate_without_such_an_argument_is_found(
    candidate: Callable[..., Implementation], mode: CastingMode, dtype: str
) -> None:
    def only(x, w, about):
        assert str(x.dtype) in (dtype, "float32")

    pair = Modeless(only)
    pair.mode = str(mode)
    found = probe(candidate(pair))
    assert found.implementation.fixed_mode == mode and found.profile.casting_modes == (str(mode),)
    case = dataclasses.replace(CASE, casting_mode=mode, dtype=dtype)
    assert check(found.implementation, case, found.profile).status == "pass"


def test_without_16_bits_the_modes_are_one(candidate: Callable[..., Implementation]) -> None:
    def wide(x, w, about):
        assert x.itemsize >= 4

    found = probe(candidate(Modeless(wide)))
    assert found.implementation.fixed_mode == BASE.casting_mode
    assert found.profile.dtypes == ("float32", "float64")


def test_where_no_mode_explains_y_the_nearest_is_judged_and_fails(candidate: Callable[..., Implementation]) -> None:
    class Coarse(Modeless):
        def forward(self, x, w, *, eps, offset):
            y, rstd = Modeless.forward(self, x, w, eps=eps, offset=offset)
            return (y * 1.1).astype(y.dtype), rstd

    found = probe(candidate(Coarse()))
    assert found.mode is not None and re.match(r"nearest to \w+, which does not explain \d+ of 512", found.mode)
    mode = found.implementation.fixed_mode
    assert mode in set(CastingMode)
    verdict = check(found.implementation, dataclasses.replace(CASE, casting_mode=mode), found.profile)
    assert ("value", "y") in {(finding.check, finding.tensor) for finding in verdict.findings}
    found = probe(candidate(Coarse()), {"casting_modes": ["llama"]})
    assert found.implementation.fixed_mode == "llama"
    verdict = check(found.implementation, dataclasses.replace(CASE, casting_mode="llama"), found.profile)
    assert verdict.status == "fail" and verdict.computes is None


@pytest.mark.parametrize("claimed", CastingMode)
@pytest.mark.parametrize("computed", CastingMode)
def test_a_verdict_says_which_other_mode_was_computed(
    candidate: Callable[..., Implementation], claimed: CastingMode, computed: CastingMode
) -> None:
    class Other(Pair):
        def forward(self, x, w, *, eps, offset, casting_mode):
            return Pair.forward(self, x, w, eps=eps, offset=offset, casting_mode=str(computed))

    case = dataclasses.replace(CASE, casting_mode=claimed)
    verdict = check(candidate(Other()), case)
    assert verdict.computes == (None if claimed == computed else computed)
    if verdict.computes:
        assert f"computes {computed} rounding, claimed {claimed} (1)" in complaints([verdict])
        assert as_json([verdict], {"implementation": "a:norm", "device": "cpu"}, 1)["cells"][0]["computes"] == computed


def test_no_mode_is_named_on_thin_evidence() -> None:
    def shown(case: Case, mode: str) -> str | None:
        inputs = make_inputs(case)
        y, _ = numpy_reference.forward(inputs.x, inputs.w, eps=case.eps, offset=case.offset, casting_mode=mode)
        return computed_mode(case, inputs, y)

    assert shown(CASE, "llama") == "llama"
    assert shown(dataclasses.replace(CASE, weight="none"), "llama") is None  # gemma and llama are the same there
    assert shown(dataclasses.replace(CASE, shape=(1, 4)), "llama") is None
    assert shown(dataclasses.replace(CASE, dtype="float32"), "llama") is None
    inputs = make_inputs(CASE)
    assert computed_mode(CASE, inputs, inputs.x[:1]) is None


def test_the_profile_of_the_guide_is_one() -> None:
    guide = (Path(__file__).parents[3] / "docs/judge/own_kernel.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    claims = tomllib.loads(block)
    assert Profile().with_claims(claims).columns_multiple_of == claims["columns_multiple_of"]


@pytest.mark.parametrize(
    ("name", "least", "most", "beyond"),
    [
        ("c_div", 0.0, 4.0, (-0.1, 4.1)),
        ("c_rs", 0, 4, (-1, 5)),
        ("min_rows", 0, 10**9, (-1, 0.5, True)),
        ("max_columns", 1, 10**9, (0, 1.5, False)),
        ("columns_multiple_of", 1, 10**6, (0, "2", True)),
        ("column_sums", 1, 10**6, (0, 1.5, "sorted", True)),
        ("row_sums", 1, 10**6, (0, None)),
    ],
)
def test_a_claim_has_its_limits(name: str, least: float, most: float, beyond: tuple) -> None:
    for value in (least, most):
        assert getattr(Profile().with_claims({name: value}), name) == value
    for value in beyond:
        with pytest.raises(ProfileError, match=name):
            Profile().with_claims({name: value})


def test_an_offset_is_a_number_within_a_wide_range() -> None:
    assert Profile().with_claims({"offsets": [-1e300, 0, 1e300]}).offsets == (-1e300, 0.0, 1e300)
    for value in (-1.1e300, 1.1e300, math.inf, math.nan, True, "1"):
        with pytest.raises(ProfileError, match="offsets must be a number of at least -1e\\+300 and at most 1e\\+300"):
            Profile().with_claims({"offsets": [value]})


def test_one_cell_asks_for_each_value_that_is_not_claimed() -> None:
    claims = {"ranks": (2,), "dtypes": ("float16", "float32"), "offsets": (0.0,), "weights": ("same", "none")}
    profile = Profile(**claims, min_rows=1, columns_multiple_of=4, max_columns=256, casting_modes=("gemma",))
    refused = [case for case in profile.cells("smoke") if profile.unclaimed(case)]
    words = [str(profile.unclaimed(case)).removesuffix(" is not claimed") for case in refused]
    columns = refused[0].shape[-1]
    assert sorted(words) == sorted(
        [
            *("casting mode llama", "casting mode none", "dtype bfloat16", "dtype float64"),
            *("offset 0.5", "offset 1", "weight bfloat16", "weight float16", "weight float32"),
            *("rank 1", "rank 3", "rank 4", "rows 0", f"columns {columns + 1}", "columns 260"),
        ]
    )
    shapes = {len(case.shape): case.shape for case in refused if "rank" in str(profile.unclaimed(case))}
    assert shapes == {1: (columns,), 3: (2, 2, columns), 4: (1, 2, 2, columns)}


def test_a_weight_has_a_layout_even_where_no_claimed_one_is_a_weights() -> None:
    assert Profile(layouts=("transposed", "heads")).axes["w_layout"] == ("contiguous",)
    assert Profile(layouts=("misaligned", "transposed")).axes["w_layout"] == ("misaligned",)


def test_a_residual_is_claimed_like_any_setting() -> None:
    both, only = (Profile().with_claims({"residual": claim}) for claim in ([False, True], [True]))
    plain = dataclasses.replace(CASE, residual=False)
    fused = dataclasses.replace(CASE, residual=True)
    assert Profile().unclaimed(fused) == "residual True is not claimed" and Profile().unclaimed(plain) is None
    assert only.unclaimed(plain) == "residual False is not claimed" and only.unclaimed(fused) is None
    assert both.unclaimed(plain) is both.unclaimed(fused) is None
    assert both.cells("matrix") == (*Profile().cells("matrix"), *only.cells("matrix"))
    narrow = only.with_claims({"layouts": ["contiguous", "transposed"]})
    refused = {case for case in narrow.cells("smoke") if narrow.unclaimed(case)}
    for name in ("x_layout", "dy_layout", "r_layout", "ds_layout"):
        others = {getattr(case, name) for case in refused} - {"contiguous"}
        assert others == {"row_strided", "column_strided", "misaligned", "heads", "expanded"}
    with pytest.raises(ProfileError, match="residual cannot be 'yes'"):
        Profile().with_claims({"residual": ["yes"]})
