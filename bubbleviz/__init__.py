"""How large are the pipeline bubbles of a training run, where, and why.

>>> import bubbleviz
>>> report = bubbleviz.analyze(["node0.sqlite", "node1.sqlite"])  # doctest: +SKIP
>>> report.bubble_ratio  # doctest: +SKIP
0.2727272727272727
"""

from __future__ import annotations

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError

TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers take it for true; nothing loads before Ctrl-C is taken
    from typing import Any

    from bubbleviz.align.stages.pipelines import Parallel
    from bubbleviz.analyses.idle import idle
    from bubbleviz.analyses.idle.analysis import IdleReport
    from bubbleviz.analyses.inspection import inspect
    from bubbleviz.api import analyze, compare, load, simulate
    from bubbleviz.render.notebook import Report
    from bubbleviz.report.idle_summary import IdleSummary
    from bubbleviz.report.summary import RunSummary
    from bubbleviz.report.view import View

__all__ = [
    "BubblevizError",
    "IdleReport",
    "IdleSummary",
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
    "simulate",
]

_HOMES = {
    "IdleReport": "bubbleviz.analyses.idle.analysis",
    "IdleSummary": "bubbleviz.report.idle_summary",
    "Parallel": "bubbleviz.align.stages.pipelines",
    "Report": "bubbleviz.render.notebook",
    "RunSummary": "bubbleviz.report.summary",
    "View": "bubbleviz.report.view",
    "analyze": "bubbleviz.api",
    "compare": "bubbleviz.api",
    "load": "bubbleviz.api",
    "simulate": "bubbleviz.api",
    "idle": "bubbleviz.analyses.idle",
    "inspect": "bubbleviz.analyses.inspection",
}
#: What annotations of these mention, which no analysis needs: their modules import it for type
#: checkers alone. It is written into them where one is asked for by name, so that the annotations
#: are types for what resolves them in these modules (``typing.get_type_hints``, notebooks).
_MENTIONED = {
    "Report": {
        "RunMemory": "bubbleviz.report.memory",
        "WhatIf": "bubbleviz.explain.what_if",
    },
    "compare": {
        "Comparison": "bubbleviz.report.compared.comparison",
    },
    "simulate": {"Estimate": "bubbleviz.schedules.ideal", "Ideal": "bubbleviz.schedules.ideal"},
}


def __getattr__(name: str) -> Any:
    """Load the analysis on first use: ``--help`` needs none of it."""
    # The command goes by both names, and so does its function.
    name = "idle" if name == "gaps" else name
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from bubbleviz.model.arguments import check_argument_types

    found = getattr(importlib.import_module(_HOMES[name]), name)
    taker = found.__mro__[-2] if isinstance(found, type) else found
    for mentioned, home in _MENTIONED.get(name, {}).items():
        known = vars(importlib.import_module(taker.__module__))
        known[mentioned] = getattr(importlib.import_module(home), mentioned)
    # The command line takes its functions from their modules, and tells of options.
    if not isinstance(found, type):
        found = check_argument_types(found)
        # Pickled by this name, for processes that analyze many runs.
        found.__module__ = __name__
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    """Return what is public, loaded or not."""
    return [*__all__]
