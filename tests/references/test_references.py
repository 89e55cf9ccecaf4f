"""The three references are independent, agree with the oracle and each other, and outvote a faulty one."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from references import arrays, oracle
from references.bounds import tolerances
from references.spec import DTYPES, CastingMode

MODULES = {"numpy": "numpy_reference", "jax": "jax_reference", "torch": "torch_reference"}
MODES = [str(mode) for mode in CastingMode]
LIBRARIES = [
    "numpy",
    pytest.param("jax", marks=pytest.mark.jax),
    pytest.param("torch", marks=pytest.mark.torch),
]
TENSORS = ("y", "rstd", "dx", "dw")


@dataclass
class Problem:
    """One input with its setting; `w` may be None."""

    dy: np.ndarray
    x: np.ndarray
    w: np.ndarray | None
    setting: dict

    @classmethod
    def draw(cls, dtype="float32", mode="llama", *, shape=(6, 40), w_dtype="same", eps=1e-5, offset=0.5, seed=0):
        rng, kind = np.random.default_rng(seed), arrays.numpy_dtype(dtype)
        dy, x = (rng.standard_normal(shape).astype(kind) for _ in range(2))
        w = None
        if w_dtype is not None:
            w_kind = kind if w_dtype == "same" else arrays.numpy_dtype(w_dtype)
            w = (1 + 0.3 * rng.standard_normal(shape[-1])).astype(w_kind)
        return cls(dy, x, w, {"eps": eps, "offset": offset, "casting_mode": mode})

    def results(self, module: types.ModuleType, library: str) -> dict[str, np.ndarray]:
        """y, rstd, dx and dw of one reference."""
        into = {"numpy": np.asarray, "jax": arrays.to_jax, "torch": arrays.to_torch}[library]
        dy, x, w = (None if a is None else into(a) for a in (self.dy, self.x, self.w))
        values = (*module.forward(x, w, **self.setting), *module.backward(dy, x, w, **self.setting))
        return {
            t: arrays.to_numpy(v) for t, v in zip(TENSORS, values, strict=True) if v is not None
        }  # dw may be absent

    def bounds(self, arithmetic=tolerances.SEQUENTIAL) -> dict[str, tolerances.Bound]:
        options = {**self.setting, "arithmetic": arithmetic}
        forward = tolerances.forward_bounds(self.x, self.w, **options)
        return forward | tolerances.backward_bounds(self.dy, self.x, self.w, **options)


def module_of(library: str) -> types.ModuleType:
    return importlib.import_module(f"references.{MODULES[library]}")


# Independence


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("numpy_reference", {"numpy", "ml_dtypes"}),
        ("jax_reference", {"jax"}),
        ("torch_reference", {"torch"}),
        ("oracle", {"numpy", "mpmath"}),
        ("spec", set()),
    ],
)
def test_a_reference_imports_its_library_and_nothing_else(module, allowed):
    source = importlib.util.find_spec(f"references.{module}").origin
    with open(source, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == allowed


def test_the_numpy_side_needs_neither_torch_nor_jax():
    code = (
        "import sys; import references.numpy_reference, references.bounds.tolerances, references.oracle; "
        "print([m for m in ('torch', 'jax', 'triton', 'rmsnorm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.jax
def test_jax_keeps_float64_by_itself():
    code = (
        "from references.jax_reference import forward; import jax, numpy; "
        "x = numpy.ones((1, 2)); "
        "print(*(v.dtype for v in forward(x, x[0], eps=0.0, offset=0.0, casting_mode='llama')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float64", "float64"]


# Agreement with the truth


def test_oracle_is_mpmath():
    rng = np.random.default_rng(0)
    for case in range(200):
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)))
        scale = 10.0 ** rng.integers(-8, 9)
        dy, x, w = (
            rng.standard_normal(shape),
            scale * rng.standard_normal(shape),
            rng.standard_normal(shape[1]),
        )
        w = w if case % 4 else None
        about = {
            "eps": float(rng.choice([0.0, 1e-6, scale**2])),
            "offset": float(rng.choice([0.0, 0.1, 1.0])),
        }
        got, (y, rstd) = oracle.backward(dy, x, w, **about), oracle.mp_forward(x, w, **about)
        dx, dw = oracle.mp_backward(dy, x, w, **about)
        ds = rng.standard_normal(shape)
        through_s = oracle.backward(dy, x, w, ds=ds, **about).dx - got.dx
        mp_through_s = oracle.mp_backward(dy, x, w, ds=ds, **about)[0] - dx
        unit = np.finfo(np.longdouble).eps
        np.testing.assert_allclose(got.forward.y, y, rtol=8 * unit)
        np.testing.assert_allclose(got.forward.rstd, rstd, rtol=8 * unit)
        size = np.abs(rstd[:, None] * got.m) + np.abs(rstd[:, None] ** 3 * x * np.abs(got.m * x).sum(-1, keepdims=True))
        assert (np.abs(got.dx - dx) <= 16 * unit * size).all()
        for both in (through_s, mp_through_s):
            assert (np.abs(both - ds) <= 16 * unit * (size + np.abs(ds))).all()
        assert (got.dw is None) == (dw is None) == (w is None)
        if w is not None:
            assert (np.abs(got.dw - dw) <= 16 * unit * np.abs(dy * got.forward.x_hat).sum(0)).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_lies_within_the_bounds(library, dtype, mode):
    for seed, (shape, w_dtype, offset) in enumerate(
        [((5, 64), "same", 0.5), ((2, 3, 33), "float32", 0.0), ((17,), None, 1.0), ((0, 4), "same", 0.1)]
    ):
        problem = Problem.draw(dtype, mode, shape=shape, w_dtype=w_dtype, offset=offset, seed=seed)
        got, bounds = problem.results(module_of(library), library), problem.bounds()
        assert got.keys() == bounds.keys()
        compute = "float64" if dtype == "float64" else "float32"
        wanted = {"y": dtype, "dx": dtype, "rstd": compute, "dw": dtype if w_dtype == "same" else w_dtype}
        for tensor, bound in bounds.items():
            assert arrays.dtype_name(got[tensor]) == bound.dtype == wanted[tensor]
            assert got[tensor].shape == bound.value.shape
            assert bound.applies.all()
            assert (bound.ratio(got[tensor]) <= 1).all(), (tensor, shape)
            assert not bound.misrounded(got[tensor]).any(), (tensor, shape)


def residual_results(library: str, problem: Problem, r: np.ndarray, ds: np.ndarray) -> dict[str, np.ndarray]:
    """y, s, rstd, dx, dr and dw of one reference's `FusedAdd`."""
    into = {"numpy": np.asarray, "jax": arrays.to_jax, "torch": arrays.to_torch}[library]
    dy, ds, x, r, w = (None if a is None else into(a) for a in (problem.dy, ds, problem.x, r, problem.w))
    fused = module_of(library).FusedAdd
    values = (*fused.forward(x, r, w, **problem.setting), *fused.backward(dy, ds, x, r, w, **problem.setting))
    names = ("y", "s", "rstd", "dx", "dr", "dw")
    return {t: arrays.to_numpy(v) for t, v in zip(names, values, strict=True) if v is not None}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_a_residual_it_is_the_norm_of_the_rounded_sum(library, dtype, mode):
    for seed, (shape, w_dtype) in enumerate([((5, 64), "same"), ((2, 3, 33), None)]):
        problem, other = (Problem.draw(dtype, mode, shape=shape, w_dtype=w_dtype, seed=2 * seed + n) for n in (0, 1))
        got = residual_results(library, problem, other.x, other.dy)
        s = got["s"]
        assert (arrays.bits(s) == arrays.bits(module_of("numpy").add(problem.x, other.x))).all()
        stream = Problem(problem.dy, s, problem.w, problem.setting)
        options = {**problem.setting, "ds": other.dy}
        bounds = stream.bounds() | tolerances.backward_bounds(problem.dy, s, problem.w, **options)
        assert got.keys() - {"s"} == bounds.keys()
        for tensor, bound in bounds.items():
            assert arrays.dtype_name(got[tensor]) == bound.dtype
            assert (bound.ratio(got[tensor]) <= 1).all(), (tensor, shape)
            assert not bound.misrounded(got[tensor]).any(), (tensor, shape)
        np.testing.assert_array_equal(got["dr"].view(np.uint8), got["dx"].view(np.uint8))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("r", np.ones((3, 2), np.float32), ValueError),
        ("r", np.ones((2, 3), np.float16), TypeError),
        ("ds", np.ones((3, 2), np.float32), ValueError),
        ("ds", np.ones((2, 3), np.float16), TypeError),
    ],
)
def test_a_stream_of_another_shape_or_dtype_is_refused_by_name(library, name, value, error):
    problem = Problem.draw(shape=(2, 3))
    given = {"r": problem.x, "ds": problem.dy} | {name: value}
    with pytest.raises(error, match=f"{name} (has shape|is)"):
        residual_results(library, problem, **given)


@pytest.mark.parametrize("mode", MODES)
def test_numpy_gradient_is_the_complex_step_derivative(mode):
    """Im f(x + ih)/h is f' to machine precision, for h so small that h² vanishes."""
    problem = Problem.draw("float64", mode, shape=(2, 7), eps=0.3)
    h = 1e-200

    def loss(x, w):
        mean_square = (x * x).sum(-1, keepdims=True) / x.shape[-1]
        return (problem.dy * x / np.sqrt(mean_square + problem.setting["eps"]) * (w + 0.5)).sum()

    def derivative(which):
        arguments = [problem.x, problem.w]
        result = np.empty(arguments[which].shape)
        for index in np.ndindex(*result.shape):
            moved = [a.astype(complex) for a in arguments]
            moved[which][index] += 1j * h
            result[index] = loss(*moved).imag / h
        return result

    got, bounds = problem.results(module_of("numpy"), "numpy"), problem.bounds()
    for which, tensor in enumerate(("dx", "dw")):
        assert (np.abs(got[tensor] - derivative(which)) <= 2 * bounds[tensor].tolerance).all()


@pytest.mark.jax
@pytest.mark.parametrize("mode", MODES)
def test_numpy_gradient_is_the_adjoint_of_the_jax_derivative(mode):
    """⟨dY, J v⟩ = ⟨Jᵀ dY, v⟩: the forward's own derivative judges the backward, in x and in w."""
    import jax

    problem = Problem.draw("float64", mode, shape=(3, 31), eps=0.3)
    dx, dw = module_of("numpy").backward(problem.dy, problem.x, problem.w, **problem.setting)
    for gradient, which in ((dx, 0), (dw, 1)):
        primals = [arrays.to_jax(problem.x), arrays.to_jax(problem.w)]
        direction = np.random.default_rng(1).standard_normal(gradient.shape)

        def y_of(moved, which=which, primals=primals):
            arguments = [moved if i == which else p for i, p in enumerate(primals)]
            return module_of("jax").forward(*arguments, **problem.setting)[0]

        _, tangent = jax.jvp(y_of, (primals[which],), (arrays.to_jax(direction),))
        pushed, pulled = problem.dy * np.asarray(tangent), gradient * direction
        scale = np.abs(pushed).sum() + np.abs(pulled).sum()
        assert abs(pushed.sum() - pulled.sum()) <= 100 * 2.0**-53 * scale


# Agreement with one another


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_sixteen_bits_agree_bit_for_bit(dtype, mode):
    problem = Problem.draw(dtype, mode, shape=(64, 300))
    bounds = problem.bounds(tolerances.NUMPY)
    numpy, torch, jax = (problem.results(module_of(name), name) for name in ("numpy", "torch", "jax"))
    for tensor in TENSORS:
        least = tolerances.exact_rate(tensor, dtype, mode, numpy[tensor].size)
        most = tolerances.exact_ulps(tensor, dtype, mode)
        decided = bounds[tensor].decided
        for other in (torch, jax):
            same = arrays.bits(other[tensor]) == arrays.bits(numpy[tensor])
            assert same[decided].all()
            assert least is None or same.mean() >= least, (tensor, same.mean())
            if most is not None:
                assert arrays.ulp_distance(other[tensor], numpy[tensor]).max() <= most
    assert all(bounds[tensor].decided.mean() > 0.75 for tensor in ("y", "dx", "dw"))


def specials(dtype: str) -> np.ndarray:
    """Rows of zeros, of a NaN, of an infinity, with squares that overflow or vanish, and an ordinary one."""
    kind = arrays.numpy_dtype(dtype)
    large, small = {"float64": (1e200, 1e-200), "float16": (1e4, 1e-7)}.get(dtype, (1e25, 1e-30))
    rows = np.random.default_rng(0).standard_normal((6, 8))
    rows[0], rows[1, 2], rows[2, 3], rows[3], rows[4] = 0, np.nan, np.inf, rows[3] * large, rows[4] * small
    return rows.astype(kind)


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_agree(dtype, mode, eps):
    problem = Problem.draw(dtype, mode, shape=(6, 8), eps=eps)
    problem.x = specials(dtype)
    results = {name: problem.results(module_of(name), name) for name in MODULES}
    y, rstd = results["numpy"]["y"], results["numpy"]["rstd"]
    assert np.isnan(y[1]).all() and np.isnan(rstd[1])
    assert rstd[2] == 0 and np.isnan(y[2, 3]) and (np.delete(y[2], 3) == 0).all()
    assert (rstd[0] == np.inf and np.isnan(y[0]).all()) if eps == 0 else (y[0] == 0).all()
    for other in (results["torch"], results["jax"]):
        for tensor in ("y", "rstd"):
            np.testing.assert_array_equal(np.isnan(other[tensor]), np.isnan(results["numpy"][tensor]))
            np.testing.assert_array_equal(other[tensor] == 0, results["numpy"][tensor] == 0)
            np.testing.assert_array_equal(np.isinf(other[tensor]), np.isinf(results["numpy"][tensor]))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", MODES)
def test_offset_0_leaves_the_sign_of_a_zero_weight(mode, library):
    problem = Problem.draw("bfloat16", mode, offset=0.0)
    problem.x, problem.w[:] = np.abs(problem.x), -0.0
    y = problem.results(module_of(library), library)["y"]
    assert (y == 0).all() and np.signbit(y.astype(np.float32)).all()


def test_overflow_follows_the_mode():
    """float16 squares leave float16 at 256: `none` overflows there, the others compute in float32."""
    x = np.full((1, 4), 300, np.float16)
    numpy = module_of("numpy")
    for mode, rstd in (("none", 0.0), ("llama", 1 / 300), ("gemma", 1 / 300)):
        _, got = numpy.forward(x, None, eps=0.0, offset=0.0, casting_mode=mode)
        assert got == np.float32(rstd)


# The vote

FAULTS = [
    ("numpy", "(m - x_c", "(m + x_c", "dx"),
    ("numpy", "variance = rounded", "variance = mean_square.dtype.type(1.001) * rounded", "y"),
    ("jax", "/ x.shape[-1]", "/ (x.shape[-1] - 1)", "y"),
    ("jax", "w + offset", "w - offset", "dx"),
    ("torch", "variance = mean_square + eps", "variance = mean_square", "y"),
    ("torch", "dy.detach()", "2 * dy.detach()", "dw"),
]


def with_fault(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """A copy of a module with one line changed."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    faulty = types.ModuleType("faulty")
    exec(compile(source.replace(old, new), module.__file__, "exec"), faulty.__dict__)
    return faulty


def outvoted(results: dict[str, np.ndarray], close: Callable[[np.ndarray, np.ndarray], bool]) -> set[str]:
    """Who agrees with nobody although two others agree; everybody where no two agree."""
    agree = {a: {b for b in results if b != a and close(results[a], results[b])} for a in results}
    return {name for name, others in agree.items() if not others}


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize(("library", "old", "new", "tensor"), FAULTS)
def test_a_fault_in_one_reference_is_outvoted_and_named(library, old, new, tensor):
    problem = Problem.draw("float64", "llama", shape=(4, 33), eps=0.3)
    bound = problem.bounds()[tensor]

    def close(a, b):
        return bool((np.abs(a - b) <= 2 * bound.tolerance).all())

    modules = {name: module_of(name) for name in MODULES}
    results = {name: problem.results(module, name)[tensor] for name, module in modules.items()}
    assert outvoted(results, close) == set()
    results[library] = problem.results(with_fault(modules[library], old, new), library)[tensor]
    assert outvoted(results, close) == {library}


# Refusals


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"casting_mode": "lama"}, ValueError, "'lama'"),
        ({"eps": -1.0}, ValueError, "-1.0"),
        ({"eps": float("nan")}, ValueError, "nan"),
        ({"w": np.ones(5, np.float32)}, ValueError, r"\(5,\).*\(2, 3\)"),
        ({"x": np.ones((2, 0), np.float32)}, ValueError, r"\(2, 0\)"),
        ({"x": np.float32(1.0).reshape(())}, ValueError, r"\(\)"),
        ({"x": np.ones((2, 3), np.int32)}, TypeError, "int32"),
        ({"dy": np.ones((3, 2), np.float32)}, ValueError, r"\(3, 2\).*\(2, 3\)"),
    ],
)
def test_bad_input_is_refused_by_name(library, change, error, words):
    tensors = {name: np.ones((2, 3), np.float32) for name in ("dy", "x")} | {"w": np.ones(3, np.float32)}
    tensors |= {name: value for name, value in change.items() if name in tensors}
    setting = {"eps": 1e-6, "offset": 0.0, "casting_mode": "llama"}
    setting |= {name: value for name, value in change.items() if name in setting}
    into = {"numpy": np.asarray, "jax": arrays.to_jax, "torch": arrays.to_torch}[library]
    dy, x, w = (into(tensors[name]) for name in ("dy", "x", "w"))
    with pytest.raises(error, match=words):
        module_of(library).backward(dy, x, w, **setting)
    if "dy" not in change:
        with pytest.raises(error, match=words):
            module_of(library).forward(x, w, **setting)


@pytest.mark.parametrize("call", [oracle.forward, oracle.mp_forward])
def test_the_oracle_refuses_bad_input(call):
    x, w = np.ones((2, 3)), np.ones(4)
    with pytest.raises(ValueError, match=r"\(4,\).*\(2, 3\)"):
        call(x, w, eps=1e-6, offset=0.0)
    with pytest.raises(ValueError, match="-1"):
        call(x, None, eps=-1.0, offset=0.0)
    with pytest.raises(ValueError, match=r"\(2, 0\)"):
        call(np.ones((2, 0)), None, eps=1e-6, offset=0.0)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        oracle.backward(np.ones((3, 2)), x, None, eps=1e-6, offset=0.0)
