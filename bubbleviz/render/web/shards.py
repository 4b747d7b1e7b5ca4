"""Shards: the timeline of a run of many ranks, a pipeline or a few small ones at a time.

A page unpacks a shard when it is shown. Pipelines of one job do the same at other times, so what
operations are (structure) is held apart from when they ran (times), and held once by those that
share it. Busy intervals travel as what they are apart from their operation, mostly nothing.

All columns travel as differences, but for lengths. Numbers are folded (0, -1, 1, -2 become 0, 1, 2,
3) and held by bytes, all lowest ones first, so that the many zeros of the higher ones lie together.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.report.timeline import Timeline

#: Ranks of a shard: pipelines of fewer share one, those of more have several.
_FEWEST_RANKS, _MOST_RANKS = 16, 512
#: Ranks of a shard where pipelines are not known.
_UNKNOWN_RANKS = 64
#: Characters that shards take in a page. Beyond, pipelines are left out, what is most like the
#: others first.
MOST_CHARACTERS = 25_000_000
#: About so many bytes an operation and a bubble take at full precision, and the unit where
#: that is too much.
_BYTES_OF_OPERATION, _BYTES_OF_BUBBLE, _COARSE_NS = 8.1, 2.5, 1000
_STRUCTURE = (
    *("rank", "iteration", "phase", "microbatch", "second_microbatch", "chunk", "second_chunk"),
    *("virtual_stage", "kernels", "name", "paint"),
)
#: Tables whose rows are intervals of an operation.
_PIECES = ("compute", "communication")
#: Columns that travel as they are, not as differences.
LENGTHS = frozenset(("length_ns", "active_ns", "thousandths", "later_ns", "longer_ns"))
_LEVEL = 6

Tables = Mapping[str, Mapping[str, Ints]]


def sharded(
    timeline: Timeline,
    paint: Ints,
    pipelines: Sequence[int | None],
    ratios: Floats,
    wanted: Sequence[int] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return a timeline in shards: what a page knows of them, and the elements that hold blocks.

    A page knows the unit of all times, how many shards it has no room for, and of the others, in
    order of ranks, the first rank, that behind the last, and the blocks of structure and times.

    Args:
        timeline: of any run.
        paint: how each operation is filled.
        pipelines: of each rank.
        ratios: of each rank, NaN where unknown: the pipelines that differ most stay.
        wanted: ranks whose shards stay before all others.
    """
    tables = timeline.tables
    binary = len(tables["operations"]["rank"]) * _BYTES_OF_OPERATION
    binary += len(tables["bubbles"]["rank"]) * _BYTES_OF_BUBBLE
    unit_ns = 1 if binary * 4 / 3 < MOST_CHARACTERS else _COARSE_NS
    columns = _in_units(tables, paint, unit_ns)
    operations = columns["operations"]
    ranks = {
        table: own["rank"] if "rank" in own else operations["rank"][own["operation"]]
        for table, own in columns.items()
    }
    groups = _group_pipelines(pipelines)
    blocks: list[str] = []
    known: dict[bytes, int] = {}
    shards: list[tuple[int, int, int, int]] = []
    room = MOST_CHARACTERS
    asked = set(wanted)
    # What is most different comes first.
    means = np.array([np.mean(ratios[first:last]) for first, last in groups])
    usual = np.median(means[~np.isnan(means)]) if not np.isnan(means).all() else 0.0
    order = np.argsort(-np.nan_to_num(np.abs(means - usual)), kind="stable").tolist()
    for place in sorted(order, key=lambda own: asked.isdisjoint(range(*groups[own]))):
        first, last = groups[place]
        own = {table: _rows_of_ranks(rank, first, last) for table, rank in ranks.items()}
        structure = bytes_of(_structure(columns, own, first))
        times = deflated(bytes_of(_times(columns, own, first)), _LEVEL)
        new = "" if structure in known else deflated(structure, _LEVEL)
        room -= len(new) + len(times)
        if room < 0 and shards:
            break
        if new:
            known[structure] = len(blocks)
            blocks.append(new)
        shards.append((first, last, known[structure], len(blocks)))
        blocks.append(times)
    told = {"unit_ns": unit_ns, "left_out": len(groups) - len(shards), "all": sorted(shards)}
    return told, [
        f'<script type="application/octet-stream" id="block-{number}">{block}</script>'
        for number, block in enumerate(blocks)
    ]


def _group_pipelines(pipelines: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return half-open ranges (first, stop) of the ranks of each shard.

    Small pipelines share a shard, and large ones are cut.

    Args:
        pipelines: Pipeline of each rank, sorted, or None if it is unknown.
    """
    count = len(pipelines)
    starts = [rank for rank in range(count) if rank == 0 or pipelines[rank] != pipelines[rank - 1]]
    groups: list[tuple[int, int]] = []
    for first, stop in zip(starts, [*starts[1:], count], strict=False):
        size = _UNKNOWN_RANKS if pipelines[first] is None else _MOST_RANKS
        if groups and stop - groups[-1][0] <= _FEWEST_RANKS:
            groups[-1] = (groups[-1][0], stop)
        else:
            groups.extend((cut, min(cut + size, stop)) for cut in range(first, stop, size))
    return groups


def _rows_of_ranks(rank: Ints, first: int, stop: int) -> slice:
    """Return the rows of the ranks ``first`` to ``stop`` in a table that is sorted by rank."""
    return slice(*np.searchsorted(rank, (first, stop)).tolist())


def _in_units(tables: Tables, paint: Ints, unit_ns: int) -> dict[str, dict[str, Ints]]:
    """Return the tables in order of ranks, with times in a unit: ends stay where starts are."""
    found: dict[str, dict[str, Ints]] = {}
    for table, columns in tables.items():
        own = dict(columns)
        if table == "operations":
            own["paint"] = paint
        rank = own["rank"] if "rank" in own else tables["operations"]["rank"][own["operation"]]
        if np.any(np.diff(rank) < 0):
            order = np.argsort(rank, kind="stable")
            own = {name: column[order] for name, column in own.items()}
        if unit_ns > 1 and "start_ns" in own:
            start_ns, length_ns = own["start_ns"], own["length_ns"]
            start = np.where(length_ns < 0, start_ns, start_ns // unit_ns)
            end = (start_ns + length_ns) // unit_ns
            own["start_ns"], own["length_ns"] = start, np.where(length_ns < 0, NONE, end - start)
        if unit_ns > 1 and "active_ns" in own:
            own["active_ns"] = np.minimum(own["active_ns"] // unit_ns, own["length_ns"])
        found[table] = own
    return found


def _structure(tables: Tables, rows: Mapping[str, slice], first: int) -> dict[str, dict[str, Ints]]:
    """Return what the operations of some ranks are, and which ran; ranks from 0 on."""
    at = rows["operations"]
    own = {name: tables["operations"][name][at] for name in _STRUCTURE}
    own["rank"] = own["rank"] - first
    pieces = {
        table: {"operation": tables[table]["operation"][rows[table]] - at.start}
        for table in _PIECES
    }
    return {"operations": own, **pieces}


def _times(tables: Tables, rows: Mapping[str, slice], first: int) -> dict[str, dict[str, Ints]]:
    """Return when the operations of some ranks ran, and all that differs between pipelines."""
    operations, at = tables["operations"], rows["operations"]
    found: dict[str, dict[str, Ints]] = {}
    for table, columns in tables.items():
        own = {name: column[rows[table]] for name, column in columns.items()}
        if table in _PIECES:
            of = own["operation"]
            own = {
                "later_ns": own["start_ns"] - operations["start_ns"][of],
                "longer_ns": own["length_ns"] - operations["length_ns"][of],
            }
        elif table == "operations":
            own = {name: column for name, column in own.items() if name not in _STRUCTURE}
        elif table == "bubbles":
            own |= _peers(own.pop("peer_operation"), operations["rank"], at)
        for name in ("operation", "after"):
            if name in own:
                own[name] = np.where(own[name] < 0, NONE, own[name] - at.start)
        if "rank" in own:
            own["rank"] = own["rank"] - first
        found[table] = own
    return found


def _peers(peer: Ints, rank: Ints, rows: slice) -> dict[str, Ints]:
    """Return peers as rows of a shard, and those of other shards by their rank."""
    within = (peer >= rows.start) & (peer < rows.stop)
    beyond = (peer >= 0) & ~within
    return {
        "peer_operation": np.where(within, peer - rows.start, NONE),
        "peer_rank": np.where(beyond, rank[np.where(beyond, peer, 0)] if len(rank) else NONE, NONE),
    }


def bytes_of(tables: Mapping[str, Mapping[str, Ints]]) -> bytes:
    """Return columns by bytes, behind where each lies: table to [rows, {column: bytes each}].

    Those that are no lengths are differences from row to row.
    """
    blocks = []
    layout: dict[str, Any] = {}
    for table, columns in tables.items():
        widths = {}
        for name, column in columns.items():
            steps = column if name in LENGTHS else np.diff(column, prepend=np.int64(0))
            block, widths[name] = _planes(steps)
            blocks.append(block)
        layout[table] = [len(next(iter(columns.values()))), widths]
    head = json.dumps(layout, separators=(",", ":")).encode()
    return len(head).to_bytes(4, "little") + head + b"".join(blocks)


def _planes(column: Ints) -> tuple[bytes, int]:
    """Return a folded column byte by byte, and how many bytes a number has."""
    if not len(column):
        return b"", 0
    folded = ((column << 1) ^ (column >> 63)).view(np.uint64)
    width = (int(folded.max()).bit_length() + 7) // 8
    planes: npt.NDArray[np.uint8] = folded.astype("<u8").view(np.uint8).reshape(-1, 8)
    return planes.T[:width].tobytes(), width


def deflated(data: bytes, level: int) -> str:
    """Return bytes as text that a page inflates."""
    return base64.b64encode(zlib.compress(data, level)).decode("ascii")
