"""Text on communication: what ``bubbleviz nccl`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bubbleviz.analyses.nccl import hangs
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import Alignment, RecordingClock, communicator_text
from bubbleviz.analyses.nccl.outputs import DEFINITIONS
from bubbleviz.analyses.nccl.totals import Total, find_totals, sum_operations
from bubbleviz.model import collectives
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render import document as blocks

#: Files and rows of one screen.
_FILES, _FEW = 4, 10
#: Columns that go first where a terminal is narrow.
_DROP_ORDER = (
    *("moving GB/s", "alg GB/s", "algorithm", "n", "moving", "peers", "count", "waiting"),
    *("bus GB/s", "busy", "MB", "communicator", "ms"),
)
#: Rows of a table, and characters of a name in it.
_ROWS, _NAME = 40, 40
#: How clocks are aligned, in words.
_ALIGNMENTS = {
    Alignment.REFERENCE: "the report's clock",
    Alignment.KERNELS: "matched with kernels",
    Alignment.UTC: "UTC of its host",
    Alignment.OPERATIONS: "ends of common operations",
    Alignment.UNALIGNED: "not aligned",
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
        text = f"rank{'s' * (len(ranks) > 1)} {collectives.format_number_ranges(ranks)}"
        word = f" (stage{'s' * (len(of_stages) > 1)} {collectives.format_number_ranges(of_stages)})"
        return text if NONE in of_stages else text + word

    if lines := [*_hang_lines(communication.faults, named)][: 2 * most]:
        yield blocks.HangingLines([("", ""), *lines])
    late = hangs.late_ranks(communication.operations)
    if late:
        rows = [
            {
                "rank": str(entry.rank),
                "stage": str(stages.get(entry.rank, "-")),
                "operations": f"{entry.operations:,}",
                "others waited ms": blocks.format_ms(entry.awaited_ns),
            }
            for entry in late[:most]
        ]
        yield blocks.Table("Waited for, longest first", rows, n_omitted=len(late) - most)


def _hang_lines(
    faults: Sequence[hangs.Fault], named: Callable[[Sequence[int]], str]
) -> Iterator[tuple[str, str]]:
    """Yield what holds up the run, operations that are not finished, and calls that differ."""

    def operation(fault: hangs.Fault) -> str:
        communicator = blocks.truncate_name(communicator_text(fault.communicator))
        return f"{blocks.truncate_name(fault.name)} {fault.sequence} of {communicator}"

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
        of = f" of {format_count(events, 'event')}" if events else ""
        name = to_one_line(path, None)
        lines.append(f"{name}: {kind}, {format_count(operations, 'operation')}{of}\n")
    sums = sum_operations(communication.operations)
    window = "" if communication.window is None else f"{communication.window} alone: "
    named = communication.communicators
    of_communicators = (
        format_count(len(named), "communicator") if named else "communicators of unknown names"
    )
    cells = _sum_cells(sums)
    size = "size unknown" if sums.bytes is None else f"{cells['MB']} MB"
    time = "times unknown"
    if sums.duration_ns is not None:
        time = f"{cells['ms']} ms in all, GPUs busy with them for {cells['busy']} ms"
    of_all = format_count(sums.operations, "operation")
    marks = "".join(f", {restriction.text}" for restriction in communication.restrictions)
    return "".join(lines) + f"{window}{of_all} in {of_communicators}, {size}; {time}{marks}\n"


def _table(communication: Communication, most: int) -> blocks.Table:
    """Return the table of totals, those that are not listed in one row, and all of them in one."""
    totals, operations = find_totals(communication), communication.operations
    rows = []
    for total in totals[:most]:
        algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
        rows.append(
            {
                "communicator": blocks.truncate_name(communicator_text(total.communicator)) or "-",
                "n": "-" if total.ranks is None else f"{total.ranks:,}",
                "operation": blocks.truncate_name(total.name),
                "peers": blocks.truncate_middle(
                    collectives.format_number_ranges(total.peers), _NAME // 2
                )
                or "-",
                "algorithm": blocks.truncate_middle(to_one_line(algorithm, None), _NAME // 2)
                or "-",
                **_sum_cells(total),
                "alg GB/s": _rate(total.algorithm_gbps),
                "bus GB/s": _rate(total.bus_gbps),
                "moving GB/s": _rate(total.moving_gbps),
            }
        )
    if rest := totals[most:]:
        summed = sum_operations(operations.take(np.concatenate([total.rows for total in rest])))
        words = f"{format_count(len(rest), 'more row')}, summed"
        rows.append({"communicator": words, **_sum_cells(summed)})
    if len(totals) > 1:
        rows += [{}, {"communicator": "all", **_sum_cells(sum_operations(operations))}]
    left = ("communicator", "operation", "peers", "algorithm")
    return blocks.Table("Communication, longest first", rows, left, drop_order=_DROP_ORDER)


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
        "ms": partial(blocks.format_ms(sums.duration_ns), sums.timed_operations),
        "busy": partial(blocks.format_ms(sums.busy_ns), sums.timed_operations),
        "waiting": partial(blocks.format_ms(sums.waiting_ns), sums.waiting_operations),
        "moving": partial(blocks.format_ms(sums.moving_ns), sums.moving_operations),
    }


def _clock_table(clocks: Sequence[RecordingClock]) -> Iterator[blocks.Table]:
    if len(clocks) < 2 and all(clock.aligned_by is Alignment.REFERENCE for clock in clocks):
        return
    rows = [
        {
            "clock": blocks.truncate_name(clock.label),
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
    yield blocks.Table(title, rows, ("clock", "aligned by"), n_omitted=len(clocks) - _ROWS)
