"""Where time goes: seconds and rows of each step of a run, noted only on request."""

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
        name: what is done.
        depth: how many steps it is a part of.
        seconds: how long it took, its own parts included.
        rows: how many rows it took in; 0 where rows mean nothing.
        files: which files it was; empty for a step that is no choice between ways to read a file.
    """

    name: str
    depth: int
    seconds: float
    rows: int
    files: tuple[str, ...] = ()


class _Notes:
    """The steps so far; those of one name inside one other are one."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, ...], Step] = {}
        self.open: tuple[str, ...] = ()

    def add(
        self, place: tuple[str, ...], seconds: float, rows: int, files: tuple[str, ...] = ()
    ) -> None:
        """Add to the step of that name (the last one) inside those before it."""
        before = self.steps.get(place, Step(place[-1], len(place) - 1, 0.0, 0))
        self.steps[place] = replace(
            before,
            seconds=before.seconds + seconds,
            rows=before.rows + rows,
            files=before.files + files,
        )


_notes: ContextVar[_Notes | None] = ContextVar("bubbleviz_steps", default=None)


class Rows:
    """Counts the rows of a step while it goes on."""

    count = 0


@contextmanager
def step(name: str) -> Iterator[Rows]:
    """Time what is done inside; set or add to the ``count`` of what is yielded."""
    notes, rows = _notes.get(), Rows()
    if notes is None:
        yield rows
        return
    outer, begun = notes.open, perf_counter()
    place = notes.open = (*outer, name)
    # A step stands before its parts.
    notes.add(place, 0.0, 0)
    try:
        yield rows
    finally:
        notes.open = outer
        notes.add(place, perf_counter() - begun, rows.count)


def note_way(name: str, file: str) -> None:
    """Note in which of several ways a file is read."""
    if notes := _notes.get():
        notes.add((*notes.open, name), 0.0, 0, (file,))


@contextmanager
def noting() -> Iterator[list[Step]]:
    """Note the steps of what is done inside; the list yielded holds them at the end."""
    notes, noted = _Notes(), list[Step]()
    token = _notes.set(notes)
    try:
        yield noted
    finally:
        _notes.reset(token)
        noted.extend(notes.steps.values())


def add(steps: Sequence[Step]) -> None:
    """Add the steps that were noted of a profile, elsewhere maybe, to those noted here."""
    notes = _notes.get()
    if notes is None:
        return
    key: tuple[str, ...] = ()
    for noted in steps:
        key = (*key[: noted.depth], noted.name)
        notes.add((*notes.open, *key), noted.seconds, noted.rows, noted.files)
