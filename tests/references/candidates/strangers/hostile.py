"""Candidates that misbehave on float16 (some on float32) and are right elsewhere: pairs of forward and backward."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time

import ml_dtypes
import numpy as np

from references import numpy_reference


class Pair:
    """The NumPy reference; on float16 `forward` and `backward` go through `spoil_y` and `spoil_dx`."""

    spoils = np.float16

    def forward(self, x, w, eps, offset, casting_mode):
        self.about = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
        y, rstd = numpy_reference.forward(x, w, **self.about)
        return (self.spoil_y(x, w, y), rstd) if x.dtype == self.spoils else (y, rstd)

    def backward(self, dy, x, w):
        dx, dw = numpy_reference.backward(dy, x, w, **self.about)
        return (self.spoil_dx(dy, x, dx), dw) if x.dtype == self.spoils else (dx, dw)

    def spoil_y(self, x, w, y):
        return y

    def spoil_dx(self, dy, x, dx):
        return dx


class Raises(Pair):
    def spoil_y(self, x, w, y):
        raise RuntimeError("out of registers")


class RaisesInBackward(Pair):
    def spoil_dx(self, dy, x, dx):
        raise RuntimeError("no gradient today")


class Hangs(Pair):
    def spoil_y(self, x, w, y):
        while True:
            time.sleep(1)


class Segfaults(Pair):
    def spoil_y(self, x, w, y):
        ctypes.string_at(0)


class SegfaultsOnBfloat16(Segfaults):
    spoils = ml_dtypes.bfloat16


class Aborts(Pair):
    def spoil_dx(self, dy, x, dx):
        os.abort()


class Exits(Pair):
    def spoil_y(self, x, w, y):
        os._exit(0)


class ExitsPolitely(Pair):
    def spoil_y(self, x, w, y):
        sys.exit(7)


class KillsItself(Pair):
    def spoil_y(self, x, w, y):
        os.kill(os.getpid(), signal.SIGKILL)


class ClosesEverything(Pair):
    def spoil_y(self, x, w, y):
        os.closerange(3, 256)
        return y


class WritesPastTheEnd(Pair):
    def spoil_y(self, x, w, y):
        np.lib.stride_tricks.as_strided(x.reshape(-1), (x.size + 1,), writeable=True)[-1] = 0
        return y


class WritesBeforeTheStart(Pair):
    def spoil_dx(self, dy, x, dx):
        ctypes.memset(dy.ctypes.data - dy.itemsize, 0, dy.itemsize)
        return dx


class OverwritesX(Pair):
    def spoil_y(self, x, w, y):
        x[...] = 0
        return y


class OverwritesW(Pair):
    def spoil_y(self, x, w, y):
        w += 1
        return y


class ReturnsTheInput(Pair):
    def spoil_y(self, x, w, y):
        return x


class ReturnsAViewOfX(Pair):
    def spoil_y(self, x, w, y):
        x[...] = y
        return x[...]


class ReturnsNaN(Pair):
    def spoil_y(self, x, w, y):
        return y * np.float16(np.nan)


class ReturnsZeros(Pair):
    def spoil_y(self, x, w, y):
        return y * 0


class ReturnsTheLastOutput(Pair):
    last = np.zeros(1, np.float16)

    def spoil_y(self, x, w, y):
        self.last, last = y, self.last
        return last if last.shape == y.shape else y


class CachesByPointer(Pair):
    def __init__(self):
        self.cache = {}

    def spoil_y(self, x, w, y):
        return self.cache.setdefault(x.ctypes.data, y).copy()

    def spoil_dx(self, dy, x, dx):
        return self.cache.setdefault((dy.ctypes.data, "dx"), dx).copy()


class DependsOnTheCall(Pair):
    """Two calls an ulp off, two calls right: what is called again after one other call differs."""

    def __init__(self):
        self.calls = itertools.count()

    def spoil_y(self, x, w, y):
        return np.nextafter(y, y.dtype.type(np.inf)) if next(self.calls) // 2 % 2 == 0 else y


class DependsOnTheBatch(Pair):
    def spoil_y(self, x, w, y):
        return np.nextafter(y, y.dtype.type(np.inf)) if x.size > x.shape[-1] else y


class HangsLoudly(Pair):
    """Hangs in the cells of the matrix, after telling that it will."""

    def spoil_y(self, x, w, y):
        if x.shape == (2, 4, 41):
            open("hanging", "w").close()
            time.sleep(3600)
        return y


class DependsOnTheCall32(DependsOnTheCall):
    spoils = np.float32


class DependsOnTheBatch32(DependsOnTheBatch):
    spoils = np.float32


class WrongDtype(Pair):
    def spoil_y(self, x, w, y):
        return y.astype(np.float32)


class WrongShape(Pair):
    def spoil_y(self, x, w, y):
        return y.reshape(-1)


class WrongType(Pair):
    def spoil_y(self, x, w, y):
        return y.tolist()


class ReturnsText(Pair):
    def spoil_y(self, x, w, y):
        return "done"


class ReturnsNone(Pair):
    def spoil_y(self, x, w, y):
        return None


class ReturnsObjects(Pair):
    def spoil_y(self, x, w, y):
        return y.astype(object)


KINDS = {kind.__name__: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Pair)}
globals().update({name.lower(): kind() for name, kind in KINDS.items()})

# The module is a pair too, in which eps chooses who answers: one process serves many tests.
EPS = {name: 0.5 + number / 64 for number, name in enumerate(KINDS)}
_BY_EPS = {EPS[name]: kind() for name, kind in KINDS.items()}
_chosen: list[Pair] = []


def forward(x, w, eps, offset, casting_mode):
    _chosen[:] = [_BY_EPS.get(eps, _BY_EPS[EPS["Pair"]])]
    return _chosen[0].forward(x, w, eps, offset, casting_mode)


def backward(dy, x, w):
    return _chosen[0].backward(dy, x, w)
