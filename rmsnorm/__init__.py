"""Verified RMSNorm kernels in Triton, for training and inference."""

from rmsnorm.function import (
    LigerFusedAddRMSNormFunction,
    LigerRMSNormFunction,
    liger_fused_add_rms_norm,
    liger_rms_norm,
)
from rmsnorm.module import LigerFusedAddRMSNorm, LigerRMSNorm

__version__ = "0.1.0"
__all__ = [
    "LigerFusedAddRMSNorm",
    "LigerFusedAddRMSNormFunction",
    "LigerRMSNorm",
    "LigerRMSNormFunction",
    "__version__",
    "liger_fused_add_rms_norm",
    "liger_rms_norm",
]
