"""The text that ``bubbleviz nccl`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl import hangs
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import Alignment, RecordingClock, format_communicator
from bubbleviz.analyses.nccl.outputs import DEFINITIONS
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.analyses.nccl.totals import Total, find_totals, sum_operations
from bubbleviz.model import collectives
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render import document as blocks
from bubbleviz.render.text.late_ranks import list_late_ranks, list_late_sentence

#: Maximum number of files, and of table rows, on the first screen.
_FILES, _FEW = 4, 10
#: Columns to drop in a narrow terminal, in this order.
_DROP_ORDER = (
    *("moving GB/s", "alg GB/s", "algorithm", "n", "moving", "peers", "count", "waiting"),
    *("bus GB/s", "busy", "MB", "communicator", "ms"),
)
#: Maximum number of rows in a table, and of characters in a name.
_ROWS, _NAME = 40, 40
#: How clocks are aligned, in words.
_ALIGNMENTS = {
    Alignment.REFERENCE: "the report's clock",
    Alignment.KERNELS: "matched with kernels",
    Alignment.UTC: "host's UTC",
    Alignment.OPERATIONS: "ends of shared operations",
    Alignment.UNALIGNED: "not aligned",
}


def sections(communication: Communication) -> Iterator[blocks.Block]:
    """Yield all blocks of the detailed report."""
    yield from list_late_sentence(communication.late_sentence)
    yield blocks.Sentence(summary(communication))
    yield from list_late_and_hanging(communication, _ROWS)
    yield from list_late_ranks(communication.lateness, communication.gpu_names.__getitem__)
    yield make_total_table(communication, _ROWS)
    yield from _make_clock_table(communication.clocks)
    yield blocks.Sentence("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def first_screen(communication: Communication) -> Iterator[blocks.Block]:
    """Yield a shortened report that fits on one screen."""
    yield from list_late_sentence(communication.late_sentence)
    *files, sums = summary(communication).splitlines()
    omitted_files = [f"and {len(files) - _FILES:,} more files"] if len(files) > _FILES else []
    yield blocks.HangingLines([("", line) for line in (*files[:_FILES], *omitted_files, sums)])
    yield from list_late_and_hanging(communication, _FILES)
    yield make_total_table(communication, _FEW)
    yield blocks.Sentence(
        "\nMore: -v (all rows, clocks, definitions); -o operations.csv", style="dim"
    )


def list_late_and_hanging(communication: Communication, max_rows: int) -> Iterator[blocks.Block]:
    """Yield the ranks that block the run, and a table of the ranks that others waited for.

    Args:
        communication: The measured operations.
        max_rows: Maximum number of table rows. At most twice as many lines describe hangs.
    """
    stages = hangs.find_stages(communication.operations.communicators)

    def describe_ranks(ranks: Sequence[int]) -> str:
        of_stages = sorted({stages.get(rank, NONE) for rank in ranks})
        text = f"rank{'s' * (len(ranks) > 1)} {collectives.format_number_ranges(ranks)}"
        word = f" (stage{'s' * (len(of_stages) > 1)} {collectives.format_number_ranges(of_stages)})"
        return text if NONE in of_stages else text + word

    if lines := [*_list_hang_lines(communication.faults, describe_ranks)][: 2 * max_rows]:
        yield blocks.HangingLines([("", ""), *lines])
    late_ranks = hangs.list_late_ranks(communication.operations, communication.paths_of_processes)
    if late_ranks:
        header = "rank" if all(entry.file is None for entry in late_ranks) else "file"
        rows = [
            {
                header: _name_late_rank(entry),
                "stage": str(stages.get(NONE if entry.rank is None else entry.rank, "-")),
                "operations": f"{entry.operations:,}",
                "others waited ms": blocks.format_ms(entry.awaited_ns),
            }
            for entry in late_ranks[:max_rows]
        ]
        yield blocks.Table(
            "Ranks that others waited for, longest first",
            rows,
            ("file",),
            n_omitted=len(late_ranks) - max_rows,
        )


def _name_late_rank(entry: LateRank) -> str:
    """Return the number of a late rank, or the name of its file if the number is unknown."""
    if entry.file is None:
        return str(entry.rank)
    return blocks.truncate_middle(to_one_line(Path(entry.file).name, None), _NAME)


def _list_hang_lines(
    faults: Sequence[hangs.Fault], describe_ranks: Callable[[Sequence[int]], str]
) -> Iterator[tuple[str, str]]:
    """Yield (label, text) lines about hangs, unfinished operations and mismatched calls.

    If operations are unfinished, the first line names the first cause that applies:

    - some ranks are late, and all other ranks wait for them
    - dumps are missing
    - there is a deadlock
    - no specific cause, because all ranks have entered the operations

    It is followed by one line for each mismatched call and each unfinished operation.

    Args:
        faults: Operations at which the run hangs, or that were called differently.
        describe_ranks: Function that describes ranks in words.
    """

    def format_operation(fault: hangs.Fault) -> str:
        communicator = blocks.truncate_name(format_communicator(fault.communicator))
        return f"{blocks.truncate_name(fault.name)} {fault.sequence} of {communicator}"

    waits = [fault for fault in faults if not fault.calls]
    if missing := hangs.find_culprits(waits):
        yield (
            "Hang: ",
            f"all wait for {describe_ranks(missing)}; "
            "check what ran there at that time (py-spy dump)",
        )
    elif any(fault.undumped for fault in waits):
        yield (
            "Hang: ",
            "the cause may be a rank without a dump; pass the dumps of all ranks",
        )
    elif any(fault.missing for fault in waits):
        yield (
            "Deadlock: ",
            "each rank missing from one operation waits in another; compare the order of the calls",
        )
    elif waits:
        text = "all ranks have entered the unfinished operations; if the job hangs, check the"
        yield "Unfinished: ", f"{text} network (NCCL_DEBUG=INFO)"
    for fault in faults:
        if calls := [f"{describe_ranks(ranks)}: {call}" for call, ranks in fault.calls[:_FILES]]:
            yield (
                "Mismatch: ",
                f"ranks call {format_operation(fault)} differently: {'; '.join(calls)}",
            )
    for fault in waits:
        lacks = ((fault.missing, "missing"), (fault.undumped, "without a dump"))
        texts = (f"{describe_ranks(ranks)} {how}" for ranks, how in lacks if ranks)
        yield (
            "  - ",
            "; ".join(
                (f"{format_operation(fault)}: {describe_ranks(fault.entered)} waiting", *texts)
            ),
        )


def summary(communication: Communication) -> str:
    """Return one line per file, followed by a line with the sums over all operations.

    Each line ends in a newline.
    """
    sums = sum_operations(communication.operations)
    window = "" if communication.window is None else f"{communication.window} only: "
    communicators = communication.communicators
    of_communicators = (
        format_count(len(communicators), "communicator")
        if communicators
        else "unknown communicators"
    )
    cells = _format_sums(sums)
    size = "size unknown" if sums.bytes is None else f"{cells['MB']} MB"
    time = "times unknown"
    if sums.duration_ns is not None:
        time = f"{cells['ms']} ms in total, keeping GPUs busy for {cells['busy']} ms"
    of_all = format_count(sums.operations, "operation")
    marks = "".join(f", {restriction.text}" for restriction in communication.restrictions)
    lines = "".join(_list_file_lines(communication))
    return f"{lines}{window}{of_all} in {of_communicators}, {size}; {time}{marks}\n"


def _list_file_lines(communication: Communication) -> Iterator[str]:
    """Yield a line per file with its path, format and number of operations, ending in a newline."""
    files = zip(communication.files, communication.counts, strict=True)
    for (path, kind, categories), n_operations in files:
        n_events = sum(count for _, count in categories)
        of = f" of {format_count(n_events, 'event')}" if n_events else ""
        operations = format_count(n_operations, "operation")
        yield f"{to_one_line(path, None)}: {kind}, {operations}{of}\n"


def make_total_table(communication: Communication, max_rows: int) -> blocks.Table:
    """Make the table of totals.

    Totals beyond the first ``max_rows`` are added up in one row. If there are several totals, an
    empty row and the sum over all operations follow.
    """
    totals, operations = find_totals(communication), communication.operations
    rows = []
    for total in totals[:max_rows]:
        algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
        rows.append(
            {
                "communicator": blocks.truncate_name(format_communicator(total.communicator))
                or "-",
                "n": "-" if total.ranks is None else f"{total.ranks:,}",
                "operation": blocks.truncate_name(total.name),
                "peers": blocks.truncate_middle(
                    collectives.format_number_ranges(total.peers), _NAME // 2
                )
                or "-",
                "algorithm": blocks.truncate_middle(to_one_line(algorithm, None), _NAME // 2)
                or "-",
                **_format_sums(total),
                "alg GB/s": _format_rate(total.algorithm_gbps),
                "bus GB/s": _format_rate(total.bus_gbps),
                "moving GB/s": _format_rate(total.moving_gbps),
            }
        )
    if rest := totals[max_rows:]:
        summed = sum_operations(operations.take(np.concatenate([total.rows for total in rest])))
        words = f"{format_count(len(rest), 'more row')}, summed"
        rows.append({"communicator": words, **_format_sums(summed)})
    if len(totals) > 1:
        rows += [{}, {"communicator": "all", **_format_sums(sum_operations(operations))}]
    left = ("communicator", "operation", "peers", "algorithm")
    return blocks.Table("Communication, longest first", rows, left, drop_order=_DROP_ORDER)


def _format_rate(value: float | None, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:,.3f}"


def _format_sums(sums: Total) -> dict[str, str]:
    """Return the table cells for a total: count, MB, ms, busy, waiting and moving.

    If a value is known for only k of the operations, its cell ends in ``(k)``.
    """

    def format_with_count(text: str, n_known: int) -> str:
        return text if n_known in {0, sums.operations} else f"{text} ({n_known:,})"

    return {
        "count": f"{sums.operations:,}",
        "MB": format_with_count(
            _format_rate(None if sums.bytes is None else sums.bytes / 1e6), sums.sized_operations
        ),
        "ms": format_with_count(blocks.format_ms(sums.duration_ns), sums.timed_operations),
        "busy": format_with_count(blocks.format_ms(sums.busy_ns), sums.timed_operations),
        "waiting": format_with_count(blocks.format_ms(sums.waiting_ns), sums.waiting_operations),
        "moving": format_with_count(blocks.format_ms(sums.moving_ns), sums.moving_operations),
    }


def _make_clock_table(clocks: Sequence[RecordingClock]) -> Iterator[blocks.Table]:
    """Yield a table of clocks and their alignment, unless the reference is the only clock."""
    if len(clocks) < 2 and all(clock.aligned_by is Alignment.REFERENCE for clock in clocks):
        return
    rows = [
        {
            "clock": blocks.truncate_name(clock.label),
            "aligned by": _ALIGNMENTS[clock.aligned_by],
            "matched": f"{clock.matched:,}" if clock.of else "-",
            "of": f"{clock.of:,}" if clock.of else "-",
            "median us": _format_rate(clock.median_ns, 1e3),
            "largest us": _format_rate(clock.largest_ns, 1e3),
            "drift ppm": _format_rate(clock.drift_ppm),
        }
        for clock in clocks[:_ROWS]
    ]
    title = "Clocks, with the time differences of matched pairs after alignment"
    yield blocks.Table(title, rows, ("clock", "aligned by"), n_omitted=len(clocks) - _ROWS)
