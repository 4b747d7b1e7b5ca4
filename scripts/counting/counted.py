"""The program whose instructions are counted. It is run under valgrind in an empty folder.

    counted PROFILE EXAMPLE COUNTER LIBRARY

Each step of ``--timings`` is a stage, because the clock that times the steps here counts
instructions. The program prints the instructions of each stage as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

_COUNT = Path("count")
_COMMAND = f"snapshot {_COUNT}".encode()
_TIME = b"\ntime="
#: Number of strings to intern. It is larger than the number of strings that all stages intern.
_ROOM_FOR_STRINGS = 1 << 15
counts: dict[str, int] = {}


class _Clock:
    """A clock that reads the instruction counter."""

    def __init__(self, counter: str) -> None:
        self._counter = ctypes.CDLL(counter)

    def __call__(self) -> int:
        """Return the number of instructions since the process began."""
        self._counter.count_into(_COMMAND)
        return int(_COUNT.read_bytes().partition(_TIME)[2].split(b"\n", 1)[0])


class _Late:
    """A task that runs only when its result is requested, so that its instructions are counted."""

    def __init__(self, do: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._do, self._arguments = do, arguments
        self._results: list[Any] = []

    def result(self) -> Any:
        if not self._results:
            self._results.append(self._do(*self._arguments))
        return self._results[0]

    def done(self) -> bool:
        """Return True, because callers do not have to wait for the task."""
        return True

    def cancel(self) -> None:
        """Do nothing, because the task has either not begun or already ended."""


class _LatePool:
    """A replacement for a thread pool that runs tasks late."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> _LatePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def submit(self, do: Callable[..., Any], *arguments: Any) -> _Late:
        return _Late(do, arguments)

    def shutdown(self, **_: bool) -> None: ...


def _load_instead(library: str) -> None:
    """Make bubbleviz load the given compiled library instead of the installed one."""

    class Redirected(ctypes.CDLL):
        def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
            is_bubbleviz = Path(str(name)).name.startswith("libbubbleviz.")
            super().__init__(library if is_bubbleviz else name, *arguments, **options)

    vars(ctypes)["CDLL"] = Redirected


@contextmanager
def _count_stages(suffix: str = "") -> Iterator[None]:
    """Count each step inside the context. The count of a step excludes its substeps."""
    from bubbleviz.timing import record_steps

    with record_steps() as steps:
        yield
    open_stages: list[str] = []
    for step in steps:
        name, count = step.name + suffix, int(step.seconds)
        open_stages = [*open_stages[: step.depth], name]
        if count:
            counts[name] = counts.get(name, 0) + count
            if step.depth:
                counts[open_stages[-2]] -= count


def _start_to_table(clock: _Clock, example: str) -> None:
    """Count an entire run on a small example, most of which is startup."""
    from bubbleviz.__main__ import main

    sys.argv = ["bubbleviz", "analyze", example]
    printed, sys.stdout = sys.stdout, io.StringIO()
    start = clock()
    status = main()
    counts["example, from start to table"] = clock() - start
    sys.stdout = printed
    if status:
        raise SystemExit(f"the example gives status {status}")


def _count_analysis(profile: str) -> None:
    """Count each step of an analysis, and its outputs."""
    import bubbleviz
    from bubbleviz.render import json_document
    from bubbleviz.render.text.report import list_sections
    from bubbleviz.render.text.terminal import render_plain_text
    from bubbleviz.report.view import View
    from bubbleviz.timing import time_step

    # The example is printed without rich, because loading rich is not part of printing a table.
    render_plain_text(iter(()))
    with _count_stages():
        report = bubbleviz.analyze(profile)
        with time_step("report as JSON"):
            json_document.render(report, View())
        with time_step("report as table"):
            render_plain_text(list_sections(report, View()))


def _count_reading(profile: str, suffix: str) -> None:
    """Count the instructions for reading all rows that match any convention's patterns."""
    from bubbleviz.conventions.convention import collect_globs
    from bubbleviz.conventions.convention_file import built_in
    from bubbleviz.interpret.record import open_profile

    globs = collect_globs(tuple(built_in().values()))
    with _count_stages(suffix), open_profile(profile) as (file, _):
        for _ in file.read(globs).calls.blocks():
            pass


def _count_naming() -> None:
    """Count the instructions for matching each convention's names against all conventions."""
    from bubbleviz.conventions.convention_file import built_in
    from bubbleviz.conventions.range_names import parse_range_names
    from bubbleviz.timing import time_step

    conventions = tuple(built_in().values())
    with _count_stages(), time_step("understand names of every convention"):
        for convention in conventions:
            parse_range_names(convention.examples, *conventions)


def main(profile: str, example: str, counter: str, library: str) -> None:
    """Count every stage and print the counts."""
    clock = _Clock(counter)
    _load_instead(library)
    clock()
    _start_to_table(clock, example)
    # The objects from all earlier stages determine in which stage a garbage collection happens.
    gc.disable()
    # The number of interned strings depends on the environment, so the table of interned strings
    # would grow in different stages. Here, it is made so large that it never grows later.
    interned = [sys.intern(f"interned {number}") for number in range(_ROOM_FOR_STRINGS)]
    from bubbleviz import timing
    from bubbleviz.sources.nsys import export as scan

    vars(timing)["perf_counter"] = clock
    vars(scan)["ThreadPoolExecutor"] = _LatePool
    _count_analysis(profile)
    _count_reading(profile, ", compiled")
    os.environ["BUBBLEVIZ_NATIVE"] = "0"
    _count_reading(profile, ", through SQLite")
    _count_naming()
    del interned
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
