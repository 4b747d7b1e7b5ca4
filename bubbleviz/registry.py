"""Discovery: every module of a package exports one constant, and that is all it takes to add one.

Input formats are found this way; the order is that of the
``order`` attribute where the values have one, then of the module names.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@cache
def _modules(package: str) -> tuple[str, ...]:
    path = importlib.import_module(package).__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(path)))


def discover(package: str, constant: str, kind: type[T]) -> tuple[T, ...]:
    """Return the ``constant`` of every module of ``package``.

    Raises:
        TypeError: a module lacks the constant, or it is of another type.
    """
    constants = []
    for name in _modules(package):
        value = getattr(importlib.import_module(f"{package}.{name}"), constant, None)
        if not isinstance(value, kind):
            raise TypeError(f"{package}.{name} must define {constant}, a {kind.__name__}")
        constants.append(value)
    return tuple(sorted(constants, key=lambda value: getattr(value, "order", 0)))
