"""Code written for upstream's names runs with the import changed: arguments, order, defaults, per-model subclasses."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import rmsnorm
from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm

H = 16

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("eager_operators")]

SETTINGS = ("offset", "casting_mode", "init_fn", "in_place")
# Upstream's per-model subclasses as arguments of LigerRMSNorm: docs/use/from_liger.md holds the same table.
SUBCLASSES: dict[str, dict[str, Any]] = {
    "LigerRMSNormForGemma": {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": True},
    "LigerRMSNormForGemma2": {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": False},
    "LigerRMSNormForGemma3": {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": False},
    "LigerRMSNormForGemma4": {"offset": 0.0, "casting_mode": "gemma", "init_fn": "ones", "in_place": False},
    "LigerRMSNormForOlmo2": {"offset": 0.0, "casting_mode": "llama", "init_fn": "ones", "in_place": False},
    "LigerRMSNormForGlm4": {"offset": 0.0, "casting_mode": "llama", "init_fn": "ones", "in_place": False},
    "LigerRMSNormForQwen3Next": {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": False},
}


def test_the_table_of_the_documentation_is_this_one() -> None:
    page = (Path(__file__).parents[3] / "docs/use/from_liger.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`LigerRMSNormFor.*?) \| (\S+) \| `(.*?)` \| `(.*?)` \| (\S+) \|", page, re.MULTILINE)
    documented = {}
    for names, offset, casting_mode, init_fn, in_place in rows:
        settings = dict(zip(SETTINGS, map(ast.literal_eval, (offset, casting_mode, init_fn, in_place)), strict=True))
        for name in re.findall(r"For\w+", names):
            documented[f"LigerRMSNorm{name}"] = settings
    assert documented == SUBCLASSES


def test_arguments_order_and_defaults() -> None:
    def arguments(function: Any) -> list[tuple[str, Any]]:
        parameters = list(inspect.signature(function).parameters.values())
        return [(p.name, p.default) for p in parameters if p.name not in ("self", "ctx")]

    required = inspect.Parameter.empty
    function = [
        ("X", required),
        ("W", required),
        ("eps", required),
        ("offset", 0.0),
        ("casting_mode", "llama"),
        ("in_place", True),
        ("row_mode", None),
    ]
    assert arguments(liger_rms_norm) == function
    assert arguments(LigerRMSNormFunction.forward) == function
    assert arguments(LigerRMSNormFunction.apply) == function
    assert arguments(LigerRMSNorm.__init__)[:6] == [
        ("hidden_size", required),
        ("eps", 1e-6),
        ("offset", 0.0),
        ("casting_mode", "llama"),
        ("init_fn", "ones"),
        ("in_place", True),
    ]


def test_the_functional_and_the_function_are_one() -> None:
    x, w = torch.randn(3, H), torch.randn(H)
    wanted = liger_rms_norm(x, w, 1e-6, 1.0, "gemma", False, None)
    assert torch.equal(LigerRMSNormFunction.apply(x, w, 1e-6, 1.0, "gemma", False, None), wanted)
    assert torch.equal(LigerRMSNormFunction.apply(x, w, 1e-6, 1.0, "gemma"), wanted)
    assert torch.equal(liger_rms_norm(X=x, W=w, eps=1e-6, offset=1.0, casting_mode="gemma", in_place=False), wanted)


def test_upstreams_seventh_positional_argument_is_refused_with_the_reason() -> None:
    with pytest.raises(TypeError, match="seventh positional argument is elementwise_affine, row_mode is passed by key"):
        LigerRMSNorm(H, 1e-6, 0.0, "llama", "ones", True, None)  # type: ignore[arg-type]
    assert LigerRMSNorm(H, 1e-6, 0.0, "llama", "ones", True, row_mode=True).row_mode is True


@pytest.mark.hf
@pytest.mark.parametrize(
    ("subclass", "original"),
    [
        ("LigerRMSNormForGemma", "gemma.modeling_gemma.GemmaRMSNorm"),
        ("LigerRMSNormForGemma2", "gemma2.modeling_gemma2.Gemma2RMSNorm"),
        ("LigerRMSNormForGemma3", "gemma3.modeling_gemma3.Gemma3RMSNorm"),
        ("LigerRMSNormForGemma4", "gemma4.modeling_gemma4.Gemma4RMSNorm"),
        ("LigerRMSNormForGlm4", "glm4.modeling_glm4.Glm4RMSNorm"),
        ("LigerRMSNormForQwen3Next", "qwen3_next.modeling_qwen3_next.Qwen3NextRMSNorm"),
    ],
)
def test_subclass_settings_are_the_models_norm(subclass: str, original: str) -> None:
    module, _, name = original.rpartition(".")
    theirs = getattr(__import__(f"transformers.models.{module}", fromlist=[name]), name)(H)
    ours = LigerRMSNorm(H, 1e-6, **SUBCLASSES[subclass])
    assert torch.equal(ours.weight, theirs.weight)  # the same initial values
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(64, H, dtype=torch.bfloat16)
    assert torch.equal(ours.bfloat16()(x), theirs.bfloat16()(x))


@pytest.mark.hf
def test_olmo2_rounds_once_although_upstream_takes_llama() -> None:
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    theirs = Olmo2RMSNorm(H).bfloat16()
    torch.nn.init.normal_(theirs.weight)
    x = torch.randn(64, H, dtype=torch.bfloat16)
    settings = SUBCLASSES["LigerRMSNormForOlmo2"]
    upstream = liger_rms_norm(x, theirs.weight, 1e-6, settings["offset"], settings["casting_mode"])
    assert not torch.equal(upstream, theirs(x))
    assert torch.equal(liger_rms_norm(x, theirs.weight, 1e-6, 0.0, "gemma"), theirs(x))


def test_a_subclass_in_upstreams_manner() -> None:
    class LigerRMSNormForGemma(LigerRMSNorm):
        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-6,
            offset: float = 1.0,
            casting_mode: str = "gemma",
            init_fn: str = "zeros",
            in_place: bool = True,
        ) -> None:
            super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    module = LigerRMSNormForGemma(H)
    x = torch.randn(3, H)
    assert torch.equal(module(x), liger_rms_norm(x, torch.zeros(H), 1e-6, 1.0, "gemma"))


def test_the_package_exports_upstreams_names() -> None:
    assert {"LigerRMSNorm", "LigerRMSNormFunction", "liger_rms_norm"} <= set(rmsnorm.__all__)
