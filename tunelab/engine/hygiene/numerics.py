"""Arithmetic's settings: NumPy's and those of `decimal`. Random states need no care, as each trial is seeded anew."""

from __future__ import annotations

import decimal
import sys
from collections.abc import Iterator
from typing import Any


class NumPy:
    """Error handling, print options and the global generator; not if NumPy was loaded later than this."""

    what = "NumPy's settings"

    def __init__(self) -> None:
        numpy = self._numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._clean = (numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions())
            self._generator = numpy.random.get_bit_generator()

    def restore(self) -> Iterator[str]:
        numpy = self._numpy
        if numpy is None:
            return
        if (numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()) != self._clean:
            numpy.seterr(**self._clean[0])
            numpy.seterrcall(self._clean[1])
            numpy.set_printoptions(**self._clean[2])
            yield self.what
        if numpy.random.get_bit_generator() is not self._generator:
            numpy.random.set_bit_generator(self._generator)
            yield "NumPy's global generator"


class Decimal:
    """The main thread's context, and the one that threads to come are given a copy of: each trial has a thread of its own."""

    what = "decimal's context"

    def __init__(self) -> None:
        self._clean = (decimal.DefaultContext.copy(), decimal.getcontext().copy())

    def restore(self) -> Iterator[str]:
        for now, clean in zip((decimal.DefaultContext, decimal.getcontext()), self._clean, strict=True):
            if _fields(now) != _fields(clean):
                for name in _FIELDS:
                    setattr(now, name, getattr(clean, name))
                now.traps, now.flags = dict(clean.traps), dict(clean.flags)
                yield self.what


_FIELDS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _fields(context: decimal.Context) -> list[Any]:
    """Flags are left out: any rounding raises one, and they change no result."""
    return [*(getattr(context, name) for name in _FIELDS), dict(context.traps)]


LASTING = (NumPy, Decimal)
