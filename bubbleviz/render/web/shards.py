"""Encoding of the timeline of a run of many ranks as shards, which a page unpacks on demand.

A shard contains the ranks of one large pipeline, of several small ones, or of a part of a very
large one. The pipelines of a job run the same operations at different times. So each shard is two
blocks: the structure (which operations) and the times (when they ran). Shards with equal structure
share one structure block. Busy intervals are stored as the difference to their operation, which is
mostly zero.

Columns are delta-encoded, except for lengths. Then the numbers are zigzag-encoded (0, -1, 1, -2
become 0, 1, 2, 3) and stored as byte planes, lowest bytes first, so that the many zeros in the high
bytes follow each other and compress well. ``shards.js`` decodes them.
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

#: Number of ranks up to which several pipelines share a shard, and number of ranks above which a
#: pipeline is divided into several shards.
_MIN_RANKS, _MAX_RANKS = 16, 512
#: Number of ranks in a shard if their pipelines are unknown.
_RANKS_WITHOUT_PIPELINES = 64
#: Maximum number of characters of all shards in a page. If they need more, the pipelines closest
#: to the median are left out first.
MAX_CHARACTERS = 25_000_000
#: Estimated number of compressed bytes per operation and per bubble at full precision, and the
#: coarser unit of time that is used if the total is too large.
_BYTES_OF_OPERATION, _BYTES_OF_BUBBLE, _COARSE_NS = 8.1, 2.5, 1000
#: Columns of operations in the structure block.
_STRUCTURE = (
    "rank",
    "iteration",
    "phase",
    "microbatch",
    "second_microbatch",
    "chunk",
    "second_chunk",
    "virtual_stage",
    "kernels",
    "name",
    "paint",
)
#: Tables whose rows are busy intervals of operations.
_INTERVAL_TABLES = ("compute", "communication")
#: Columns that are not delta-encoded.
LENGTHS = frozenset(("length_ns", "active_ns", "thousandths", "later_ns", "longer_ns"))
#: Compression level of zlib.
_LEVEL = 6

Tables = Mapping[str, Mapping[str, Ints]]


def make_shards(
    timeline: Timeline,
    paint: Ints,
    pipelines: Sequence[int | None],
    ratios: Floats,
    first_ranks: Sequence[int] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Encode a timeline as shards, as many as fit in ``MAX_CHARACTERS``, but at least one.

    Shards are added in order of priority: first the shards of ``first_ranks``, then the shards
    whose mean ratio is furthest from the median of all shards. The first shard that does not fit,
    and all shards after it, are left out.

    Args:
        timeline: Timeline of the run.
        paint: Index of the paint of each operation.
        pipelines: Pipeline of each rank, sorted, or None if it is unknown.
        ratios: Bubble ratio of each rank, or NaN if unknown.
        first_ranks: Indices of the ranks whose shards are added before all others.

    Returns:
        index: ``unit_ns``, the unit of all times; ``left_out``, the number of shards that do not
            fit; and ``all``, the other shards in order of ranks, as (first rank, stop rank,
            index of the structure block, index of the times block).
        elements: One HTML element per block, which contains the block as base64.
    """
    unit_ns = _choose_unit_ns(timeline.tables)
    tables = _sort_by_rank(timeline.tables, paint, unit_ns)
    groups = _group_pipelines(pipelines)
    rank_of_row = {table: _get_rank_column(tables, table) for table in tables}
    blocks: list[str] = []
    block_of_structure: dict[bytes, int] = {}
    shards: list[tuple[int, int, int, int]] = []
    space = MAX_CHARACTERS
    for first, stop in _order_by_priority(groups, ratios, first_ranks):
        rows = {table: _find_rows(rank, first, stop) for table, rank in rank_of_row.items()}
        structure = encode_tables(_select_structure(tables, rows, first))
        times = compress(encode_tables(_select_times(tables, rows, first)), _LEVEL)
        is_new = structure not in block_of_structure
        new_block = compress(structure, _LEVEL) if is_new else ""
        space -= len(new_block) + len(times)
        if space < 0 and shards:
            break
        if is_new:
            block_of_structure[structure] = len(blocks)
            blocks.append(new_block)
        shards.append((first, stop, block_of_structure[structure], len(blocks)))
        blocks.append(times)
    index = {"unit_ns": unit_ns, "left_out": len(groups) - len(shards), "all": sorted(shards)}
    return index, [
        f'<script type="application/octet-stream" id="block-{number}">{block}</script>'
        for number, block in enumerate(blocks)
    ]


def _choose_unit_ns(tables: Tables) -> int:
    """Return the unit of time: 1 ns if the timeline probably fits in the page, otherwise 1 us."""
    n_bytes = len(tables["operations"]["rank"]) * _BYTES_OF_OPERATION
    n_bytes += len(tables["bubbles"]["rank"]) * _BYTES_OF_BUBBLE
    # base64 needs four characters for three bytes.
    return 1 if n_bytes * 4 / 3 < MAX_CHARACTERS else _COARSE_NS


def _order_by_priority(
    groups: Sequence[tuple[int, int]], ratios: Floats, first_ranks: Sequence[int]
) -> list[tuple[int, int]]:
    """Sort ranges of ranks: ranges with ``first_ranks``, then by distance from the median ratio.

    Args:
        groups: Half-open ranges (first, stop) of rank indices.
        ratios: Bubble ratio of each rank, or NaN if unknown. A range with an unknown ratio counts
            as a range with the median ratio.
        first_ranks: Rank indices whose ranges come first.
    """
    means = np.array([np.mean(ratios[first:stop]) for first, stop in groups])
    is_unknown = np.isnan(means)
    median = 0.0 if is_unknown.all() else np.median(means[~is_unknown])
    order = np.argsort(-np.nan_to_num(np.abs(means - median)), kind="stable").tolist()
    ordered = [groups[index] for index in order]
    requested = set(first_ranks)
    return sorted(ordered, key=lambda group: requested.isdisjoint(range(*group)))


def _group_pipelines(pipelines: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return half-open ranges (first, stop) of the ranks of each shard.

    Consecutive pipelines share a shard while it has at most ``_MIN_RANKS`` ranks. A pipeline with
    more than ``_MAX_RANKS`` ranks is cut into several shards. If pipelines are unknown, a shard has
    at most ``_RANKS_WITHOUT_PIPELINES`` ranks.

    Args:
        pipelines: Pipeline of each rank, sorted, or None if it is unknown.
    """
    count = len(pipelines)
    starts = [rank for rank in range(count) if rank == 0 or pipelines[rank] != pipelines[rank - 1]]
    groups: list[tuple[int, int]] = []
    for first, stop in zip(starts, [*starts[1:], count], strict=False):
        size = _RANKS_WITHOUT_PIPELINES if pipelines[first] is None else _MAX_RANKS
        if groups and stop - groups[-1][0] <= _MIN_RANKS:
            groups[-1] = (groups[-1][0], stop)
        else:
            groups.extend((cut, min(cut + size, stop)) for cut in range(first, stop, size))
    return groups


def _find_rows(rank: Ints, first: int, stop: int) -> slice:
    """Return the rows of the ranks in [``first``, ``stop``) of a table that is sorted by rank."""
    return slice(*np.searchsorted(rank, (first, stop)).tolist())


def _get_rank_column(tables: Tables, table: str) -> Ints:
    """Return the rank of each row, taken from its operation if the table has no ranks."""
    columns = tables[table]
    if "rank" in columns:
        return columns["rank"]
    return tables["operations"]["rank"][columns["operation"]]


def _sort_by_rank(tables: Tables, paint: Ints, unit_ns: int) -> dict[str, dict[str, Ints]]:
    """Return the tables sorted by rank, with a column ``paint`` and with times in a unit.

    Starts and ends are rounded down separately, so intervals that touch still touch.

    Args:
        tables: Tables of the timeline.
        paint: Index of the paint of each operation.
        unit_ns: The unit, in ns.
    """
    sorted_tables: dict[str, dict[str, Ints]] = {}
    for table, unsorted in tables.items():
        columns = dict(unsorted)
        if table == "operations":
            columns["paint"] = paint
        rank = _get_rank_column(tables, table)
        if np.any(np.diff(rank) < 0):
            order = np.argsort(rank, kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
        if unit_ns > 1 and "start_ns" in columns:
            start_ns, length_ns = columns["start_ns"], columns["length_ns"]
            start = np.where(length_ns < 0, start_ns, start_ns // unit_ns)
            end = (start_ns + length_ns) // unit_ns
            columns["start_ns"] = start
            columns["length_ns"] = np.where(length_ns < 0, NONE, end - start)
        if unit_ns > 1 and "active_ns" in columns:
            columns["active_ns"] = np.minimum(columns["active_ns"] // unit_ns, columns["length_ns"])
        sorted_tables[table] = columns
    return sorted_tables


def _select_structure(
    tables: Tables, rows: Mapping[str, slice], first: int
) -> dict[str, dict[str, Ints]]:
    """Return the structure of a shard: its operations, and the operation of each busy interval.

    Args:
        tables: Tables of the entire timeline, sorted by rank.
        rows: Rows of the shard in each table.
        first: First rank of the shard. Ranks are numbered from it, and operations from the first
            operation of the shard.
    """
    operation_rows = rows["operations"]
    operations = {name: tables["operations"][name][operation_rows] for name in _STRUCTURE}
    operations["rank"] = operations["rank"] - first
    intervals = {
        table: {"operation": tables[table]["operation"][rows[table]] - operation_rows.start}
        for table in _INTERVAL_TABLES
    }
    return {"operations": operations, **intervals}


def _select_times(
    tables: Tables, rows: Mapping[str, slice], first: int
) -> dict[str, dict[str, Ints]]:
    """Return all columns of a shard that are not in its structure, keyed by table and column.

    A busy interval has two columns: its start and its length, each minus the same quantity of its
    operation.

    Args:
        tables: Tables of the entire timeline, sorted by rank.
        rows: Rows of the shard in each table.
        first: First rank of the shard. Ranks are numbered from it, and operations from the first
            operation of the shard.
    """
    operations, operation_rows = tables["operations"], rows["operations"]
    shard: dict[str, dict[str, Ints]] = {}
    for table, all_columns in tables.items():
        columns = {name: column[rows[table]] for name, column in all_columns.items()}
        if table in _INTERVAL_TABLES:
            operation = columns["operation"]
            columns = {
                "later_ns": columns["start_ns"] - operations["start_ns"][operation],
                "longer_ns": columns["length_ns"] - operations["length_ns"][operation],
            }
        elif table == "operations":
            columns = {n: column for n, column in columns.items() if n not in _STRUCTURE}
        elif table == "bubbles":
            columns |= _locate_peers(
                columns.pop("peer_operation"), operations["rank"], operation_rows
            )
        for name in ("operation", "after"):
            if name in columns:
                row = columns[name]
                columns[name] = np.where(row < 0, NONE, row - operation_rows.start)
        if "rank" in columns:
            columns["rank"] = columns["rank"] - first
        shard[table] = columns
    return shard


def _locate_peers(peer: Ints, rank: Ints, rows: slice) -> dict[str, Ints]:
    """Return the peers of a shard's bubbles: rows of the shard, or ranks outside the shard.

    Args:
        peer: Row of the peer operation in the entire timeline, or -1 if there is none.
        rank: Rank of each operation of the entire timeline.
        rows: Rows of the shard's operations.

    Returns:
        The columns ``peer_operation``, a row of the shard, or -1 if the peer is not in the shard,
        and ``peer_rank``, the rank of a peer outside the shard, or -1.
    """
    is_inside = (peer >= rows.start) & (peer < rows.stop)
    is_outside = (peer >= 0) & ~is_inside
    rank_of_peer = rank[np.where(is_outside, peer, 0)] if len(rank) else NONE
    return {
        "peer_operation": np.where(is_inside, peer - rows.start, NONE),
        "peer_rank": np.where(is_outside, rank_of_peer, NONE),
    }


def encode_tables(tables: Mapping[str, Mapping[str, Ints]]) -> bytes:
    """Encode tables of integers: length of a header (4 bytes), the header as JSON, the columns.

    The header maps each table to ``[number of rows, {column: bytes per number}]``. All columns
    except ``LENGTHS`` are delta-encoded; see :func:`_encode_planes` for their bytes.
    """
    blocks = []
    layout: dict[str, Any] = {}
    for table, columns in tables.items():
        widths = {}
        for name, column in columns.items():
            values = column if name in LENGTHS else np.diff(column, prepend=np.int64(0))
            block, widths[name] = _encode_planes(values)
            blocks.append(block)
        layout[table] = [len(next(iter(columns.values()))), widths]
    header = json.dumps(layout, separators=(",", ":")).encode()
    return len(header).to_bytes(4, "little") + header + b"".join(blocks)


def _encode_planes(column: Ints) -> tuple[bytes, int]:
    """Encode numbers with zigzag encoding as byte planes, lowest byte first.

    Returns:
        planes: The bytes, with the lowest bytes of all numbers first.
        width: Number of bytes per number, as many as the largest number needs.
    """
    if not len(column):
        return b"", 0
    zigzag = ((column << 1) ^ (column >> 63)).view(np.uint64)
    width = (int(zigzag.max()).bit_length() + 7) // 8
    planes: npt.NDArray[np.uint8] = zigzag.astype("<u8").view(np.uint8).reshape(-1, 8)
    return planes.T[:width].tobytes(), width


def compress(data: bytes, level: int) -> str:
    """Compress bytes with zlib, and encode them as base64."""
    return base64.b64encode(zlib.compress(data, level)).decode("ascii")
