"""Times the steps of an analysis. Steps are recorded only inside :func:`record_steps`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import perf_counter


@dataclass(frozen=True)
class Step:
    """One timed step of an analysis, for example "count".

    Attributes:
        name: Name of the step.
        depth: Nesting depth, which is the number of steps that contain this step.
        seconds: Duration in seconds, including nested steps.
        rows: Number of table rows that the step processed, or 0 if rows were not counted.
        files: File names if the step was made by :func:`record_file`, otherwise ().
    """

    name: str
    depth: int
    seconds: float
    rows: int
    files: tuple[str, ...] = ()


class _Notes:
    """The steps recorded so far. Steps with the same name and the same outer steps are merged.

    Attributes:
        steps: Recorded steps, in the order in which they first started. The key of a step is its
            path: the names of its outer steps, outermost first, followed by its name.
        open: Names of the steps that are running, outermost first.
    """

    def __init__(self) -> None:
        self.steps: dict[tuple[str, ...], Step] = {}
        self.open: tuple[str, ...] = ()

    def add(
        self, path: tuple[str, ...], seconds: float, rows: int, files: tuple[str, ...] = ()
    ) -> None:
        """Add a duration, rows and files to a step, creating the step if it does not exist yet.

        Args:
            path: Names of the outer steps, outermost first, followed by the name of the step.
            seconds: Duration to add, in seconds.
            rows: Number of table rows to add.
            files: File names to add.
        """
        previous = self.steps.get(path, Step(path[-1], len(path) - 1, 0.0, 0))
        self.steps[path] = replace(
            previous,
            seconds=previous.seconds + seconds,
            rows=previous.rows + rows,
            files=previous.files + files,
        )


_notes: ContextVar[_Notes | None] = ContextVar("bubbleviz_steps", default=None)


class Rows:
    """Counts the table rows that a running step has processed."""

    count = 0


@contextmanager
def time_step(name: str) -> Iterator[Rows]:
    """Time the code inside the context, and record it as a step.

    The code can set the ``count`` of the yielded counter to the number of table rows that it
    processed. Nothing is recorded outside :func:`record_steps`.
    """
    notes, rows = _notes.get(), Rows()
    if notes is None:
        yield rows
        return
    outer, start_s = notes.open, perf_counter()
    path = notes.open = (*outer, name)
    # Register the step when it starts, so that it is listed before its nested steps.
    notes.add(path, 0.0, 0)
    try:
        yield rows
    finally:
        notes.open = outer
        notes.add(path, perf_counter() - start_s, rows.count)


def record_file(name: str, file: str) -> None:
    """Record how a file is read, as a step without a duration.

    The step is nested in the running step. Nothing is recorded outside :func:`record_steps`.

    Args:
        name: Name of the step, which says how the file is read.
        file: Name of the file.
    """
    if notes := _notes.get():
        notes.add((*notes.open, name), 0.0, 0, (file,))


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Record the steps of the code inside the context.

    Yields an empty list that is filled with the steps when the context ends.
    """
    notes, steps = _Notes(), list[Step]()
    token = _notes.set(notes)
    try:
        yield steps
    finally:
        _notes.reset(token)
        steps.extend(notes.steps.values())


def add_steps(steps: Sequence[Step]) -> None:
    """Add steps that were recorded elsewhere, for example in another process, to this record.

    The steps are nested in the running step. Nothing is added outside :func:`record_steps`.

    Args:
        steps: The steps, each followed by its nested steps.
    """
    notes = _notes.get()
    if notes is None:
        return
    key: tuple[str, ...] = ()
    for recorded in steps:
        key = (*key[: recorded.depth], recorded.name)
        notes.add((*notes.open, *key), recorded.seconds, recorded.rows, recorded.files)
