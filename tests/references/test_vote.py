"""The vote of the references: nobody is named where all are right, and the one that is wrong where one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.references import vote

pytestmark = [pytest.mark.torch, pytest.mark.jax]


def test_right_references_agree() -> None:
    assert vote.odd_one_out(vote.cases()) == (None, "all agree")


@pytest.mark.parametrize("name", vote.REFERENCES)
def test_the_wrong_one_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = vote.load

    class Wrong:
        def run(self, case: object, inputs: object) -> object:
            outputs = load(f"references.{name}_reference").run(case, inputs)
            outputs.dx = -outputs.dx
            return outputs

    monkeypatch.setattr(vote, "load", lambda target: Wrong() if name in target else load(target))
    assert vote.odd_one_out(vote.cases()[:1])[0] == name


def test_the_jax_reference_switches_64_bits_on() -> None:
    command = "import references.jax_reference, jax; assert jax.config.jax_enable_x64"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", command], env=environment, check=True, timeout=120)
