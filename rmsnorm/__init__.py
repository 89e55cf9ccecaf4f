"""Verified RMSNorm kernels in Triton, for training and inference."""

from rmsnorm.function import LigerRMSNormFunction, liger_rms_norm
from rmsnorm.module import LigerRMSNorm

__version__ = "0.1.0"
__all__ = ["LigerRMSNorm", "LigerRMSNormFunction", "__version__", "liger_rms_norm"]
