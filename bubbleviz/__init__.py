"""Measure the pipeline bubbles of a training run, and find their causes.

>>> import bubbleviz
>>> report = bubbleviz.analyze(["node0.sqlite", "node1.sqlite"])  # doctest: +SKIP
>>> report.bubble_ratio  # doctest: +SKIP
0.2727272727272727
"""

from __future__ import annotations

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError

TYPE_CHECKING = False
# Only type checkers perform these imports. At run time, nothing is loaded before the Ctrl-C handler
# is installed.
if TYPE_CHECKING:
    from typing import Any

    from bubbleviz.align.stages.pipelines import Parallel
    from bubbleviz.analyses.idle import idle
    from bubbleviz.analyses.idle.analysis import IdleReport
    from bubbleviz.analyses.inspection import inspect
    from bubbleviz.analyses.nccl.report import NcclReport, nccl
    from bubbleviz.api.analysis import analyze
    from bubbleviz.api.comparison import compare
    from bubbleviz.api.loading import load
    from bubbleviz.api.simulation import simulate
    from bubbleviz.render.notebook import Report
    from bubbleviz.report.idle_summary import IdleSummary
    from bubbleviz.report.summary import RunSummary
    from bubbleviz.report.view import View

__all__ = [
    "BubblevizError",
    "IdleReport",
    "IdleSummary",
    "NcclReport",
    "Parallel",
    "Report",
    "RunSummary",
    "View",
    "__version__",
    "analyze",
    "compare",
    "idle",
    "inspect",
    "load",
    "nccl",
    "simulate",
]

#: Module that defines each public object, keyed by the name of the object.
_MODULES = {
    "IdleReport": "bubbleviz.analyses.idle.analysis",
    "IdleSummary": "bubbleviz.report.idle_summary",
    "NcclReport": "bubbleviz.analyses.nccl.report",
    "Parallel": "bubbleviz.align.stages.pipelines",
    "Report": "bubbleviz.render.notebook",
    "RunSummary": "bubbleviz.report.summary",
    "View": "bubbleviz.report.view",
    "analyze": "bubbleviz.api.analysis",
    "compare": "bubbleviz.api.comparison",
    "load": "bubbleviz.api.loading",
    "simulate": "bubbleviz.api.simulation",
    "idle": "bubbleviz.analyses.idle",
    "inspect": "bubbleviz.analyses.inspection",
    "nccl": "bubbleviz.analyses.nccl.report",
}
#: Module of each annotation type that would otherwise be imported only for type checkers. Keyed by
#: the public object whose annotations use the type, and then by the name of the type. The types are
#: added to the namespace of a public object when the object is first used. This allows
#: ``typing.get_type_hints`` and notebooks to resolve the annotations.
_ANNOTATION_TYPES = {
    "Report": {
        "Plan": "bubbleviz.schedules.plan",
        "RunMemory": "bubbleviz.report.memory",
        "WhatIf": "bubbleviz.explain.what_if",
    },
    "compare": {
        "IdleReport": "bubbleviz.analyses.idle.analysis",
    },
}


def __getattr__(name: str) -> Any:
    """Import a public object on first use, so that ``--help`` starts quickly.

    Functions are wrapped to check the types of their arguments. ``gaps`` is an alias of ``idle``.
    """
    # ``gaps`` is the former name of ``idle``.
    name = "idle" if name == "gaps" else name
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from bubbleviz.model.arguments import check_argument_types

    public_object = getattr(importlib.import_module(_MODULES[name]), name)
    # The fields of a public class are annotated in the module of its base class.
    annotated = public_object.__base__ if isinstance(public_object, type) else public_object
    for type_name, module in _ANNOTATION_TYPES.get(name, {}).items():
        namespace = vars(importlib.import_module(annotated.__module__))
        namespace[type_name] = getattr(importlib.import_module(module), type_name)
    # The command line imports functions from their modules, so its arguments are not checked here.
    if not isinstance(public_object, type):
        public_object = check_argument_types(public_object)
        # With this attribute, the wrapped function can be pickled for other processes.
        public_object.__module__ = __name__
    return globals().setdefault(name, public_object)


def __dir__() -> list[str]:
    """Return all public names, whether or not they have been imported yet."""
    return [*__all__]
