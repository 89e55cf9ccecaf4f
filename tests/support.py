"""What several tests share and no fixture can give."""

from __future__ import annotations

import pytest

# Where the kernels run: in Triton's interpreter, or compiled.
DEVICES = [pytest.param("cpu", marks=pytest.mark.interpret), pytest.param("cuda", marks=pytest.mark.gpu)]
