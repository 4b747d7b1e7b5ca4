"""Outputs of communication: JSON, operations as CSV, and what ``bubbleviz nccl`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import numpy as np

from bubbleviz.analyses.nccl import hangs, members
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.model import collectives, grouping, intervals
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.texts import counted, csv_text, document_text, inert, one_line
from bubbleviz.render import document as blocks
from bubbleviz.sources.nccl.events import PROGRESS, STATES, UNKNOWN, OperationKind

#: The terms of the report; below the table and in the JSON.
DEFINITIONS = (
    "n: ranks of the communicator, from NCCL's ranges or PyTorch's groups, else the highest rank "
    "seen plus one",
    "MB, ms, waiting, moving: sums over the operations, (k) over k of them where the others' are "
    "unknown",
    "bytes: number of elements times their size, sent or received by one rank (AllGather: one "
    "rank's part)",
    "ms: from start to end, over all ranks; operations that share a kernel each have all its time",
    "busy: ms in which GPUs run any of these operations, each instant of a GPU once; rows that "
    "share kernels or run at the same time overlap, so they can add up to more than the total",
    "waiting: from a rank's start to that of the operation's last member; without other members, "
    "while its proxy thread waits for the peer (SendPeerWait, RecvWait) and moves no data",
    "moving: the rest of the operation's time, where its end is known",
    "waited for: a rank that entered an operation last, by the time that all others waited in it; "
    "of flight recorders lengths alone are exact, and all members are taken to end together",
    "GB/s: 10^9 bytes per second; alg: bytes over time, all ranks' parts together; bus: times "
    "2(n-1)/n (AllReduce), (n-1)/n (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or 1, as "
    "in nccl-tests; moving: bus, over the time in which data moves",
)


def sizes_of(communication: Communication) -> tuple[Floats, Floats]:
    """Return the bytes that each operation moves in all, and the factor of its bus bandwidth.

    As in nccl-tests (``doc/PERFORMANCE.md``): the algorithm's bandwidth is bytes over time, of all
    ranks together where each hands in a part; the bus's is that times a factor, which makes it
    comparable with the hardware's. What is unknown is not a number.
    """
    table = communication.operations
    sizes, names = (*communication.ranks, None), (*table.names, "")
    pairs = grouping.groups_of(table.name, table.communicator)
    columns = (table.name[pairs.first].tolist(), table.communicator[pairs.first].tolist())
    of_pair = [(names[name], sizes[number]) for name, number in zip(*columns, strict=True)]
    # None becomes what is not a number.
    times = [ranks if name in members.EACH else 1 for name, ranks in of_pair]
    factor = np.array([members.bus_factor(*pair) for pair in of_pair], float)[pairs.of_row]
    size = np.where(table.bytes >= 0, table.bytes, np.nan) * np.array(times, float)[pairs.of_row]
    return size, factor


@dataclass(frozen=True)
class Total:
    """Operations summed: all, or those of one communicator, name, peer, algorithm and protocol.

    Each sum is over those whose value is known, and None where none is.

    Attributes:
        operations: how many.
        bytes: what the ranks hand in or take.
        sized_operations: number of operations whose bytes are known.
        duration_ns: from start to end; operations of one kernel each have all of its time.
        timed_operations: number of operations whose duration is known.
        busy_ns: time in which any of them runs, at each instant of a GPU once; those whose start
            is unknown are added whole.
        waiting_ns: time before the last member began.
        waiting_operations: number of operations whose waiting is known.
        moving_ns: the rest of the duration.
        moving_operations: number of operations whose moving is known.
        rows: of the operations; none for all.
        communicator: NCCL's hash, or PyTorch's group; None unknown.
        ranks: number of its ranks; None unknown.
        name: of the operations.
        peers: ranks that they went to or came from, or the root.
        algorithm: "" unknown.
        protocol: "" unknown.
        algorithm_gbps: gigabytes a second over the whole time, of the operations whose bytes and
            time are known; None unknown.
        bus_gbps: the same of the bus.
        moving_gbps: the same of the bus, while data moves.
    """

    operations: int
    bytes: int | None
    sized_operations: int
    duration_ns: int | None
    timed_operations: int
    busy_ns: int | None
    waiting_ns: int | None
    waiting_operations: int
    moving_ns: int | None
    moving_operations: int
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    communicator: members.Communicator | None = None
    ranks: int | None = None
    name: str = ""
    peers: tuple[int, ...] = ()
    algorithm: str = ""
    protocol: str = ""
    algorithm_gbps: float | None = None
    bus_gbps: float | None = None
    moving_gbps: float | None = None


def sums_of(table: members.Communications) -> Total:
    """Return the sums over operations."""
    columns = table.bytes, table.duration_ns, table.waiting_ns, table.moving_ns
    known = [column[column >= 0] for column in columns]
    (size, sized), (duration_ns, timed), *parts = (
        (int(column.sum(dtype=object)) if len(column) else None, len(column)) for column in known
    )
    busy_ns = None
    if timed:
        placed = (table.duration_ns >= 0) & (table.start_ns != UNKNOWN)
        rest_ns = table.duration_ns[(table.duration_ns >= 0) & ~placed].sum()
        start_ns, length_ns = table.start_ns[placed], table.duration_ns[placed]
        # The times of two clocks do not compare.
        clocks = grouping.groups_of(table.gpu[placed], table.clock[placed])
        covered_ns = intervals.group_measure(
            clocks.of_row, len(clocks), start_ns, start_ns + length_ns
        )
        busy_ns = int(rest_ns) + int(covered_ns.sum())
    return Total(len(table), size, sized, duration_ns, timed, busy_ns, *parts[0], *parts[1])


def totals_of(communication: Communication) -> tuple[Total, ...]:
    """Return the totals, those that took longest first.

    Sends and receives of one communicator are one total each, whatever their peers.
    """
    table = communication.operations
    sizes, factors = sizes_of(communication)
    names = (*table.names, "")
    groups = grouping.groups_of(table.communicator, table.name, table.algorithm, table.protocol)
    order = np.argsort(groups.of_row, kind="stable")
    bounds = np.searchsorted(groups.of_row[order], np.arange(len(groups) + 1)).tolist()
    totals = []
    for low, high in pairwise(bounds):
        rows = order[low:high]
        of_total = table.take(rows)
        number, first = int(table.communicator[rows[0]]), rows[0]
        other = np.where(of_total.peer != NONE, of_total.peer, of_total.root)
        whole, moving = (
            _over(sizes[rows], length_ns)
            for length_ns in (of_total.duration_ns, of_total.moving_ns)
        )
        totals.append(
            replace(
                sums_of(of_total),
                rows=rows,
                communicator=None if number == NONE else table.communicators[number],
                ranks=None if number == NONE else communication.ranks[number],
                name=names[table.name[first]],
                peers=tuple(grouping.distinct(other[other != NONE]).tolist()),
                algorithm=names[table.algorithm[first]],
                protocol=names[table.protocol[first]],
                algorithm_gbps=_known(whole),
                bus_gbps=_known(whole * factors[first]),
                moving_gbps=_known(moving * factors[first]),
            )
        )
    totals.sort(
        key=lambda total: (
            -(total.duration_ns or 0),
            members.communicator_text(total.communicator),
            total.name,
            total.algorithm,
            total.protocol,
        )
    )
    return tuple(totals)


def _over(size: Floats, length_ns: Ints) -> float:
    """Return bytes a nanosecond over the operations with known size and time."""
    known = ~np.isnan(size) & (length_ns > 0)
    return float(size[known].sum() / length_ns[known].sum(dtype=float)) if known.any() else np.nan


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# JSON and CSV.


SCHEMA = "bubbleviz.nccl/1"
COLUMNS = (
    *("file", "kind", "pid", "communicator", "rank", "name", "peer", "root", "sequence", "count"),
    *("datatype", "bytes", "algorithm", "protocol", "channels", "clock", "start_ns", "end_ns"),
    *("duration_ns", "timing", "waiting_ns", "moving_ns", "awaited_ns", "split", "shared"),
    *("run_rank", "progress"),
    *("algorithm_gbps", "bus_gbps", "moving_gbps"),
)
#: Of totals, in the JSON.
_SUMS = (
    *("operations", "bytes", "sized_operations", "duration_ns", "timed_operations", "busy_ns"),
    *("waiting_ns", "waiting_operations", "moving_ns", "moving_operations"),
)
_TOTAL = ("ranks", "name", "peers", "algorithm", "protocol", *_SUMS, *COLUMNS[-3:])


def as_json(communication: Communication) -> str:
    """Return totals, clocks, files and limitations as JSON; null for what is unknown."""
    document = {
        "files": [
            {"path": path, "format": kind, "operations": count, "events": dict(events)}
            for (path, kind, events), count in zip(
                communication.files, communication.counts, strict=True
            )
        ],
        "clocks": [
            {**asdict(clock), "aligned_by": clock.aligned_by.value}
            for clock in communication.clocks
        ],
        "communicators": [_communicator(*own) for own in communication.communicators],
        "window": communication.window,
        **_values(sums_of(communication.operations), _SUMS),
        "missing_ranks": hangs.culprits(communication.faults),
        "faults": [
            {**asdict(fault), "communicator": members.communicator_text(fault.communicator)}
            for fault in communication.faults
        ],
        "waited_for": [
            dict(zip(("rank", "operations", "awaited_ns"), late, strict=True))
            for late in hangs.late_ranks(communication.operations)
        ],
        "totals": [
            {
                "communicator": members.communicator_text(total.communicator) or None,
                **_values(total, _TOTAL),
            }
            for total in totals_of(communication)
        ],
        "definitions": list(DEFINITIONS),
        "restrictions": [restriction.entry for restriction in communication.restrictions],
        "limitations": [limitation.entry for limitation in communication.limitations],
    }
    return document_text(SCHEMA, document)


def _communicator(communicator: members.Communicator, ranks: int | None) -> dict[str, object]:
    known: dict[str, object] = {"id": members.communicator_text(communicator), "ranks": ranks}
    if isinstance(communicator, int):
        return known
    group = {
        "name": communicator.name,
        "description": communicator.description or None,
        "members": list(communicator.ranks) or None,
    }
    return {**known, "group": group}


def _values(total: Total, names: Sequence[str]) -> dict[str, object]:
    values = {name: getattr(total, name) for name in names}
    return {name: None if value == "" else value for name, value in values.items()}


def csv_of_operations(communication: Communication) -> str:
    """Return communication as CSV, one row per operation; empty cells for what is unknown.

    Times are on the report's clock; on that of ``clock`` where it names one.
    """
    table = communication.operations
    names = [inert(name) for name in table.names]
    kinds = [kind.name.lower().replace("_", " ") for kind in OperationKind]
    kinds[OperationKind.POINT_TO_POINT] = "point-to-point"
    #: Texts by the values of columns; others hold numbers.
    texts = {
        "file": [inert(path) for path, *_ in communication.files],
        "kind": kinds,
        "communicator": [inert(members.communicator_text(value)) for value in table.communicators],
        "clock": ["" if clock.aligned else inert(clock.label) for clock in communication.clocks],
        "progress": list(PROGRESS),
        "timing": [timing.name.lower() for timing in members.Timing],
        "split": ["", *(split.name.lower() for split in members.Split if split)],
        **dict.fromkeys(("name", "datatype", "algorithm", "protocol"), names),
    }
    columns: list[list[object]] = []
    for name in COLUMNS[:-3]:
        values = getattr(table, "source" if name == "file" else name).tolist()
        none, text = UNKNOWN if name in {"start_ns", "end_ns"} else NONE, texts.get(name)
        columns.append(["" if v == none else text[v] if text else v for v in values])
    size, factor = sizes_of(communication)
    whole, moving = (
        size / np.where(length_ns > 0, length_ns, np.nan)
        for length_ns in (table.duration_ns, table.moving_ns)
    )
    columns += (
        ["" if np.isnan(value) else round(value, 6) for value in column.tolist()]
        for column in (whole, whole * factor, moving * factor)
    )
    header = (*COLUMNS, *(f"{name}_ns" for name in STATES))
    return csv_text(header, zip(*columns, *table.state_ns.T.tolist(), strict=True))


# Text: files, totals, and clocks.


#: Files and rows of one screen.
_FILES, _FEW = 4, 10
#: Columns that go first where a terminal is narrow.
_GIVING_WAY = (
    *("moving GB/s", "alg GB/s", "algorithm", "n", "moving", "peers", "count", "waiting"),
    *("bus GB/s", "busy", "MB", "communicator", "ms"),
)
#: Rows of a table, and characters of a name in it.
_ROWS, _NAME = 40, 40
#: How clocks are aligned, in words.
_ALIGNMENTS = {
    members.Alignment.REFERENCE: "the report's clock",
    members.Alignment.KERNELS: "matched with kernels",
    members.Alignment.UTC: "UTC of its host",
    members.Alignment.OPERATIONS: "ends of common operations",
    members.Alignment.UNALIGNED: "not aligned",
}


def sections(communication: Communication) -> Iterator[blocks.Block]:
    """Yield what to print."""
    yield blocks.Sentence(summary(communication))
    yield from who_is_waited_for(communication, _ROWS)
    yield _table(communication, _ROWS)
    yield from _clock_table(communication.clocks)
    yield blocks.Sentence("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def first_screen(communication: Communication) -> Iterator[blocks.Block]:
    """Yield what fits one screen."""
    *files, sums = summary(communication).splitlines()
    more = [f"and {len(files) - _FILES:,} more files"] if len(files) > _FILES else []
    yield blocks.HangingLines([("", line) for line in (*files[:_FILES], *more, sums)])
    yield from who_is_waited_for(communication, _FILES)
    yield _table(communication, _FEW)
    yield blocks.Sentence(
        "\nMore: -v (all rows, clocks, definitions); -o operations.csv", style="dim"
    )


def who_is_waited_for(communication: Communication, most: int) -> Iterator[blocks.Block]:
    """Yield who hangs, by the operations at which the run stands, and who was late."""
    stages = hangs.stages_of(communication.operations.communicators)

    def named(ranks: Sequence[int]) -> str:
        of_stages = sorted({stages.get(rank, NONE) for rank in ranks})
        text = f"rank{'s' * (len(ranks) > 1)} {collectives.stretches(ranks)}"
        word = f" (stage{'s' * (len(of_stages) > 1)} {collectives.stretches(of_stages)})"
        return text if NONE in of_stages else text + word

    if lines := [*_hang_lines(communication.faults, named)][: 2 * most]:
        yield blocks.HangingLines([("", ""), *lines])
    late = hangs.late_ranks(communication.operations)
    headers = ("rank", "stage", "operations", "others waited ms")
    cells = (
        (str(rank), str(stages.get(rank, "-")), f"{count:,}", blocks.milliseconds(awaited_ns))
        for rank, count, awaited_ns in late[:most]
    )
    if late:
        rows = [dict(zip(headers, row, strict=True)) for row in cells]
        yield blocks.Table("Waited for, longest first", rows, omitted=len(late) - most)


def _hang_lines(
    faults: Sequence[hangs.Fault], named: Callable[[Sequence[int]], str]
) -> Iterator[tuple[str, str]]:
    """Yield what holds up the run, operations that are not finished, and calls that differ."""

    def operation(fault: hangs.Fault) -> str:
        communicator = blocks.short_name(members.communicator_text(fault.communicator))
        return f"{blocks.short_name(fault.name)} {fault.sequence} of {communicator}"

    waits = [fault for fault in faults if not fault.calls]
    if missing := hangs.culprits(waits):
        yield "Hang: ", f"all wait for {named(missing)}; see what ran there then (py-spy dump)"
    elif any(fault.undumped for fault in waits):
        yield "Hang: ", "the missing may be those without a dump; give the dumps of all ranks"
    elif any(fault.missing for fault in waits):
        text = "each rank that is missing in an operation waits in another; compare their order"
        yield "Deadlock: ", text
    elif waits:
        text = "all have entered what is unfinished; if the job hangs, look at the network"
        yield "Unfinished: ", f"{text} (NCCL_DEBUG=INFO)"
    for fault in faults:
        if calls := [f"{named(ranks)}: {call}" for call, ranks in fault.calls[:_FILES]]:
            yield "Mismatch: ", f"{operation(fault)} differs: {'; '.join(calls)}"
    for fault in waits:
        lacks = ((fault.missing, "missing"), (fault.undumped, "without a dump"))
        texts = (f"{named(ranks)} {how}" for ranks, how in lacks if ranks)
        yield "  - ", "; ".join((f"{operation(fault)}: {named(fault.entered)} waiting", *texts))


def summary(communication: Communication) -> str:
    """Return the files and the sums, in lines."""
    lines = []
    files = zip(communication.files, communication.counts, strict=True)
    for (path, kind, categories), operations in files:
        events = sum(count for _, count in categories)
        of = f" of {counted(events, 'event')}" if events else ""
        name = one_line(path, None)
        lines.append(f"{name}: {kind}, {counted(operations, 'operation')}{of}\n")
    sums = sums_of(communication.operations)
    window = "" if communication.window is None else f"{communication.window} alone: "
    named = communication.communicators
    of_communicators = (
        counted(len(named), "communicator") if named else "communicators of unknown names"
    )
    cells = _sum_cells(sums)
    size = "size unknown" if sums.bytes is None else f"{cells['MB']} MB"
    time = "times unknown"
    if sums.duration_ns is not None:
        time = f"{cells['ms']} ms in all, GPUs busy with them for {cells['busy']} ms"
    of_all = counted(sums.operations, "operation")
    marks = "".join(f", {restriction.text}" for restriction in communication.restrictions)
    return "".join(lines) + f"{window}{of_all} in {of_communicators}, {size}; {time}{marks}\n"


def _table(communication: Communication, most: int) -> blocks.Table:
    """Return the table of totals, those that are not listed in one row, and all of them in one."""
    totals, operations = totals_of(communication), communication.operations
    rows = []
    for total in totals[:most]:
        algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
        rows.append(
            {
                "communicator": blocks.short_name(members.communicator_text(total.communicator))
                or "-",
                "n": "-" if total.ranks is None else f"{total.ranks:,}",
                "operation": blocks.short_name(total.name),
                "peers": blocks.shortened(collectives.stretches(total.peers), _NAME // 2) or "-",
                "algorithm": blocks.shortened(one_line(algorithm, None), _NAME // 2) or "-",
                **_sum_cells(total),
                "alg GB/s": _rate(total.algorithm_gbps),
                "bus GB/s": _rate(total.bus_gbps),
                "moving GB/s": _rate(total.moving_gbps),
            }
        )
    if rest := totals[most:]:
        summed = sums_of(operations.take(np.concatenate([total.rows for total in rest])))
        words = f"{counted(len(rest), 'more row')}, summed"
        rows.append({"communicator": words, **_sum_cells(summed)})
    if len(totals) > 1:
        rows += [{}, {"communicator": "all", **_sum_cells(sums_of(operations))}]
    left = ("communicator", "operation", "peers", "algorithm")
    return blocks.Table("Communication, longest first", rows, left, giving_way=_GIVING_WAY)


def _rate(value: float | None, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:,.3f}"


def _sum_cells(sums: Total) -> dict[str, str]:
    """Return count, MB, ms, busy, waiting and moving; ``(k)`` where a sum is over k operations."""

    def partial(text: str, known: int) -> str:
        return text if known in {0, sums.operations} else f"{text} ({known:,})"

    return {
        "count": f"{sums.operations:,}",
        "MB": partial(
            _rate(None if sums.bytes is None else sums.bytes / 1e6), sums.sized_operations
        ),
        "ms": partial(blocks.milliseconds(sums.duration_ns), sums.timed_operations),
        "busy": partial(blocks.milliseconds(sums.busy_ns), sums.timed_operations),
        "waiting": partial(blocks.milliseconds(sums.waiting_ns), sums.waiting_operations),
        "moving": partial(blocks.milliseconds(sums.moving_ns), sums.moving_operations),
    }


def _clock_table(clocks: Sequence[members.RecordingClock]) -> Iterator[blocks.Table]:
    if len(clocks) < 2 and all(clock.aligned_by is members.Alignment.REFERENCE for clock in clocks):
        return
    rows = [
        {
            "clock": blocks.short_name(clock.label),
            "aligned by": _ALIGNMENTS[clock.aligned_by],
            "matched": f"{clock.matched:,}" if clock.of else "-",
            "of": f"{clock.of:,}" if clock.of else "-",
            "median us": _rate(clock.median_ns, 1e3),
            "largest us": _rate(clock.largest_ns, 1e3),
            "drift ppm": _rate(clock.drift_ppm),
        }
        for clock in clocks[:_ROWS]
    ]
    title = "Clocks, with the distances between matched pairs"
    yield blocks.Table(title, rows, ("clock", "aligned by"), omitted=len(clocks) - _ROWS)
