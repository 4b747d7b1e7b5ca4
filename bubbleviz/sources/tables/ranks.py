"""Ranks: what the rows of a table tell of the ranks that ran them, which must not contradict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operation_table import ToldPlace
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import ToldClock
from bubbleviz.sources.tables.cells import Cells, refused, shown
from bubbleviz.sources.tables.times import whole_numbers

#: More ranks, and so stages and pipelines, than any run has.
_MOST_RANKS = 1_000_000
#: Up to about so many numbers of ranks are looked up in a table.
_FEW = 1 << 20


def places(cells: Cells) -> tuple[Ints, tuple[ToldPlace, ...]]:
    """Return the place of each row's rank among the ranks, and these in order of their numbers.

    Raises:
        ProfileError: a row has no rank, or two rows contradict each other.
    """
    number, known = whole_numbers(cells, "rank", below=_MOST_RANKS)
    if not known.all():
        raise refused(cells.path, int((~known).argmax()), "rank is empty; fill it")
    values, place = _distinct(number)
    count = len(values)
    global_rank = _of_ranks(cells, place, count, "global_rank")
    stage = _of_ranks(cells, place, count, "stage")
    pipeline = _of_ranks(cells, place, count, "pipeline")
    host, clock = (_texts_of_ranks(cells, place, count, name) for name in ("host", "clock"))
    uncertainty_ns = _of_ranks(cells, place, count, "clock_uncertainty_ns")
    told = [
        ToldPlace(
            number=value,
            global_rank=value if global_rank is None else _or_none(int(global_rank[at])),
            host=host[at],
            clock=_clock(clock[at], uncertainty_ns, at),
            stage=None if stage is None else _or_none(int(stage[at])),
            pipeline=None if pipeline is None else int(pipeline[at]),
        )
        for at, value in enumerate(values.tolist())
    ]
    return place, tuple(told)


def refuse_two_stages(cells: Cells, place: Ints, chunk: Ints, phase: Ints, stage: Ints) -> None:
    """Refuse a chunk of a rank that holds two virtual stages.

    Raises:
        ProfileError: there is one.
    """
    rows = np.flatnonzero(np.isin(phase, COUNTED) & (stage != NONE))
    group = groups_of(place[rows], chunk[rows]).of_row
    _refuse_two(cells, "virtual_stage", group, rows, stage[rows], str)


def _distinct(number: Ints) -> tuple[Ints, Ints]:
    """Return distinct numbers from 0, ascending, and the place of each row's among them."""
    if int(number.max(initial=0)) > len(number) + _FEW:
        values, place = np.unique(number, return_inverse=True)
        return values, place.reshape(-1).astype(np.int64)
    occurs = np.bincount(number) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[number]


def _clock(name: str | None, uncertainty_ns: Ints | None, at: int) -> ToldClock | None:
    """Return the clock of a rank; None for the one that all tables share."""
    if name is None:
        return None
    if uncertainty_ns is None:
        return ToldClock(name)
    return ToldClock(name, aligned=True, uncertainty_ns=_or_none(int(uncertainty_ns[at])))


def _or_none(number: int) -> int | None:
    return None if number == NONE else number


def _of_ranks(cells: Cells, place: Ints, count: int, name: str) -> Ints | None:
    """Return the number of each rank in a column; -1 none, and None without the column."""
    if name not in cells.numbers:
        return None
    below = 1 << 62 if name == "clock_uncertainty_ns" else _MOST_RANKS
    values, known = whole_numbers(cells, name, least=NONE, below=below)
    rows = np.flatnonzero(known & (values != NONE))
    _refuse_two(cells, name, place[rows], rows, values[rows], str)
    result = np.full(count, NONE, np.int64)
    result[place[rows]] = values[rows]
    return result


def _texts_of_ranks(cells: Cells, place: Ints, count: int, name: str) -> list[str | None]:
    """Return the text of each rank in a column; None for none."""
    if name not in cells.texts:
        return [None] * count
    column = cells.texts[name]
    rows = np.flatnonzero(column.known)
    codes = column.code[rows]
    _refuse_two(cells, name, place[rows], rows, codes, lambda code: shown(column.texts[code]))
    result: list[str | None] = [None] * count
    code_of = np.full(count, NONE, np.int64)
    code_of[place[rows]] = codes
    for at, code in enumerate(code_of.tolist()):
        result[at] = None if code == NONE else column.texts[code]
    return result


def _refuse_two(
    cells: Cells,
    name: str,
    group: Ints,
    rows: Ints,
    values: Ints,
    told: Callable[[int], str],
) -> None:
    """Refuse rows of one group that hold two values.

    Args:
        cells: of the table.
        name: of the column.
        group: of each of the rows.
        rows: of the table.
        values: of these.
        told: returns one of these as a message shows it.
    """
    if len(rows) == 0:
        return
    first = np.zeros(int(group.max()) + 1, np.int64)
    # The first of each group is the last to be set.
    first[group[::-1]] = np.arange(len(group))[::-1]
    other: Bools = values != values[first[group]]
    if not other.any():
        return
    at = int(other.argmax())
    before = int(first[group[at]])
    number, _ = whole_numbers(cells, "rank")
    raise refused(
        cells.path,
        int(rows[at]),
        f"rank {number[rows[at]]} has {name} {told(int(values[at]))} here, and "
        f"{told(int(values[before]))} in row {rows[before] + 1}; give each rank "
        + ("and chunk one" if name == "virtual_stage" else "one"),
    )
