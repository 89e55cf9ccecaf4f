"""Every RMSNorm class of transformers: what `convert_model` measured, and what the exact world proves, agree."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import nn

from references.peers import exactness, transformers_norms
from rmsnorm.convert import convert_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("eager_operators"),
    pytest.mark.hf,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # importing every model brings the warnings of every model
]
UNEXPLAINED = "its output is that of no casting mode with offset 0 or 1 and an eps among its attributes"


def test_measured_and_proven_agree() -> None:
    disagreements: list[Any] = []
    counts: Counter[str] = Counter()
    for norm_class in transformers_norms.norm_classes():
        entry = convert_model(nn.Sequential(transformers_norms.instance(norm_class, 64).bfloat16())).entries[0]
        proof = exactness.prove_module(transformers_norms.instance(norm_class, exactness.SIZE))
        if entry.measured is not None:
            counts["converted"] += 1
            measured = (entry.measured.casting_mode, entry.measured.offset, entry.measured.eps)
            if measured != (proof.forward_mode, proof.offset, proof.eps):
                disagreements.append((norm_class.__name__, measured, str(proof)))
        elif entry.reason == UNEXPLAINED:
            counts["in no mode"] += 1
            if proof.forward_mode is not None:
                disagreements.append((norm_class.__name__, entry.reason, str(proof)))
    assert disagreements == []
    assert counts["converted"] > 150 and counts["in no mode"] > 0
    print(counts)
