"""Markers, the rule for missing backends, seeds and the report header. No numerics."""

from __future__ import annotations

import os

import pytest

# The interpreter lane is chosen before anything imports Triton: @triton.jit reads the variable when it decorates.
try:
    import torch

    HAS_GPU = torch.cuda.is_available()
except ImportError:  # the references lane runs without torch
    torch = None  # type: ignore[assignment]
    HAS_GPU = False
