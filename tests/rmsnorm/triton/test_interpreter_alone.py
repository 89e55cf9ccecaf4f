"""TRITON_INTERPRET=1 and `import rmsnorm`, without the judge: the interpreter is right there too, and in threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpret]

ROUNDING = """
import torch
from rmsnorm import liger_rms_norm
x, w = torch.randn(7, 33).bfloat16(), torch.randn(33).bfloat16()
wide = x.float()
x_hat = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16().float()
assert torch.equal(liger_rms_norm(x, w, 1e-6), (x_hat * w.float()).bfloat16()), "a cast to bfloat16 is not rounded"
small = torch.full((1, 4), 3 * 2.0**-133, dtype=torch.bfloat16)
assert torch.equal(liger_rms_norm(small, None, 1.0), small), "a subnormal bfloat16 loses bits"
"""
THREADS = """
import threading
import torch
from rmsnorm import liger_rms_norm
inputs = [torch.randn(5 + i, 64) for i in range(8)]
wide = [x.double() for x in inputs]
wanted = [x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) for x in wide]
start, wrong = threading.Barrier(8), []

def work(i):
    start.wait()
    for _ in range(10):
        try:
            y = liger_rms_norm(inputs[i], None, 1e-6)
            if not torch.allclose(y.double(), wanted[i], rtol=1e-5, atol=1e-5):
                wrong.append(i)
        except Exception as error:
            wrong.append(repr(error))

threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
"""
ALONE = "\nimport sys\nassert not [name for name in sys.modules if name.startswith('references')]\n"


@pytest.mark.parametrize("program", [ROUNDING, THREADS], ids=["rounding", "threads"])
def test_the_package_makes_the_interpreter_right_by_itself(program: str) -> None:
    root = str(Path(__file__).parents[3])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": root}
    command = [sys.executable, "-c", program + ALONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
