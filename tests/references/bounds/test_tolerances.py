"""The bounds are sound (no right result exceeds them), tight (one comes near), and tell modes apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from references import numpy_reference
from references.arrays import numpy_dtype
from references.bounds import tolerances
from references.bounds.rounding import pairwise_depth, sequential_depth, tree_depth
from references.bounds.tolerances import SEQUENTIAL, Arithmetic
from references.judge.comparison import Comparison
from references.spec import DTYPES, ROUNDING_POINTS, CastingMode
from tests.references.bounds import draws
from tests.references.bounds.draws import TIGHT, Draw

MODES = [str(mode) for mode in CastingMode]
SIXTEEN = ("float16", "bfloat16")


def draw(**change) -> Draw:
    """An ordinary draw with some fields changed."""
    plain = Draw("float32", "float32", "llama", "normal", "pairwise", 16, 64, 1e-5, 0.5, seed=3)
    return dataclasses.replace(plain, **change)


# Soundness and tightness


@pytest.fixture(scope="module")
def cells() -> dict:
    return draws.measure(draws.draws(1500, seed=0))


@pytest.mark.parametrize("tensor", draws.TENSORS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_bounds_are_sound_and_tight(cells, mode, dtype, tensor):
    cell = cells[mode, dtype, tensor]
    assert TIGHT < cell.ratio <= 1, cell.worst
    assert cell.misrounded == 0
    assert cell.outside <= 0.1 * cell.elements
    if dtype in SIXTEEN and (tensor != "rstd" or mode == "none"):
        assert cell.decided >= (0.6 if tensor == "dr" else 0.7) * cell.elements  # half of the dR cancel


@pytest.mark.parametrize(
    ("ratios", "misrounded", "sums", "says", "status"),
    [
        ((0.5, 0.9), 0, 0.5, "sound, tight", 0),
        ((0.5, 1.0), 0, 0.5, "sound, tight", 0),
        ((0.5, 1.1), 0, 0.5, "UNSOUND, tight", 1),
        ((7.0, 0.9), 0, 0.5, "UNSOUND, tight", 1),
        ((0.5, 0.9), 0, 1.1, "UNSOUND, tight", 1),
        ((0.5, 0.9), 1, 0.5, "UNSOUND, tight", 1),
        ((0.001, 0.9), 0, 0.5, "sound, LOOSE", 1),
        ((0.5, 0.9), 0, 0.001, "sound, LOOSE", 1),
    ],
)
def test_the_self_test_judges_by_its_worst_cell(ratios, misrounded, sums, says, status, monkeypatch, capsys):
    def measured(sample):
        cells = [draws.Cell(ratio=ratio) for ratio in ratios]
        cells[0].misrounded = misrounded
        return {("llama", "float32", str(number)): cell for number, cell in enumerate(cells)}

    monkeypatch.setattr(draws, "measure", measured)
    monkeypatch.setattr(draws, "many_rows", lambda *_: sums)
    monkeypatch.setattr("sys.argv", ["draws"])
    assert draws.main() == status
    assert capsys.readouterr().out.splitlines()[-1] == says


@pytest.mark.parametrize("order", draws.ORDERS)
def test_many_rows(order):
    """A bound by Σ|p| would stand at √rows times the error; the one for independent rows stays near it."""
    assert TIGHT < draws.many_rows(30_000, 64, order, seed=3) <= 1


def test_the_default_arithmetic_covers_every_order():
    for sample in draws.draws(60, seed=2):
        got, bounds = sample.candidate(), sample.bounds(SEQUENTIAL)
        for tensor, bound in bounds.items():
            assert (bound.ratio(got[tensor])[bound.applies] <= 1).all(), (sample, tensor)
            assert not bound.misrounded(got[tensor]).any(), (sample, tensor)


def test_structured_data_need_the_deterministic_form():
    """Equal addends round the same way again and again: no martingale."""
    equal = draw(data="constant", order="sequential", n_rows=1, n_cols=4097)
    got, options = equal.candidate(), {"eps": equal.eps, "offset": equal.offset, "casting_mode": "llama"}
    _, x, w = equal.inputs()
    exact = Arithmetic()
    loose = tolerances.forward_bounds(x, w, structured=True, arithmetic=exact, **options)["rstd"]
    tight = tolerances.forward_bounds(x, w, structured=False, arithmetic=exact, **options)["rstd"]
    assert loose.ratio(got["rstd"]) <= 1 < tight.ratio(got["rstd"])


@pytest.mark.parametrize("order", draws.ORDERS)
@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 100, 129, 1000])
def test_orders_of_summation_add_up(order, n):
    add, depth = draws.ORDERS[order]
    terms = np.random.default_rng(n).integers(-9, 9, (3, n)).astype(np.float64)
    np.testing.assert_array_equal(add(terms), terms.sum(-1))
    assert 0 <= tree_depth(n) <= depth(n) <= max(sequential_depth(n), depth(1))
    assert pairwise_depth(n) <= sequential_depth(n)


def test_typical_size():
    """float32, N = 4096, a tree of depth 24: Y is good to about 16 unit roundoffs, by hand 0.5·4·√24 + 6."""
    x = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    tree = Arithmetic(column_depth=lambda n: 24)
    bound = tolerances.forward_bounds(x, None, eps=1e-6, offset=0.0, casting_mode="gemma", arithmetic=tree)["y"]
    np.testing.assert_allclose(bound.tolerance / np.abs(bound.value) * 2**24, 15.8, atol=1)


def test_typical_size_of_none():
    """One bfloat16 column: the square, the mean and the variance round, halved by the root, and RSTD: 2.5 u."""
    x = np.full((1, 1), 1.5, numpy_dtype("bfloat16"))
    bound = tolerances.forward_bounds(x, None, eps=1e-9, offset=0.0, casting_mode="none", structured=True)["rstd"]
    np.testing.assert_allclose(bound.tolerance / bound.value * 2**8, 2.5, atol=0.1)


def test_where_the_order_of_sums_decides_a_rounding_either_result_is_allowed():
    """The mean square is 1 + 2⁻¹¹, halfway between two float16 numbers: an ulp in the sum decides."""
    x = np.ones((1, 2048), np.float16)
    x[0, :2], x[0, 2:4] = 1.5, 0.5
    setting = {"eps": 0.0, "offset": 0.0, "casting_mode": "none"}
    bound = tolerances.forward_bounds(x, None, arithmetic=Arithmetic(c_div=0.0), **setting)["rstd"]
    lower = np.float32(np.float16(1 / np.sqrt(1 + 2.0**-10)))
    assert not bound.misrounded(np.float32([1])).any() and not bound.misrounded(np.array([lower])).any()
    assert bound.misrounded(np.float32([1 + 2.0**-10])).all() and not bound.decided.any()


# What the bounds tell apart


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("point", [f.name for f in dataclasses.fields(ROUNDING_POINTS[CastingMode.NONE])])
@pytest.mark.parametrize("mode", MODES)
def test_one_rounding_more_or_less_is_seen(monkeypatch, mode, point, dtype):
    sample = draw(dtype=dtype, w_dtype="float32", casting_mode=mode, n_rows=64, n_cols=24, eps=0.7, offset=0.1)
    bounds = sample.bounds(SEQUENTIAL)
    assert not any(bounds[t].misrounded(v).any() for t, v in sample.candidate().items())
    points = ROUNDING_POINTS[CastingMode(mode)]
    changed = dataclasses.replace(points, **{point: not getattr(points, point)})
    monkeypatch.setattr(draws, "ROUNDING_POINTS", {CastingMode(mode): changed})
    wrong = {t: bounds[t].misrounded(v).mean() + (bounds[t].ratio(v) > 1).mean() for t, v in sample.candidate().items()}
    assert max(wrong.values()) > 0.02, wrong


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("mode", MODES)
def test_truncation_is_seen(mode, dtype):
    sample = draw(dtype=dtype, w_dtype=dtype, casting_mode=mode)
    bounds, wide = sample.bounds(SEQUENTIAL), draw(casting_mode=mode).candidate()
    for tensor in ("y", "dx", "dw"):
        value = wide[tensor]
        nearest = value.astype(numpy_dtype(dtype))
        away = np.abs(nearest.astype(np.float32)) > np.abs(value)
        bits = nearest.view(np.uint16) - away.astype(np.uint16)
        assert bounds[tensor].misrounded(bits.view(nearest.dtype)).mean() > 0.2


# The ends of the range


@pytest.mark.parametrize("mode", MODES)
def test_subnormal_results_have_their_own_term(mode):
    """float16 numbers below 2⁻¹⁴ lie 2⁻²⁴ apart whatever their size: no relative bound can hold there."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((8, 64)), 1e-6 * rng.standard_normal((8, 64))
    x, dy, w = x.astype(np.float16), dy.astype(np.float16), np.ones(64, np.float16)
    setting = {"eps": 1e-6, "offset": 0.0, "casting_mode": mode}
    bound = tolerances.backward_bounds(dy, x, w, **setting)["dx"]
    dx, _ = numpy_reference.backward(dy, x, w, **setting)
    relative = (dx - bound.value) / bound.value
    assert np.abs(relative).max() > 16 * 2.0**-11
    assert TIGHT < bound.ratio(dx).max() <= 1
    assert bound.largest_term((0, 0)) == "rounding"


@pytest.mark.parametrize("scale", [2.0**-10, 1e-3, 2.0**-11])
def test_none_in_float16_with_subnormal_squares(scale):
    """x² keeps few bits or none, and the bounds say by how much instead of giving up."""
    x = (scale * np.random.default_rng(0).standard_normal((32, 256))).astype(np.float16)
    setting = {"eps": 1e-5, "offset": 0.0, "casting_mode": "none"}
    bounds = tolerances.forward_bounds(x, None, **setting)
    y, rstd = numpy_reference.forward(x, None, **setting)
    for got, bound in ((y, bounds["y"]), (rstd, bounds["rstd"])):
        assert bound.applies.all() and not bound.misrounded(got).any()
        assert TIGHT < bound.ratio(got).max() <= 1


def test_rows_out_of_range_are_not_judged_and_do_not_touch_others():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 16)).astype(np.float32)
    x[0], x[1, 3], x[2, 4], x[3], x[4] = 0, np.nan, np.inf, x[3] * 1e25, x[4] * 1e-30
    dy = rng.standard_normal((6, 16)).astype(np.float32)
    w = np.ones(16, np.float32)
    setting = {"eps": 0.0, "offset": 0.0, "casting_mode": "gemma"}
    bounds = tolerances.forward_bounds(x, w, **setting) | tolerances.backward_bounds(dy, x, w, **setting)
    inside = np.array([False, False, False, False, False, True])
    np.testing.assert_array_equal(bounds["rstd"].applies, inside)
    for tensor in ("y", "dx"):
        np.testing.assert_array_equal(bounds[tensor].applies, np.broadcast_to(inside[:, None], x.shape))
        assert np.isnan(bounds[tensor].ratio(x)[0]).all()
    assert not bounds["dw"].applies.any()

    dy[5, 7], x = np.nan, np.tile(x[5], (6, 1))  # only column 7 of dW has to be NaN
    applies = tolerances.backward_bounds(dy, x, w, **setting)["dw"].applies
    np.testing.assert_array_equal(applies, np.arange(16) != 7)


@pytest.mark.parametrize(("value", "judged"), [(200.0, True), (255.0, True), (256.0, False)])
def test_none_overflows_where_float16_squares_do(value, judged):
    x = np.full((1, 4), value, np.float16)
    for mode in MODES:
        bound = tolerances.forward_bounds(x, None, eps=1e-6, offset=0.0, casting_mode=mode)["y"]
        assert bound.applies.all() == (judged or mode != "none")


def test_results_that_may_overflow_are_not_judged():
    x, w = np.ones((1, 2), np.float16), np.array([1.0, 1e5], np.float32)
    bound = tolerances.forward_bounds(x, w, eps=0.0, offset=0.0, casting_mode="gemma")["y"]
    assert bound.applies.tolist() == [[True, False]]


def test_sums_that_overflow_are_not_judged():
    x, w = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    dy = np.array([[3e38, 3e38, -3e38, -3e38], [1, 1, 1, 1]], np.float32)
    bounds = tolerances.backward_bounds(dy, x, w, eps=0.5, offset=0.0, casting_mode="llama")
    assert bounds["dx"].applies.tolist() == [[False] * 4, [True] * 4]
    assert not bounds["dw"].applies.any()


def test_no_pattern_is_specified_where_an_intermediate_result_may_overflow():
    """Of finite inputs: 3e38 + 3e38 - 3e38 is infinite in one order and not in another. NaN in, NaN out stays."""
    x, w = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    x[2, 0] = np.nan
    dy = np.array([[3e38, 3e38, -3e38, -3e38], [1, 1, 1, 1], [1, 1, 1, 1]], np.float32)
    about = {"eps": 0.5, "offset": 0.0, "casting_mode": "llama"}
    bound = tolerances.backward_bounds(dy, x, w, **about)["dx"]
    assert bound.patterned.tolist() == [[False] * 4, [True] * 4, [True] * 4]
    wanted, _ = numpy_reference.backward(dy, x, w, **about)
    for row, found in ((0, False), (1, True), (2, True)):
        got = wanted.copy()
        got[row] = np.inf
        assert bool(Comparison("dx", got, wanted, bound, "llama", True).findings()) == found


@pytest.mark.parametrize(
    ("got", "right"), [(np.inf, True), (65504, True), (-np.inf, False), (np.nan, False), (0, False), (65440, False)]
)
def test_at_the_edge_of_the_range_the_largest_number_and_infinity_are_right(got, right):
    """1·65519.99 in float16: a little less rounds to 65504, a little more to infinity."""
    x, w = np.ones((1, 2), np.float16), np.array([1.0, 65519.99], np.float32)
    about = {"eps": 0.0, "offset": 0.0, "casting_mode": "gemma"}
    bound = tolerances.forward_bounds(x, w, **about)["y"]
    assert bound.at_the_edge.tolist() == [[False, True]]
    y, _ = numpy_reference.forward(x, w, **about)
    y[0, 1] = got
    assert (not Comparison("y", y, y, bound, "gemma", True).findings()) == right


@pytest.mark.parametrize(("got", "right"), [(np.inf, True), (-np.inf, True), (0, True), (np.nan, False)])
def test_where_all_cancels_and_the_rest_overflows_either_infinity_is_right(got, right):
    """One column and eps 0: dX is 0, and what rounding leaves of its parts of 1e23 exceeds float16."""
    x, w, dy = np.array([[-1.487]], np.float16), np.array([1e23], np.float32), np.array([[2.66]], np.float16)
    about = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama"}
    bound = tolerances.backward_bounds(dy, x, w, **about)["dx"]
    got = np.full((1, 1), got, np.float16)
    assert (not Comparison("dx", got, got, bound, "llama", True).findings()) == right


def test_an_overflow_of_one_product_leaves_the_whole_row_open():
    """dY·w' of the first row exceeds float32 in one column, whose x makes their sum small again."""
    x = np.array([[1.0, 1.0, 1e-30], [1.0, 1.0, 1.0]], np.float32)
    w, dy = np.array([1.0, 1.0, 1e5], np.float32), np.array([[1.0, 1.0, 1e35], [1.0, 1.0, 1.0]], np.float32)
    bound = tolerances.backward_bounds(dy, x, w, eps=1e10, offset=0.0, casting_mode="llama")["dx"]
    assert bound.applies.tolist() == bound.patterned.tolist() == [[False] * 3, [True] * 3]


def test_where_a_row_cancels_the_enclosure_decides_and_no_number_of_ulps():
    """One column and no eps: dX is 0 but for what rounding leaves, many ulps of itself."""
    one = draw(dtype="float16", w_dtype="float16", casting_mode="gemma", n_rows=64, n_cols=1, eps=0.0, offset=1.0)
    bound, right = one.bounds(SEQUENTIAL)["dx"], one.candidate()["dx"]
    for got in (right, *bound.enclosure):
        assert Comparison("dx", got, right, bound, "gemma", True).findings() == []
    outside = np.nextafter(bound.enclosure[1], np.float16(1))
    assert {f.check for f in Comparison("dx", outside, right, bound, "gemma", True).findings()} >= {"rounding"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_gradient_rounded_before_the_sum_is_seen_where_the_sum_cancels(dtype, mode):
    """dS is what dNorm rounds to: of the sum its rounding error is left, of the sum of rounded ones nothing."""
    one = draw(dtype=dtype, w_dtype=dtype, casting_mode=mode)
    (dy, x, w), about = one.inputs(), {"eps": one.eps, "offset": one.offset, "casting_mode": mode}
    dx, _ = numpy_reference.backward(dy, x, w, **about)
    zeros = np.zeros_like(x)
    right, _, _ = numpy_reference.FusedAdd.backward(dy, -dx, x, zeros, w, **about)
    bound = tolerances.backward_bounds(dy, x, w, ds=-dx, **about)["dr"]
    assert (bound.ratio(right) <= 1).all() and not bound.misrounded(right).any()
    assert bound.misrounded(zeros).mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_the_stream_are_those_of_one_addition(dtype):
    x, r = (np.random.default_rng(seed).standard_normal((3, 50)).astype(numpy_dtype(dtype)) for seed in (0, 1))
    bound, s = tolerances.stream_bounds(x, r)["s"], numpy_reference.add(x, r)
    assert bound.decided.all() and not bound.misrounded(s).any() and (bound.ratio(s) <= 1).all()
    assert bound.misrounded(np.nextafter(s, s.dtype.type(np.inf))).all() and bound.misrounded(x).mean() > 0.9


def test_a_sum_may_vanish_where_flushing_is_declared():
    x, r = np.array([[1e-39, 1.0]], np.float32), np.zeros((1, 2), np.float32)
    flushed = np.array([[0.0, 1.0]], np.float32)
    for flushes in (False, True):
        bound = tolerances.stream_bounds(x, r, arithmetic=Arithmetic(flushes_subnormals=flushes))["s"]
        assert bound.misrounded(flushed)[0, 0] != flushes and (bound.ratio(flushed)[0, 0] <= 1) == flushes
        assert not bound.misrounded(x).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_flushing_is_allowed_where_it_is_declared(dtype):
    kind = numpy_dtype(dtype)
    x, w = np.full((1, 2), 1.0, kind), np.array([1.0, 1e-39], kind)
    setting = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama"}
    flushed = np.array([[1.0, 0.0]], kind)
    for flushes in (False, True):
        arithmetic = Arithmetic(flushes_subnormals=flushes)
        bound = tolerances.forward_bounds(x, w, arithmetic=arithmetic, **setting)["y"]
        assert (bound.ratio(flushed)[0, 1] <= 1) == flushes
        assert bound.misrounded(flushed).any() == (dtype == "bfloat16" and not flushes)


# Interface


def test_a_bound_explains_itself():
    sample = draw()
    bound = sample.bounds()["dx"]
    np.testing.assert_array_equal(sum(bound.terms.values()), bound.tolerance)
    index = (1, 2)
    assert bound.terms[bound.largest_term(index)][index] == max(t[index] for t in bound.terms.values())
    got = sample.candidate()["dx"].copy()
    got[0, 0], got[0, 1], got[0, 2] = np.nan, np.inf, got[0, 2] + np.float32(2 * bound.tolerance[0, 2])
    ratio = bound.ratio(got)
    assert ratio[0, 0] == ratio[0, 1] == np.inf and ratio[0, 2] > 1 and (ratio[1:] <= 1).all()
    assert not bound.misrounded(got).any() and not bound.decided.any()  # float32: no bits are demanded


@pytest.mark.parametrize(("dtype", "rate"), [("bfloat16", 0.999), ("float16", 0.995)])
def test_exact_rate(dtype, rate):
    for mode in MODES:
        assert tolerances.exact_rate("y", dtype, mode, 10**6) == pytest.approx(rate, abs=1e-12)
        assert tolerances.exact_rate("rstd", dtype, mode, 10**6) is None
        for tensor in ("dx", "dw"):
            demanded = tolerances.exact_rate(tensor, dtype, mode, 10**6)
            assert demanded is None if mode == "none" else demanded == pytest.approx(rate, abs=1e-12)
    allowed = [n * (1 - (tolerances.exact_rate("y", dtype, "llama", n) or 0)) for n in (1, 2, 10, 100, 300)]
    assert allowed[:2] == [1, 2] and all(2 - 1e-9 <= n <= 3 + 1e-9 for n in allowed[2:])
    assert tolerances.exact_rate("y", "float32", "llama", 100) is None


def test_exact_ulps():
    table = {(t, m): tolerances.exact_ulps(t, "bfloat16", m) for t in draws.TENSORS for m in MODES}
    demanded = {key: ulps for key, ulps in table.items() if ulps is not None}
    assert demanded == {
        ("y", "llama"): 2,
        ("y", "gemma"): 1,
        ("y", "none"): 2,
        ("dx", "llama"): 1,
        ("dx", "gemma"): 1,
        ("dr", "llama"): 1,
        ("dr", "gemma"): 1,
        ("dw", "gemma"): 1,
    }
    assert tolerances.exact_ulps("y", "float64", "llama") is None


def test_a_last_product_may_vanish():
    """Found among random bit patterns: r·(m - …) below half the smallest subnormal number is zero in float32."""
    x = np.array([[-3.2008762e-37, 2.3158730e03, 1.7272904e09]], np.float32)
    dy = np.array([[1.2193104e-32, 2.4604627e-27, 2.1999979e-36]], np.float32)
    w = np.array([-3.618e-05, -1.842e02, -3.998e03], np.float16)
    about = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama"}
    dx, _ = numpy_reference.backward(dy, x, w, **about)
    bound = tolerances.backward_bounds(dy, x, w, **about)["dx"]
    assert dx[0, 0] == 0 and bound.value[0, 0] != 0
    assert bound.ratio(dx).max() <= 1


def test_bad_input_is_refused_by_name():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="lama"):
        tolerances.forward_bounds(x, None, eps=1e-6, offset=0.0, casting_mode="lama")
    with pytest.raises(ValueError, match=r"\(4,\).*\(2, 3\)"):
        tolerances.backward_bounds(x, x, np.ones(4), eps=1e-6, offset=0.0, casting_mode="llama")
    with pytest.raises(ValueError, match="int32"):
        tolerances.forward_bounds(x.astype(np.int32), None, eps=1e-6, offset=0.0, casting_mode="llama")
