"""analysed PATH JOBS DASK: analyse a run as ``bubbleviz analyze`` does, in a process of its own.

Prints as JSON what it found and cost: the CPU time of each step of ``--timings`` (the clock that
measures steps counts it here), and the most memory while each ran.
"""

from __future__ import annotations

import gc
import io
import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: Written to ``clear_refs`` it sets the peak of resident memory to what is resident now.
_PEAK = "5"
peaks: dict[str, int] = {}


def _resident(what: str = "VmHWM") -> int:
    """Return the most memory since the peak was set (``VmHWM``), or that of now (``VmRSS``)."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:  # no /proc here
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def _set_peak() -> None:
    try:
        _CLEAR.write_text(_PEAK)
    except OSError:
        return  # then peaks are those from the beginning on


@contextmanager
def _peaking(name: str) -> Iterator[Any]:
    """Note the most memory of a step of the analysis."""
    from bubbleviz.timing import step

    _set_peak()
    with step(name) as rows:
        yield rows
    peaks[name] = max(_resident(), peaks.get(name, 0))


def _analyse(path: str, jobs: int, dask: str | None) -> dict[str, Any]:
    from bubbleviz import api, timing
    from bubbleviz.__main__ import OBJECTS_BETWEEN_COLLECTIONS
    from bubbleviz.cli.terminal import show_lines
    from bubbleviz.model.phases import COUNTED
    from bubbleviz.native.library import keep_freed_memory
    from bubbleviz.render.text.first_screen import first_screen
    from bubbleviz.render.text.terminal import Display
    from bubbleviz.report.view import View

    # As the program does before it runs.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    keep_freed_memory()
    vars(timing)["perf_counter"] = process_time
    vars(api)["step"] = _peaking
    vars(api)["assemble"] = _peaking("assemble the report")(vars(api)["assemble"])
    before = _resident("VmRSS")
    begun, wall = process_time(), perf_counter()
    with timing.noting() as steps:
        report = api.analyze(path, jobs=jobs, dask=dask)
        screen = io.StringIO()
        with _peaking("print"), redirect_stdout(screen):
            shown = Display()
            show_lines(first_screen(report, View(), shown), shown)
    cpu_s, wall_s = process_time() - begun, perf_counter() - wall
    counted = sum(int((report.operations.phase == phase).sum()) for phase in COUNTED)
    return {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "steps": [[step.name, step.depth, step.seconds] for step in steps],
        "peaks": peaks,
        "before_bytes": before,
        "children_cpu_s": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
        "children_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "counted": counted,
        "operations": len(report.operations),
        "ranks": len(report.ranks),
        "stages": len({rank.stage for rank in report.ranks}),
        "pipelines": len({rank.pipeline for rank in report.ranks}),
        "ratios": {name: spread.mean for name, spread in report.summary.bubble_ratio.items()},
        "limitations": [[n.what, n.count, n.reason] for n in report.limitations],
        "screen": screen.getvalue(),
    }


if __name__ == "__main__":
    path, jobs, dask = sys.argv[1:]
    print(json.dumps(_analyse(path, int(jobs), dask or None)))
