"""The cells: what is promised is there, ids are unique, inputs are the same everywhere."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from references.cells import cell, levels
from references.cells.cell import Case, make_inputs
from references.cells.levels import COVERING, LEVELS, MATRIX, SMOKE, compatible, find
from references.cells.pairwise import covering_set
from references.spec import DTYPES

ALL = LEVELS["full"]
PLAIN_EPS = {1e-6: "1e-6", 1e-5: "1e-5", 0.0: "0", 1e3: "1e3"}


def choices(case: Case) -> dict:
    """A covering cell as one value of each axis."""
    shape = {"columns": case.shape[-1], "rows": case.n_rows, "rank": len(case.shape)}
    names = levels.COVERING_AXES.keys() - shape.keys() - {"eps"}
    return {name: getattr(case, name) for name in names} | shape | {"eps": PLAIN_EPS.get(case.eps, "mean_square")}


def test_the_axes_are_those_of_the_specification() -> None:
    """Written out: a value that is lost from an axis is lost from every test that reads the axis."""
    columns = {case.shape[-1] for case in COVERING}
    assert columns >= {1, 2, 3, 7, 16, 17, 64, 127, 128, 255, 256, 257, 1000, 4096, 4097, 65536}
    assert {case.n_rows for case in COVERING} >= {0, 1, 2, 15, 16, 17, 33}
    assert {len(case.shape) for case in COVERING} >= {1, 2, 3, 4}
    for cases in (MATRIX, COVERING, SMOKE):
        assert {case.casting_mode for case in cases} == {"llama", "gemma", "none"}
        assert {case.dtype for case in cases} == {"float16", "bfloat16", "float32", "float64"}
        assert {case.offset for case in cases} >= {0.0, 0.5, 1.0}
        assert {case.weight for case in cases} >= {"same", "float32", "none"}
        assert {case.in_place for case in cases} == {True, False}
    for cases in (COVERING, SMOKE):
        layouts = {"contiguous", "row_strided", "column_strided", "transposed", "misaligned", "heads", "expanded"}
        assert {case.x_layout for case in cases} == {case.dy_layout for case in cases} == layouts
        assert {case.w_layout for case in cases} >= {"contiguous", "column_strided", "misaligned"}
        kinds = {"normal", "heavy_tailed", "outlier_column", "constant_rows", "tiny", "huge", "zero_rows", "non_finite"}
        assert {case.data for case in cases} >= kinds - ({"huge"} if cases is SMOKE else set())
        assert {case.row_mode for case in cases} == {None, True, False}


def test_smoke_is_small_and_covers() -> None:
    assert 100 <= len(SMOKE) <= 150
    assert {case.shape[-1] for case in SMOKE} >= {1, 2, 7, 17, 64, 96, 128, 257, 1000, 4097}
    assert {case.n_rows for case in SMOKE} >= {0, 1, 2, 16, 17, 129}


def test_matrix_is_the_full_product() -> None:
    product = set(itertools.product(*levels.MATRIX_AXES.values()))
    assert len(MATRIX) == len(product) == 3 * 3 * 4 * 2 * 3
    assert {tuple(getattr(case, axis) for axis in levels.MATRIX_AXES) for case in MATRIX} == product


def test_half_of_the_matrix_sees_eps() -> None:
    seen = [case for case in MATRIX if 0.2 < case.eps / np.mean(np.square(make_inputs(case).x, dtype=float)) < 5]
    assert seen == [case for case in MATRIX if not case.in_place] and len(seen) == len(MATRIX) // 2
    assert {(case.casting_mode, case.offset, case.dtype, case.weight) for case in seen} == {
        (case.casting_mode, case.offset, case.dtype, case.weight) for case in MATRIX
    }


@pytest.mark.parametrize(
    ("data", "dtype", "columns", "value"),
    [
        ("normal", "float16", 41, 0.7),
        ("constant_rows", "float64", 1, 0.7),
        ("zero_rows", "bfloat16", 16, 0.7),
        ("heavy_tailed", "float32", 41, 2.1),
        ("outlier_column", "float32", 41, 680.0),  # 0.7 + 0.7 · 200² / 41
        ("outlier_column", "bfloat16", 4000, 7.7),
        ("tiny", "float16", 41, 6.7e-07),
        ("tiny", "bfloat16", 41, 7e-25),
        ("tiny", "float64", 41, 7e-201),
        ("large", "float16", 41, 730000.0),
        ("large", "float32", 41, 7e23),
        ("large", "float64", 41, 7e199),
        ("huge", "float32", 41, 7e29),
    ],
)
def test_an_eps_of_the_size_of_the_mean_square(data: str, dtype: str, columns: int, value: float) -> None:
    assert levels.mean_square(data, dtype, columns) == value


def test_ids_are_unique_and_name_every_axis() -> None:
    assert len({case.id for case in ALL}) == len(ALL)
    case = Case("gemma", 0.5, "bfloat16", "float32", True, (3, 7, 41), 1e-6, dy_layout="heads", row_mode=False)
    assert case.id == "gemma-off0.5-bf16-wf32-inplace-3x7x41-normal-eps1e-06-xc-dyh-wc-block-s0"


def test_every_compatible_pair_is_covered() -> None:
    covered = set()
    for case in COVERING:
        hidden_by = set(levels.HIDING) & choices(case).items()
        pairs = itertools.permutations(choices(case).items(), 2)
        covered |= {pair for pair in pairs if hidden_by.issubset(pair)}
    for first, second in itertools.combinations(levels.COVERING_AXES, 2):
        for u, v in itertools.product(levels.COVERING_AXES[first], levels.COVERING_AXES[second]):
            if compatible((first, u), (second, v)):
                assert ((first, u), (second, v)) in covered


MANY_ROWS = {129, 40_001}


def test_every_value_of_every_axis_is_compatible_with_something() -> None:
    for name, values in levels.COVERING_AXES.items():
        found = {choices(case)[name] for case in COVERING}
        assert set(values) == (found - MANY_ROWS if name == "rows" else found)


def test_there_are_cells_of_many_rows() -> None:
    rows = {level: {(case.n_rows, case.dtype) for case in LEVELS[level]} for level in LEVELS}
    assert {(129, dtype) for dtype in DTYPES} <= rows["smoke"]
    assert (40_001, "float16") in rows["full"]


def test_covering_holds_no_incompatible_pair_but_the_one_written_by_hand() -> None:
    *generated, by_hand = COVERING
    for case in generated:
        assert all(compatible(*pair) for pair in itertools.combinations(choices(case).items(), 2)), case.id
    assert (by_hand.data, by_hand.eps) == ("zero_rows", 0.0)


def test_the_block_variant_gets_several_blocks_with_a_rest() -> None:
    assert any(case.row_mode is False and case.n_rows > 16 and case.n_rows % 16 for case in COVERING)


def test_smoke_is_a_small_part_with_every_pair_of_the_matrix_axes() -> None:
    assert set(SMOKE) < set(ALL)
    covered = {
        pair
        for case in SMOKE
        for pair in itertools.combinations(((axis, getattr(case, axis)) for axis in levels.MATRIX_AXES), 2)
    }
    for first, second in itertools.combinations(levels.MATRIX_AXES, 2):
        for u, v in itertools.product(levels.MATRIX_AXES[first], levels.MATRIX_AXES[second]):
            assert ((first, u), (second, v)) in covered


CLAIMS = {  # an ordinary function: one mode, no offset, no float64
    "casting_mode": ("gemma",),
    "offset": (0.0,),
    "dtype": ("float16", "bfloat16", "float32"),
    "weight": ("same", "float32"),
}


@pytest.mark.parametrize(
    "claims",
    [
        CLAIMS,
        CLAIMS | {"x_layout": ("contiguous",), "dy_layout": ("contiguous",), "w_layout": ("contiguous",)},
        {"dtype": ("float32",), "weight": ("none",)},
        {"rank": (2,), "columns": (64, 128, 4096), "rows": (1, 2, 16)},
        {"rank": (1,), "casting_mode": ("llama",)},
        {"columns": (8192,), "weight": ("bfloat16",)},
    ],
    ids=str,
)
@pytest.mark.parametrize("level", LEVELS)
def test_cells_are_drawn_within_the_claims(level: str, claims: dict) -> None:
    axes = levels.COVERING_AXES | claims
    cases = levels.draw(level, axes)
    assert len(set(cases)) == len(cases)
    by_hand = set(levels.draw("full")[-1:])
    for case in set(cases) - by_hand:
        for name, value in choices(case).items():
            assert value in axes[name] or name in ("columns", "rows", "eps"), (case.id, name)
    covered = {pair for case in cases for pair in itertools.combinations(choices(case).items(), 2)}
    covered |= {(b, a) for a, b in covered}
    names = ["casting_mode", "dtype", "weight"] + ["x_layout", "dy_layout", "w_layout"] * (level != "matrix")
    for first, second in itertools.combinations(names, 2):
        for u, v in itertools.product(axes[first], axes[second]):
            if level == "matrix" and {u, v} & set(axes["weight"]) - set(levels.WEIGHTS):
                continue
            possible = all(
                any(compatible(choice, (other, value)) for value in values)
                for choice in ((first, u), (second, v))
                for other, values in axes.items()
                if other != choice[0]
            )
            if possible and compatible((first, u), (second, v)):
                assert ((first, u), (second, v)) in covered


def test_smoke_is_about_a_hundred_cells_for_an_ordinary_function() -> None:
    assert 90 <= len(levels.draw("smoke", levels.COVERING_AXES | CLAIMS)) <= 140


def test_covering_set_of_a_small_example() -> None:
    axes = {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    rows = covering_set(axes, lambda one, other: (one, other) != (("a", 1), ("b", 2)))
    pairs = {pair for row in rows for pair in itertools.combinations(row.items(), 2)}
    assert len(pairs) == 11 and len(rows) <= 5
    assert not any(row["a"] == 1 and row["b"] == 2 for row in rows)


def test_covering_set_does_not_count_hidden_pairs() -> None:
    axes = {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    rows = covering_set(axes, lambda one, other: True, hiding=[("a", 1)])
    assert {(row["b"], row["c"]) for row in rows if row["a"] == 2} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_covering_set_names_the_axis_without_a_fitting_value() -> None:
    with pytest.raises(ValueError, match="no value of c"):
        covering_set({"a": (1,), "b": (1,), "c": (1,)}, lambda one, other: other[0] != "c")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_inputs_have_the_promised_shape_dtype_and_data(case: Case) -> None:
    inputs = make_inputs(case)
    assert inputs.x.shape == inputs.dy.shape == case.shape
    assert inputs.x.dtype == inputs.dy.dtype == np.dtype(case.dtype)
    assert (inputs.w is None) == (case.w_dtype is None)
    if inputs.w is not None:
        assert inputs.w.shape == case.shape[-1:] and inputs.w.dtype == np.dtype(case.w_dtype)
    rows = inputs.x.reshape(case.n_rows, case.shape[-1]).astype(float)
    assert np.isfinite(rows).all() == (case.data != "non_finite" or case.n_rows == 0)
    if case.n_rows and case.data == "zero_rows":
        assert not rows[0].any()
    if case.data == "constant_rows":
        assert (rows == rows[:, :1]).all() and (rows != 0).all()
    if case.x_layout == "expanded":
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[:1], rows.shape))
    if case.dy_layout == "expanded":
        assert (inputs.dy.reshape(rows.shape) == inputs.dy.reshape(rows.shape)[:1]).all()


def test_dy_is_dense_and_random_and_weights_are_noise() -> None:
    for case in MATRIX:
        inputs = make_inputs(case)
        assert np.unique(inputs.dy).size > inputs.dy.size // 2
        assert inputs.w is None or np.unique(inputs.w).size > 20


def test_inputs_do_not_depend_on_the_process() -> None:
    code = "from references.cells import cell, levels; print(cell.make_inputs(levels.MATRIX[5]).x.tobytes().hex())"
    here = make_inputs(MATRIX[5]).x.tobytes().hex()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == here
    assert make_inputs(MATRIX[4]).x.tobytes().hex() != here


def test_an_id_names_its_cell() -> None:
    assert find(COVERING[3].id) is COVERING[3]
    assert all(cell.from_id(case.id) == case for case in ALL)
    small = dataclasses.replace(COVERING[3], shape=(1, 1, 513), seed=7)
    assert small not in ALL and find(small.id) == small


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "gemma"),
        ("-normal-", "-odd-"),
        ("-off0-", "-off0.0-"),
        ("-f16-", "-f8-"),
        ("-wsame-", "-wi8-"),
        ("-2x4x41-", "-2x4x0-"),
        ("-2x4x41-", "-41-"),
        ("-xh-", "-xq-"),
        ("-s0", "-s"),
    ],
)
def test_what_names_no_cell_gets_the_nearest_id(old: str, new: str) -> None:
    case_id = "llama-off0-f16-wsame-inplace-2x4x41-normal-eps1e-06-xh-dyc-wc-auto-s0"
    assert old in case_id and find(case_id)
    with pytest.raises(KeyError, match="nearest is"):
        find(case_id.replace(old, new) if old else new)


def test_the_ends_of_the_range_are_where_they_are_said_to_be() -> None:
    """TINY and LARGE have squares and cubes inside the compute dtype, HUGE squares alone."""
    assert cell.TINY == {"float16": 2.0**-10, "bfloat16": 1e-12, "float32": 1e-12, "float64": 1e-100}
    assert cell.LARGE == {"float16": 2.0**10, "bfloat16": 1e12, "float32": 1e12, "float64": 1e100}
    assert cell.HUGE == {"float16": 2.0**10, "bfloat16": 1e15, "float32": 1e15, "float64": 1e100}
    assert cell.OUTLIER == 200.0


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ("normal", (-2.96, 1.383, -0.7479, 0.6578)),
        ("heavy_tailed", (0.2548, 0.1716, 1.203, 0.1802)),
        ("outlier_column", (-0.6579, -0.5477, -0.5191, 0.6526)),
        ("constant_rows", (-1.676, 1.694, -1.116, 0.9435)),
        ("tiny", (1.044e-12, 6.346e-13, 0.4631, -0.4812)),
        ("large", (1.593e12, -1.136e12, -0.4559, 0.1795)),
        ("huge", (7.338e14, 4.577e14, 0.2114, 1.386)),
        ("zero_rows", (0.0, -0.0, 0.2885, -0.6084)),
        ("non_finite", (-0.8782, -1.616, 0.7582, 0.08048)),
        ("overflowing", (-0.9885, 0.4244, -0.3711, -0.6386)),
    ],
)
def test_an_id_has_the_same_inputs_for_ever(data: str, values: tuple[float, ...]) -> None:
    """Results of other days and machines are compared by id."""
    inputs = make_inputs(Case("llama", 0.5, "float32", "same", False, (4, 7), 1e-6, data=data))
    assert inputs.w is not None
    found = (inputs.x[0, 0], inputs.x[2, 5], inputs.w[3], inputs.dy[1, 6])
    assert [f"{value:.4g}" for value in found] == [f"{value:.4g}" for value in values]


def test_what_the_kinds_of_data_are() -> None:
    def x(data: str, columns: int = 7, rows: int = 4, **more: str) -> np.ndarray:
        return make_inputs(Case("llama", 0.5, "float32", "same", False, (rows, columns), 1e-6, data=data, **more)).x

    outlier = np.abs(x("outlier_column", 9, 40)).mean(0)
    assert np.argmax(outlier) == 3 and outlier[3] > 50 * np.delete(outlier, 3).max()
    constant = x("constant_rows", 7, 200)[:, 0]
    assert (constant > 0).any() and (constant < 0).any()
    assert 0.5 <= np.abs(constant).min() < 0.52 and 1.98 < np.abs(constant).max() <= 2
    zeros = x("zero_rows", 7, 5)
    assert [bool(row.any()) for row in zeros] == [False, True, False, True, False]
    assert np.signbit(zeros[[0, 2, 4]]).any() and not np.signbit(zeros[[0, 2, 4]]).all()
    special = x("non_finite", 9, 5)
    assert [row.tolist() for row in np.argwhere(~np.isfinite(special))] == [[0, 4], [1, 4], [2, 4]]
    assert special[0, 4] == np.inf and np.isnan(special[1, 4]) and special[2, 4] == -np.inf
    assert (np.abs(x("heavy_tailed", 100, 100)) > 8).any() and not (np.abs(x("normal", 100, 100)) > 6).any()
    expanded = x("normal", x_layout="expanded")
    assert (expanded == expanded[:1]).all() and len(set(expanded[0])) == 7


def test_of_overflowing_weights_one_in_four_is_half_of_the_largest_number() -> None:
    case = Case("llama", 0.5, "float16", "float32", False, (4, 10), 1e-6, data="overflowing")
    w = make_inputs(case).w
    assert w is not None and w.dtype == np.float32
    assert [abs(float(value)) == 32752.0 for value in w] == [i % 4 == 0 for i in range(10)]
    narrow = make_inputs(dataclasses.replace(case, dtype="float32", weight="float16")).w
    assert narrow is not None and abs(float(narrow[4])) == 32752.0  # of the narrower dtype


@pytest.mark.parametrize(
    ("change", "plain", "structured"),
    [
        ({}, True, False),
        ({"data": "tiny"}, False, False),
        ({"data": "constant_rows"}, False, True),
        ({"x_layout": "expanded"}, False, True),
        ({"dy_layout": "expanded"}, False, True),
        ({"x_layout": "transposed"}, False, False),
        ({"dy_layout": "transposed"}, False, False),
        ({"w_layout": "misaligned"}, False, False),
        ({"weight": "none", "in_place": True, "row_mode": False}, True, False),
    ],
)
def test_what_is_plain_and_what_structured(change: dict, plain: bool, structured: bool) -> None:
    case = dataclasses.replace(Case("llama", 0.5, "float16", "same", False, (2, 3, 7), 1e-6), **change)
    assert (case.plain, case.structured, case.n_rows) == (plain, structured, 6)
    assert dataclasses.replace(case, shape=(7,)).n_rows == 1


def test_inputs_in_float32() -> None:
    case = Case("llama", 0.5, "float64", "same", False, (2, 3), 1e-6)
    for weight, dtype in (("same", np.float32), ("float16", np.float16), ("float32", np.float32), ("none", None)):
        inputs = make_inputs(dataclasses.replace(case, weight=weight))
        (narrow,) = cell.in_float32(inputs)
        assert narrow.x.dtype == narrow.dy.dtype == np.float32
        assert (None if narrow.w is None else narrow.w.dtype) == dtype
        np.testing.assert_array_equal(narrow.x, inputs.x.astype(np.float32))
        np.testing.assert_array_equal(narrow.dy, inputs.dy.astype(np.float32))


@pytest.mark.parametrize(
    ("rows", "rank", "leading"),
    [
        (1, 1, ()),
        (7, 2, (7,)),
        (2, 3, (1, 2)),
        (16, 3, (4, 4)),
        (16, 4, (2, 2, 4)),
        (33, 3, (3, 11)),
        (33, 4, (1, 3, 11)),
        (0, 2, (0,)),
        (0, 3, (0, 2)),
        (0, 4, (0, 2, 2)),
    ],
)
def test_rows_are_spread_over_the_dimensions(rows: int, rank: int, leading: tuple[int, ...]) -> None:
    assert levels._leading(rows, rank) == leading


@pytest.mark.parametrize(
    ("claims", "shape"),
    [
        ({}, (2, 4, 41)),
        ({"rank": (1,)}, (41,)),
        ({"rank": (2, 1)}, (8, 41)),
        ({"rank": (4,)}, (1, 2, 4, 41)),
        ({"columns": (64, 128)}, (2, 4, 128)),
        ({"columns": (2, 4, 100)}, (2, 4, 82)),
        ({"columns": (7, 14)}, (2, 4, 14)),
        ({"columns": (8192,), "rank": (2,)}, (8, 8192)),
    ],
)
def test_the_matrix_has_one_shape_within_the_claims(claims: dict, shape: tuple[int, ...]) -> None:
    assert {case.shape for case in levels.draw("matrix", levels.COVERING_AXES | claims)} == {shape}


@pytest.mark.parametrize("claims", [{"rows": (3000,), "columns": (1,)}, {"rows": (1,), "columns": (3000,)}], ids=str)
def test_what_is_large_in_one_direction_alone_has_small_cells(claims: dict) -> None:
    cells = tuple(levels._small_covering(levels.COVERING_AXES | claims))
    assert {(case.n_rows, case.shape[-1]) for case in cells} == {(*claims["rows"], *claims["columns"])}
    assert {case.dtype for case in cells} == {"float16", "bfloat16", "float32", "float64"}


def test_a_weight_that_goes_with_one_dtype_alone_ends_no_matrix() -> None:
    """float16 and bfloat16 beside X of the other: what cannot stand together is left out, what follows is not."""
    claims = {"dtype": ("float16", "bfloat16"), "weight": ("float16", "bfloat16")}
    cells = levels.draw("matrix", levels.COVERING_AXES | claims)
    assert {(case.dtype, case.weight) for case in cells} == {("float16", "bfloat16"), ("bfloat16", "float16")}


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        (("rank", 1), ("rows", 1), True),
        (("rank", 1), ("rows", 2), False),
        (("rank", 1), ("rows", 0), False),
        (("rank", 2), ("rows", 0), True),
        (("rank", 1), ("x_layout", "column_strided"), True),
        (("rank", 1), ("x_layout", "row_strided"), False),
        (("rank", 1), ("dy_layout", "transposed"), False),
        (("rank", 1), ("dy_layout", "expanded"), False),
        (("rank", 2), ("x_layout", "expanded"), True),
        (("rank", 2), ("dy_layout", "heads"), False),
        (("rank", 3), ("x_layout", "heads"), True),
        (("columns", 4097), ("rows", 33), True),
        (("columns", 65536), ("rows", 2), True),
        (("columns", 65536), ("rows", 1), True),
        (("columns", 65536), ("rows", 0), False),
        (("columns", 65536), ("rows", 15), False),
        (("columns", 65536), ("row_mode", False), False),
        (("columns", 65536), ("row_mode", None), True),
        (("columns", 4097), ("row_mode", False), True),
        (("columns", 65536), ("dtype", "float64"), True),
        (("weight", "none"), ("w_layout", "contiguous"), True),
        (("weight", "none"), ("w_layout", "misaligned"), False),
        (("weight", "none"), ("data", "overflowing"), False),
        (("weight", "none"), ("data", "huge"), True),
        (("weight", "same"), ("w_layout", "misaligned"), True),
        (("weight", "bfloat16"), ("dtype", "float16"), True),
        (("weight", "bfloat16"), ("dtype", "float32"), True),
        (("weight", "bfloat16"), ("dtype", "bfloat16"), False),
        (("weight", "bfloat16"), ("dtype", "float64"), False),
        (("weight", "float16"), ("dtype", "float16"), False),
        (("weight", "float32"), ("dtype", "float32"), True),
        (("eps", "0"), ("data", "zero_rows"), False),
        (("eps", "0"), ("data", "normal"), True),
        (("eps", "1e-6"), ("data", "zero_rows"), True),
    ],
)
def test_which_values_stand_together(one: tuple, other: tuple, fits: bool) -> None:
    assert compatible(one, other) is compatible(other, one) is fits


def test_many_rows_are_drawn_where_they_fit() -> None:
    def many(level: str, **claims: tuple) -> set[tuple[tuple[int, ...], str]]:
        cases = levels.draw(level, levels.COVERING_AXES | claims)
        return {(case.shape, case.dtype) for case in cases if case.n_rows > 33}

    short = {((129, 7), dtype) for dtype in DTYPES}
    assert many("smoke") == short and many("full") == {*short, ((40_001, 7), "float16")} and many("matrix") == set()
    assert many("smoke", dtype=("float32",)) == {((129, 7), "float32")}
    assert many("full", dtype=("float32", "float16")) >= {((40_001, 7), "float32")}
    assert many("smoke", rank=(1, 3)) == many("smoke", columns=(1, 2, 6)) == set()
    assert {shape for shape, _ in many("smoke", columns=(64, 448))} == {(129, 448)}
    assert many("smoke", columns=(64, 384)) == set()


def test_a_smoke_cell_is_small() -> None:
    few = [case for case in SMOKE if case.n_rows <= 33]
    assert 4097 <= max(case.n_rows * case.shape[-1] for case in few) <= 4200
    wide = levels.draw("smoke", levels.COVERING_AXES | {"columns": (8192, 16384), "rows": (2, 33)})
    shapes = {(case.n_rows, case.shape[-1]) for case in wide if case.shape[:-1] != (2, 4)}
    assert shapes == {(2, 8192)}, "where nothing small is claimed, the smallest"


def test_rows_of_zeros_without_eps_are_drawn_by_hand() -> None:
    def by_hand(**claims: tuple) -> list[Case]:
        cases = levels.draw("full", levels.COVERING_AXES | claims)
        return [case for case in cases if case.data == "zero_rows" and case.eps == 0]

    (case,) = by_hand()
    assert case == Case("llama", 0.0, "float32", "same", False, (2, 17), 0.0, data="zero_rows")
    for lost in ({"casting_mode": ("gemma",)}, {"dtype": ("float16",)}, {"columns": (16, 32)}, {"in_place": (True,)}):
        assert by_hand(**lost) == []


def test_an_id_of_an_impossible_shape_names_no_cell() -> None:
    usual = "llama-off0-f32-wsame-inplace-{}-normal-eps1e-06-x{}-dy{}-wc-auto-s0"
    for shape, x, dy in (("5", "cs", "m"), ("2x5", "t", "e"), ("2x2x5", "h", "h"), ("1", "c", "c")):
        assert find(usual.format(shape, x, dy))
    for shape, x, dy in (("5", "t", "c"), ("5", "c", "rs"), ("2x5", "h", "c"), ("2x5", "c", "h"), ("2x0", "c", "c")):
        with pytest.raises(KeyError, match="nearest is"):
            find(usual.format(shape, x, dy))


# With a residual

STREAM = {level: levels.draw(level, levels.COVERING_AXES | levels.RESIDUAL_AXES) for level in LEVELS}


def test_with_a_residual_the_matrix_is_the_same_and_every_layout_meets_every_other() -> None:
    assert [dataclasses.replace(case, residual=False) for case in STREAM["matrix"]] == list(MATRIX)
    laid = [case for case in STREAM["full"] if case.n_rows]
    for first, second in itertools.combinations(("x_layout", "dy_layout", "r_layout", "ds_layout"), 2):
        met = {(getattr(case, first), getattr(case, second)) for case in laid}
        assert met == set(itertools.product(cell.LAYOUT_CODES, repeat=2))
    assert all(case.residual for cases in STREAM.values() for case in cases)
    assert not any(case.residual for case in ALL)


def test_an_id_names_its_cell_with_a_residual_too() -> None:
    one = dataclasses.replace(MATRIX[0], residual=True, r_layout="transposed", ds_layout="expanded")
    assert one.id == MATRIX[0].id.replace("-wc-auto", "-wc-rt-dse-auto")
    assert all(cell.from_id(case.id) == case for case in STREAM["full"])
    assert find(one.id) == one and one.structured and not one.plain
    with pytest.raises(KeyError, match="nearest is"):
        find(MATRIX[0].id.replace("-2x4x41-", "-41-").replace("-wc-auto", "-wc-rh-dsc-auto"))


@pytest.mark.parametrize("case", STREAM["smoke"], ids=lambda case: case.id)
def test_r_is_like_x_and_ds_like_dy(case: Case) -> None:
    inputs = make_inputs(case)
    assert inputs.r is not None and inputs.ds is not None
    assert inputs.r.shape == inputs.ds.shape == case.shape and inputs.r.dtype == inputs.ds.dtype == inputs.x.dtype
    if case.shape[-1] > 2 and case.n_rows and case.data not in ("zero_rows", "constant_rows", "non_finite"):
        assert not (inputs.r == inputs.x).all() and not (inputs.ds == inputs.dy).all()
    rows = inputs.r.reshape(case.n_rows, case.shape[-1]).astype(float)
    if case.r_layout == "expanded":
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[:1], rows.shape))
    if case.data == "constant_rows":
        assert (rows == rows[:, :1]).all()
    assert (inputs.normed == (inputs.x + inputs.r)).all() or case.data == "non_finite" or case.dtype != "float64"
    assert make_inputs(dataclasses.replace(case, residual=False)).r is None
