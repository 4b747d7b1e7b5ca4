"""Encodes the timeline of a run with many ranks as shards that the page unpacks on demand.

A shard contains the ranks of one large pipeline, of several small pipelines, or of part of a very
large pipeline. All pipelines in a job run the same operations at different times. Therefore each
shard consists of two blocks: the structure (which operations ran) and the times (when they ran).
Shards with the same structure share one structure block. The start and length of a busy interval
are stored as differences from those of its operation. These differences are mostly zero.

All columns except lengths are delta-encoded. The numbers are then zigzag-encoded (0, -1, 1, -2
become 0, 1, 2, 3) and stored as byte planes, lowest byte first. As a result, the many zeros in the
high bytes are adjacent and compress well. ``shards.js`` decodes the blocks.
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

#: Maximum number of ranks in a shard with several pipelines, and in a shard with one pipeline. A
#: larger pipeline is divided into several shards.
_MIN_RANKS, _MAX_RANKS = 16, 512
#: Maximum number of ranks in a shard if the ranks' pipelines are unknown.
_RANKS_WITHOUT_PIPELINES = 64
#: Maximum total length of the shards in a page. If this limit is exceeded, the shards whose ratios
#: are closest to the median are left out.
MAX_CHARACTERS = 25_000_000
#: Estimated compressed size of an operation and of a bubble, in bytes, if times are in ns.
#: If the estimated total size is too large, times are in units of ``_COARSE_NS``.
_BYTES_OF_OPERATION, _BYTES_OF_BUBBLE, _COARSE_NS = 8.1, 2.5, 1000
#: Columns of the operations table stored in the structure block.
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
#: zlib compression level.
_LEVEL = 6

Tables = Mapping[str, Mapping[str, Ints]]


def make_shards(
    timeline: Timeline,
    paint: Ints,
    pipelines: Sequence[int | None],
    ratios: Floats,
    first_ranks: Sequence[int] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Encode a timeline as shards.

    Shards are added in order of priority until ``MAX_CHARACTERS`` is reached. The shards of
    ``first_ranks`` have the highest priority. All other shards are sorted by the distance between
    their mean ratio and the median ratio, largest distance first. The first shard that does not
    fit, and all shards after it, are left out. The shard with the highest priority is always
    included.

    Args:
        timeline: Timeline of the run.
        paint: For each operation, the index of its paint.
        pipelines: Pipeline of each rank, or None if unknown. Ranks in the same pipeline must be
            adjacent.
        ratios: Bubble ratio of each rank, or NaN if unknown.
        first_ranks: Indices of the ranks whose shards have the highest priority.

    Returns:
        index: A dict with the unit of all times (``unit_ns``), the number of omitted shards
            (``left_out``), and the list of included shards sorted by rank (``all``). A shard is
            described by (first rank, stop rank, index of the structure block, index of the times
            block), where the range of ranks is half-open.
        elements: One HTML element per block, containing the block as base64.
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
    """Return the time unit in ns: 1 if the timeline will probably fit in the page, otherwise 1000.

    The size of the timeline is estimated from the numbers of operations and bubbles.
    """
    n_bytes = len(tables["operations"]["rank"]) * _BYTES_OF_OPERATION
    n_bytes += len(tables["bubbles"]["rank"]) * _BYTES_OF_BUBBLE
    # base64 needs four characters for three bytes.
    return 1 if n_bytes * 4 / 3 < MAX_CHARACTERS else _COARSE_NS


def _order_by_priority(
    groups: Sequence[tuple[int, int]], ratios: Floats, first_ranks: Sequence[int]
) -> list[tuple[int, int]]:
    """Sort rank ranges by priority, highest priority first.

    Ranges that contain any of ``first_ranks`` come first. Within each of the two sets, ranges are
    sorted by the distance between their mean ratio and the median of all mean ratios, largest
    distance first. If the ratio of any rank in a range is unknown, the range's distance is 0. Ties
    keep their order.

    Args:
        groups: Half-open ranges (first, stop) of rank indices.
        ratios: Bubble ratio of each rank, or NaN if unknown.
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
    """Divide the ranks into shards. Return each shard as a half-open range (first, stop).

    Consecutive pipelines share a shard as long as it has at most ``_MIN_RANKS`` ranks. A pipeline
    with more than ``_MAX_RANKS`` ranks is divided into several shards. If pipelines are unknown, a
    shard has at most ``_RANKS_WITHOUT_PIPELINES`` ranks.

    Args:
        pipelines: Pipeline of each rank, or None if unknown. Ranks in the same pipeline must be
            adjacent.
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
    """Return the slice of table rows that belong to the ranks in [``first``, ``stop``).

    Args:
        rank: Rank of each table row, in ascending order.
        first: First rank.
        stop: First rank not included.
    """
    return slice(*np.searchsorted(rank, (first, stop)).tolist())


def _get_rank_column(tables: Tables, table: str) -> Ints:
    """Return the rank of each table row.

    If the table has no ``rank`` column, the rank is taken from the row's operation.
    """
    columns = tables[table]
    if "rank" in columns:
        return columns["rank"]
    return tables["operations"]["rank"][columns["operation"]]


def _sort_by_rank(tables: Tables, paint: Ints, unit_ns: int) -> dict[str, dict[str, Ints]]:
    """Sort the tables of a timeline by rank, and convert their times to units of ``unit_ns``.

    The operations table gets the additional column ``paint``. Interval starts and ends are rounded
    down separately, so intervals that touch each other still touch after rounding.

    Args:
        tables: Tables of the timeline.
        paint: For each operation, the index of its paint.
        unit_ns: Unit of the returned times, in ns.
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

    Ranks and operations are numbered within the shard, starting from 0.

    Args:
        tables: Tables of the entire timeline, sorted by rank.
        rows: For each table, the slice of rows that belong to the shard.
        first: First rank of the shard.

    Returns:
        Columns, keyed by table name and column name.
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
    """Return all columns in a shard that are not part of its structure.

    Ranks and operations are numbered within the shard, starting from 0. The table of busy intervals
    has two columns: ``later_ns`` is the start minus the start of the operation, and ``longer_ns``
    is the length minus the length of the operation. The table of bubbles has the additional columns
    of :func:`_locate_peers`.

    Args:
        tables: Tables of the entire timeline, sorted by rank.
        rows: For each table, the slice of rows that belong to the shard.
        first: First rank of the shard.

    Returns:
        Columns, keyed by table name and column name.
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
    """Convert the peer operations of a shard's bubbles to indices within the shard.

    Args:
        peer: For each bubble of the shard, the index of the peer operation in the entire timeline,
            or -1 if there is none.
        rank: Rank of each operation in the entire timeline.
        rows: Slice of the operations that belong to the shard.

    Returns:
        Two columns. ``peer_operation`` is the index of the peer operation within the shard, or -1
        if the peer is not in the shard. ``peer_rank`` is the rank of a peer that is outside the
        shard, or -1.
    """
    is_inside = (peer >= rows.start) & (peer < rows.stop)
    is_outside = (peer >= 0) & ~is_inside
    rank_of_peer = rank[np.where(is_outside, peer, 0)] if len(rank) else NONE
    return {
        "peer_operation": np.where(is_inside, peer - rows.start, NONE),
        "peer_rank": np.where(is_outside, rank_of_peer, NONE),
    }


def encode_tables(tables: Mapping[str, Mapping[str, Ints]]) -> bytes:
    """Encode tables of integers as bytes.

    The result consists of the length of the header (4 bytes, little-endian), the header as JSON,
    and the columns. The header maps the name of a table to ``[number of rows, {column name: bytes
    per number}]``. Columns are delta-encoded, except those in ``LENGTHS``. For the bytes of a
    column, see :func:`_encode_planes`.

    Args:
        tables: Columns of each table, keyed by table name and column name. All columns in a table
            have the same length.
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
    """Encode integers with zigzag encoding, and store them as byte planes.

    Returns:
        planes: The lowest bytes of all numbers, followed by the second bytes of all numbers, and so
            on.
        width: Number of bytes per number: the minimum that can hold the largest number. 0 if the
            column is empty.
    """
    if not len(column):
        return b"", 0
    zigzag = ((column << 1) ^ (column >> 63)).view(np.uint64)
    width = (int(zigzag.max()).bit_length() + 7) // 8
    planes: npt.NDArray[np.uint8] = zigzag.astype("<u8").view(np.uint8).reshape(-1, 8)
    return planes.T[:width].tobytes(), width


def compress(data: bytes, level: int) -> str:
    """Compress bytes with zlib, and return the result as base64 text."""
    return base64.b64encode(zlib.compress(data, level)).decode("ascii")
