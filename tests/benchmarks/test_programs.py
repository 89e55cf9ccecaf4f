"""Training steps, their peak memory, and decoded tokens of transformers' layers, with each kind of norms in them.

    pytest tests/benchmarks/test_programs.py --benchmark-only --benchmark-json FILE [-k "qwen3 and 1-512"]

The outcome of a step is compared with that of transformers' own norms in eager mode first. A program that computes
something else is recorded as wrong, without a time.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.benchmarks import programs
from tests.benchmarks.providers import import_error

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
NEEDS = {"liger-kernel": "liger_kernel.transformers.rms_norm"}


@functools.lru_cache(maxsize=1)
def base(model: str) -> nn.Module:
    torch.manual_seed(0)
    return programs.MODELS[model](1).to("cuda", torch.bfloat16)


def tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(0)
    return torch.randint(programs.VOCABULARY, (batch, length), generator=generator, device="cuda")


@functools.lru_cache(maxsize=4)
def wanted(model: str, batch: int, length: int) -> programs.Outcome:
    return programs.Program(base(model), "transformers", "eager").outcome(tokens(batch, length))


def skip_where_missing(norms: str) -> None:
    if norms in NEEDS and (reason := import_error(NEEDS[norms])):
        pytest.skip(reason)


@pytest.mark.parametrize("norms", programs.NORMS)
@pytest.mark.parametrize("mode", programs.MODES)
@pytest.mark.parametrize(("batch", "length"), programs.SIZES, ids=str)
@pytest.mark.parametrize("model", programs.MODELS)
def test_step(benchmark: Any, model: str, batch: int, length: int, mode: str, norms: str) -> None:
    skip_where_missing(norms)
    torch.cuda.empty_cache()
    ids = tokens(batch, length)
    right = wanted(model, batch, length)
    program = programs.Program(base(model), norms, mode)
    outcome = program.outcome(ids)
    benchmark.group = f"{model} {batch}x{length} {mode}"
    about = {"program": "step", "model": model, "size": f"{batch}×{length}", "mode": mode, "provider": norms}
    benchmark.extra_info |= {**about, **vars(outcome), "fault": outcome.fault(right)}
    if benchmark.extra_info["fault"] is None:
        benchmark.extra_info["step_ms"] = programs.milliseconds(lambda: program.step(ids))
        benchmark.extra_info["peak_mib"] = programs.peak_mib(lambda: program.step(ids))
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.parametrize("norms", programs.NORMS)
@pytest.mark.parametrize("mode", programs.MODES)
@pytest.mark.parametrize("model", programs.MODELS)
def test_token(benchmark: Any, model: str, mode: str, norms: str) -> None:
    skip_where_missing(norms)
    torch.cuda.empty_cache()
    ids = tokens(1, 1)
    program = programs.Program(base(model), norms, mode)
    benchmark.group = f"{model} token {mode}"
    about = {"program": "token", "model": model, "size": "one token", "mode": mode, "provider": norms, "fault": None}
    benchmark.extra_info |= {**about, "step_ms": programs.milliseconds(lambda: program.token(ids))}
    benchmark.pedantic(lambda: None, rounds=1)
