"""Progress on standard error, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.model.private_names import anonymous
from bubbleviz.model.texts import counted
from bubbleviz.progress import Watch, unwatched

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, TaskID

#: Characters of a profile's name beside its bar.
_LONGEST_NAME = 40
#: What takes less shows no progress.
_LATE_S = 1.0
#: What goes on once profiles have been read.
_AFTER_READING = "linking, aligning, counting"


class ReadingBars:
    """A bar for all profiles together, and one for each that is being read.

    Once all are read, no bar stands full: how long the rest takes is unknown, and a bar says so.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._all: TaskID | None = bars.add_task("all profiles", total=None)
        self._sizes: dict[str, int] = {}
        self._read: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}

    def files(self, sizes: Mapping[str, int]) -> None:
        """Take the profiles of the run, each with its bytes."""
        self._sizes = dict(sizes)
        if self._all is not None:
            what = counted(len(sizes), "profile")
            self._bars.update(self._all, total=sum(sizes.values()) or None, description=what)

    def read(self, path: str, share: float) -> None:
        """Show how much of a profile has been read; finished profiles give way to others."""
        size = self._sizes.get(path, 0)
        more = share * size - self._read.get(path, 0.0)
        self._read[path] = share * size
        if path not in self._tasks and share < 1:
            longest = min(_LONGEST_NAME, self._bars.console.width // 4)
            name = Path(anonymous(path)).name[:longest]
            self._tasks[path] = self._bars.add_task(name, total=size)
        elif path in self._tasks and share >= 1:
            self._bars.remove_task(self._tasks.pop(path))
        elif path in self._tasks:
            self._bars.update(self._tasks[path], completed=share * size)
        if self._all is None:
            return
        if all(self._read.get(file, -1.0) >= size for file, size in self._sizes.items()):
            self._end_reading(self._all)
        else:
            self._bars.advance(self._all, more)

    def _end_reading(self, shown: TaskID) -> None:
        begun = self._bars.tasks[0].start_time
        self._bars.remove_task(shown)
        self._all = None
        self._bars.add_task(_AFTER_READING, total=None)
        self._bars.tasks[-1].start_time = begun


def reading_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of the bars: what, how far, for how long, and what is left."""
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Remaining(ProgressColumn):
        """How much is read, and how long the rest takes, as far as that is known."""

        def render(self, task: Task) -> Text:
            if not task.total or task.finished:
                return Text()
            left = task.time_remaining
            seconds = "" if left is None else f", about {left:.0f} s left"
            return Text(f"{task.percentage:.0f} % of {task.total / 1e6:,.0f} MB read{seconds}")

    what = TextColumn("{task.description}", markup=False)
    return what, BarColumn(), TimeElapsedColumn(), Remaining()


@contextmanager
def progress_bars() -> Iterator[ReadingBars | None]:
    """Show how much of the profiles is read."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console, RenderableType
    from rich.progress import Progress

    begun = time.monotonic()

    class LateProgress(Progress):
        """Bars that show once reading has taken a second."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """Yield the bars, or nothing."""
            if time.monotonic() - begun > _LATE_S:
                yield from super().get_renderables()

    with LateProgress(*reading_columns(), console=Console(stderr=True), transient=True) as bars:
        yield ReadingBars(bars)


@contextmanager
def search_bar() -> Iterator[Watch]:
    """Show how much of a search is done, on a terminal's standard error, if it takes a second."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("searching", total=1.0, visible=False)
        begun = time.monotonic()

        def watch(share: float) -> None:
            bars.update(task, completed=share, visible=time.monotonic() - begun > _LATE_S)

        yield watch
