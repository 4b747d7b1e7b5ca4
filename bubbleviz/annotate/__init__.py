"""Ranges for training scripts whose framework names none: import it, call it once.

>>> from bubbleviz import annotate
>>> handle = annotate.torch_pipelining()  # doctest: +SKIP
>>> with annotate.phase("F", microbatch=3, chunk=0):
...     pass

Nsight Systems records them as NVTX ranges, PyTorch's profiler as its own. Their names follow the
convention ``bubbleviz`` (``bubbleviz:F mb=3 chunk=0``), which is recognised without an option.
Where nothing records, a range costs a microsecond or two.

``annotate.record("run/")`` writes when they ran to files, without a profiler; so does
``annotate.torch_pipelining(record="run/")``, and any script of which the environment variable
BUBBLEVIZ_RECORD names a folder. ``bubbleviz analyze run/`` reads them.

A framework is one module of :mod:`bubbleviz.annotate.frameworks`, called by its name:
``annotate.torch_pipelining()``, ``annotate.megatron()``, ``annotate.deepspeed()``, and, of steps
without stages, ``annotate.torch(model)``. Each wraps the framework's own methods, returns a handle
whose ``remove()`` undoes that (also a context manager), and does nothing more when called again.

This package loads only the standard library; it uses PyTorch where the script has loaded it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from bubbleviz.annotate.ranges import Range, iteration, phase, step
from bubbleviz.annotate.switch import record, record_as_environment_says
from bubbleviz.annotate.wrapping import Annotations
from bubbleviz.errors import AnnotationError

__all__ = [
    "AnnotationError",
    "Annotations",
    "Range",
    "iteration",
    "phase",
    "record",
    "step",
    "supported",
]

record_as_environment_says()


def supported() -> tuple[str, ...]:
    """Return the names of the frameworks that can be annotated, in alphabetical order."""
    package = importlib.import_module("bubbleviz.annotate.frameworks")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def __getattr__(name: str) -> Callable[..., Annotations]:
    """Return the function that annotates the framework of that name.

    Raises:
        AttributeError: there is no such framework.
    """
    if name.startswith("_") or name not in supported():
        raise AttributeError(
            f"bubbleviz.annotate has no {name!r}; the frameworks are {', '.join(supported())}"
        )
    module = importlib.import_module(f"bubbleviz.annotate.frameworks.{name}")
    annotate: Callable[..., Annotations] = module.annotate
    return annotate


def __dir__() -> list[str]:
    return sorted({*__all__, *supported()})
