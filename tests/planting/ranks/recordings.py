"""Planted runs as ``bubbleviz.annotate`` records them: one file per rank, encoded as columns."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.annotate.part_files import text_records
from bubbleviz.annotate.ranges import name_of
from tests.planting.ranks.runs import SERVER, Ints, PlantedRun

#: UTC and the monotonic clock of a host when the first true nanosecond passes.
_UTC_NS, _UPTIME_NS = 1_760_000_000_000_000_000, 5_000_000_000_000
#: The clocks of two neighbouring hosts were switched on this long after each other.
_LATER_NS = 777_000_000
_RECORD = np.dtype([("head", "<u8"), ("times", "<i8", 4)])


def write_recordings(run: PlantedRun, folder: Path, clock_errors_ns: Ints | None) -> list[Path]:
    """Write a run and return the files, by rank.

    Args:
        run: the run.
        folder: of the files, which is made.
        clock_errors_ns: by which the UTC of each server is off; None for not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recipe = run.recipe
    start, end = run.by_rank(run.start_ns), run.by_rank(run.end_ns)
    steps = run.by_rank(run.step_start_ns), run.by_rank(run.step_end_ns)
    files = []
    for rank in range(recipe.ranks):
        stage, server = rank // recipe.pipelines, rank // SERVER
        uptime = _UPTIME_NS + _LATER_NS * server
        error = 0 if clock_errors_ns is None else int(clock_errors_ns[server])
        data = [_header(rank, recipe.ranks, f"node{server:05}", uptime, error)]
        names = _names(stage, recipe.microbatches)
        for k in range(recipe.iterations):
            order = run.order[stage]
            begins = np.append(start[rank, k].ravel()[order], steps[0][rank, k]) + uptime
            ends = np.append(end[rank, k].ravel()[order], steps[1][rank, k]) + uptime
            numbers = np.append(order, 2 * recipe.microbatches)
            texts = names if k == 0 else b""
            data.append(_block(texts, numbers, begins, ends, k, _UTC_NS - uptime + error))
        files.append(folder / f"rank-{rank:05}.bvrec")
        files[-1].write_bytes(b"".join(data))
    return files


def _header(rank: int, ranks: int, host: str, uptime_ns: int, error_ns: int) -> bytes:
    values = (
        layout.MAGIC, layout.VERSION, layout.RECORD_BYTES, rank, ranks, 1000 + rank, 0,
        layout.DEVICE_HOST, 0, 1, uptime_ns, _UTC_NS + error_ns, uptime_ns, 1_000,
    )  # fmt: skip
    checked = layout.HEADER.pack(*values, 0, 0)[: layout.HEADER_CHECKED]
    texts = text_records(layout.TEXT_HOST, 0, host)
    return layout.HEADER.pack(*values, zlib.crc32(checked), 0) + texts


def _names(stage: int, microbatches: int) -> bytes:
    names = [name_of(p, m, None, stage) for p in ("F", "BW") for m in range(microbatches)]
    names.append(name_of("Optimizer"))
    return b"".join(text_records(layout.TEXT_NAME, n, name) for n, name in enumerate(names))


def _block(
    texts: bytes, number: Ints, start_ns: Ints, end_ns: Ints, iteration: int, utc_less_ns: int
) -> bytes:
    """Return the block of one iteration; ``utc_less_ns`` is UTC less the monotonic clock."""
    rows = np.zeros(len(number), _RECORD)
    # Kind, flags and thread are 0 but for the kind; the number of the name stands above them.
    rows["head"] = layout.KIND_OPERATION | (number.astype(np.uint64) << np.uint64(32))
    rows["times"] = layout.NONE
    rows["times"][:, 0], rows["times"][:, 1] = start_ns, end_ns
    first, last = int(start_ns[0]), int(end_ns[-1])
    clock = layout.CLOCK.pack(layout.KIND_CLOCK, 1_000, last, last + utc_less_ns, -1, 0)
    records = len(texts) // layout.RECORD_BYTES + len(number) + 2
    values = (layout.KIND_END, layout.NAMED, 0, iteration, first, last, records, 0)
    block = texts + rows.tobytes() + clock + layout.END.pack(*values)
    crc = zlib.crc32(block).to_bytes(4, "little")
    at = len(block) - layout.RECORD_BYTES
    return block[: at + layout.END_CRC.start] + crc + block[at + layout.END_CRC.stop :]
