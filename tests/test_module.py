"""LigerRMSNorm: its parameter, its attributes, its representation, its state dict."""

from __future__ import annotations

import inspect

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm  # noqa: E402


def test_signatures_are_the_specification_s() -> None:
    def names(function: object) -> str:
        return str(inspect.signature(function))

    shared = (
        "offset: 'float' = 0.0, casting_mode: 'str' = 'llama', in_place: 'bool' = True, row_mode: 'bool | None' = None"
    )
    assert shared in names(liger_rms_norm)
    assert shared in names(LigerRMSNormFunction.forward)
    assert [p.name for p in inspect.signature(LigerRMSNorm).parameters.values()] == [
        *("hidden_size", "eps", "offset", "casting_mode", "init_fn", "in_place", "elementwise_affine"),
        *("row_mode", "device", "dtype"),
    ]


def test_weight_is_the_only_parameter_and_the_only_state() -> None:
    norm = LigerRMSNorm(8, dtype=torch.bfloat16)
    assert [(name, tuple(p.shape), p.dtype) for name, p in norm.named_parameters()] == [
        ("weight", (8,), torch.bfloat16)
    ]
    assert list(norm.state_dict()) == ["weight"]
    assert LigerRMSNorm(8, elementwise_affine=False).weight is None
    assert not LigerRMSNorm(8, elementwise_affine=False).state_dict()


@pytest.mark.parametrize("affine", [True, False])
def test_state_dict_is_interchangeable_with_torch(affine: bool) -> None:
    ours, theirs = LigerRMSNorm(8, elementwise_affine=affine), torch.nn.RMSNorm(8, elementwise_affine=affine)
    if affine:
        torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert not affine or torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize(("init_fn", "value"), [("ones", 1.0), ("zeros", 0.0)])
def test_init_fn(init_fn: str, value: float) -> None:
    norm = LigerRMSNorm(8, init_fn=init_fn)
    assert (norm.weight == value).all()
    torch.nn.init.normal_(norm.weight)
    norm.reset_parameters()
    assert (norm.weight == value).all()


def test_eps_has_both_names_and_one_value() -> None:
    norm = LigerRMSNorm(8, eps=1e-5)
    assert norm.variance_epsilon == norm.eps == 1e-5
    norm.variance_epsilon = 1e-3
    assert norm.eps == 1e-3
    with pytest.raises(AttributeError):
        norm.eps = 1.0


def test_repr_shows_every_setting() -> None:
    norm = LigerRMSNorm(8, 1e-5, 1.0, "gemma", "zeros", False, True, row_mode=True)
    assert repr(norm) == (
        "LigerRMSNorm((8,), eps=1e-05, offset=1.0, casting_mode='gemma', init_fn='zeros', in_place=False, "
        "elementwise_affine=True, row_mode=True)"
    )


@pytest.mark.parametrize("settings", [{}, {"offset": 1.0, "casting_mode": "gemma", "in_place": False}])
def test_forward_is_the_function_with_the_module_s_settings(settings: dict) -> None:
    norm = LigerRMSNorm(8, 1e-3, dtype=torch.float64, **settings)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(norm(x), liger_rms_norm(x, norm.weight, 1e-3, **settings))
