"""Timing of the steps of a run, recorded only on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import perf_counter


@dataclass(frozen=True)
class Step:
    """One step of a run.

    Attributes:
        name: Name of the step.
        depth: Number of steps that contain it.
        seconds: Duration, including the steps inside it.
        rows: Number of processed rows, or 0 if the step has no rows.
        files: Files that were read in the way that ``name`` states, or () for all other steps.
    """

    name: str
    depth: int
    seconds: float
    rows: int
    files: tuple[str, ...] = ()


class _Notes:
    """The steps recorded so far. Steps with the same name in the same outer step are merged.

    Attributes:
        steps: Recorded steps, keyed by the names of the outer steps and of the step.
        open: Names of the running steps, outermost first.
    """

    def __init__(self) -> None:
        self.steps: dict[tuple[str, ...], Step] = {}
        self.open: tuple[str, ...] = ()

    def add(
        self, path: tuple[str, ...], seconds: float, rows: int, files: tuple[str, ...] = ()
    ) -> None:
        """Add time, rows and files to a step.

        Args:
            path: Names of the outer steps, and the name of the step.
            seconds: Duration to add.
            rows: Number of rows to add.
            files: Files to add.
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
    """Counter of the rows of a running step."""

    count = 0


@contextmanager
def time_step(name: str) -> Iterator[Rows]:
    """Time the code inside the context. It may set the ``count`` of the yielded counter.

    Nothing is recorded outside :func:`record_steps`.
    """
    notes, rows = _notes.get(), Rows()
    if notes is None:
        yield rows
        return
    outer, start_s = notes.open, perf_counter()
    path = notes.open = (*outer, name)
    # Added at the start as well, so that a step comes before the steps inside it.
    notes.add(path, 0.0, 0)
    try:
        yield rows
    finally:
        notes.open = outer
        notes.add(path, perf_counter() - start_s, rows.count)


def record_file(name: str, file: str) -> None:
    """Record that a file is read in the way that ``name`` states, as a step without a duration."""
    if notes := _notes.get():
        notes.add((*notes.open, name), 0.0, 0, (file,))


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Record the steps of the code inside the context.

    The yielded list is filled at the end of the context.
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

    They are added inside the running step. Nothing is added outside :func:`record_steps`.
    """
    notes = _notes.get()
    if notes is None:
        return
    key: tuple[str, ...] = ()
    for recorded in steps:
        key = (*key[: recorded.depth], recorded.name)
        notes.add((*notes.open, *key), recorded.seconds, recorded.rows, recorded.files)
