"""The benchmark's programs, small and on a CPU: every kind of norms computes the same, and what does not is a fault."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.hf]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.benchmarks import programs  # noqa: E402

N_NORMS = {"llama": 9, "qwen3": 17, "gemma3": 25}  # two, four or six a layer, and the last one


@pytest.mark.parametrize("model", programs.MODELS)
def test_every_kind_of_norms_computes_the_same_step(model: str) -> None:
    torch.manual_seed(0)
    base = programs.MODELS[model](16).to(torch.bfloat16)
    ids = torch.randint(programs.VOCABULARY, (1, 8))
    wanted = programs.Program(base, "transformers", "eager").outcome(ids)
    for norms, kind in (("torch.nn", "RMSNorm"), ("liger", "LigerRMSNorm")):
        program = programs.Program(base, norms, "eager")
        assert sum(type(m).__name__ == kind for m in program.model.modules()) == N_NORMS[model]
        assert program.outcome(ids).fault(wanted) is None


def test_a_constant_loss_and_a_lost_gradient_are_faults() -> None:
    wanted = programs.Outcome(loss=8.3254, gradient_norm=16.5)
    assert programs.Outcome(8.3254, 16.5).fault(wanted) is None
    assert "loss 8.3178" in (programs.Outcome(8.3178, 16.5).fault(wanted) or "")
    assert "gradients 0" in (programs.Outcome(8.3254, 0.0).fault(wanted) or "")
    assert programs.Outcome(float("nan"), 16.5).fault(wanted)
