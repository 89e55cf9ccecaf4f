"""Functions of NumPy arrays, `(x, w, eps)`: forward only."""

import numpy as np


def right(x, w, eps):
    h = x.astype(np.float32)
    return (h / np.sqrt(np.mean(h * h, -1, keepdims=True) + np.float32(eps)) * w.astype(np.float32)).astype(x.dtype)


def truncated(x, w, eps):
    y = right(x, w, eps)
    return np.nextafter(y, y * 0) if x.dtype == np.float16 else y
