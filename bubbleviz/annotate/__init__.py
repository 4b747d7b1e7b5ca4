"""Add ranges to training scripts if the framework does not name its operations.

>>> from bubbleviz import annotate
>>> handle = annotate.torch_pipelining()  # doctest: +SKIP
>>> with annotate.phase("F", microbatch=3, chunk=0):
...     pass

Nsight Systems records these ranges as NVTX ranges, and PyTorch's profiler records them as profiler
ranges. Range names such as ``bubbleviz:F mb=3 chunk=0`` follow the convention ``bubbleviz``, which
``bubbleviz analyze`` recognizes without an option. As long as nothing records the ranges, each
range costs one or two microseconds.

``annotate.record("run/")`` writes the times of the ranges to files, without a profiler. The call
``annotate.torch_pipelining(record="run/")`` also records to files. Setting the environment variable
BUBBLEVIZ_RECORD to a folder starts a recording without changes to the script. ``bubbleviz analyze
run/`` reads the files.

Each supported framework has a function named after it: ``annotate.torch_pipelining()``,
``annotate.megatron()``, ``annotate.deepspeed()``, and ``annotate.torch(model)`` for training steps
without stages. The function wraps framework methods and returns a handle, which is also a context
manager. The handle's method ``remove()`` restores the original methods. Annotating the framework
again returns the existing handle.

The package imports only the standard library. It uses PyTorch only if the script has already
imported it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from bubbleviz.annotate.ranges import Range, iteration, phase, step
from bubbleviz.annotate.switch import record, record_from_environment
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

record_from_environment()


def supported() -> tuple[str, ...]:
    """Return the names of the supported frameworks, in alphabetical order."""
    package = importlib.import_module("bubbleviz.annotate.frameworks")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def __getattr__(name: str) -> Callable[..., Annotations]:
    """Return the function that annotates the framework with this name.

    Raises:
        AttributeError: The framework is not supported.
    """
    if name.startswith("_") or name not in supported():
        raise AttributeError(
            f"bubbleviz.annotate has no function {name!r}; the supported frameworks are "
            f"{', '.join(supported())}"
        )
    module = importlib.import_module(f"bubbleviz.annotate.frameworks.{name}")
    annotate: Callable[..., Annotations] = module.annotate
    return annotate


def __dir__() -> list[str]:
    return sorted({*__all__, *supported()})
