"""Write planted runs as recordings of ``bubbleviz.annotate``, one file per rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.annotate.part_files import encode_line
from bubbleviz.annotate.ranges import format_name
from bubbleviz.recording_layout import SCHEMA, SUFFIX
from tests.planting.ranks.runs import SERVER, Ints, PlantedRun

#: UTC and the monotonic clock of a host at global time 0, in ns.
_UTC_NS, _UPTIME_NS = 1_760_000_000_000_000_000, 5_000_000_000_000
#: Difference between the monotonic clocks of adjacent hosts, in ns.
_LATER_NS = 777_000_000


def write_recordings(run: PlantedRun, folder: Path, clock_errors_ns: Ints | None) -> list[Path]:
    """Write a run, and return one file per rank.

    Args:
        run: Planted run.
        folder: Output directory, which is created.
        clock_errors_ns: Error of each server's UTC clock, or None for correct clocks.
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
        utc_less_ns = _UTC_NS - uptime + error
        lines = [_make_header(rank, recipe.ranks, f"node{server:05}", uptime, utc_less_ns)]
        order = np.append(run.order[stage], 2 * recipe.microbatches)
        for k in range(recipe.iterations):
            begin_ns = np.append(start[rank, k].ravel()[order[:-1]], steps[0][rank, k]) + uptime
            end_ns = np.append(end[rank, k].ravel()[order[:-1]], steps[1][rank, k]) + uptime
            fields = _make_iteration(order, begin_ns, end_ns, utc_less_ns)
            if k == 0:
                fields["names"] = dict(enumerate(_list_names(stage, recipe.microbatches)))
            lines.append({"iteration": k, **fields})
        files.append(folder / f"rank-{rank:05}{SUFFIX}")
        files[-1].write_bytes(b"".join(map(encode_line, lines)))
    return files


def _make_clock(monotonic_ns: int, utc_less_ns: int) -> dict[str, int]:
    """Return both clocks of a host. ``utc_less_ns`` is UTC minus the monotonic clock."""
    utc_ns = monotonic_ns + utc_less_ns
    return {"monotonic_ns": monotonic_ns, "utc_ns": utc_ns, "half_width_ns": 1_000}


def _make_header(
    rank: int, ranks: int, host: str, uptime_ns: int, utc_less_ns: int
) -> dict[str, Any]:
    """Return the header of a rank's recording that began at global time 0.

    Args:
        rank: Number of the rank.
        ranks: Number of ranks.
        host: Hostname.
        uptime_ns: Monotonic clock of the host at global time 0.
        utc_less_ns: UTC minus the monotonic clock.
    """
    return {
        "schema": SCHEMA,
        "rank": rank,
        "world_size": ranks,
        "pid": 1000 + rank,
        "host": host,
        "began_ns": uptime_ns,
        "clock": _make_clock(uptime_ns, utc_less_ns),
    }


def _list_names(stage: int, microbatches: int) -> list[str]:
    names = [format_name(p, m, None, stage) for p in ("F", "BW") for m in range(microbatches)]
    return [*names, format_name("Optimizer")]


def _make_iteration(
    name_ids: Ints, start_ns: Ints, end_ns: Ints, utc_less_ns: int
) -> dict[str, Any]:
    """Return the line of an iteration, without its number.

    Args:
        name_ids: Name ids of the operations, sorted by start.
        start_ns: Starts of the operations.
        end_ns: Ends of the operations.
        utc_less_ns: UTC minus the monotonic clock.
    """
    first, last = int(start_ns[0]), int(end_ns[-1])
    return {
        "start_ns": first,
        "end_ns": last,
        "clock": _make_clock(last, utc_less_ns),
        "operations": {
            "name": name_ids.tolist(),
            "start": (start_ns - first).tolist(),
            "end": (end_ns - first).tolist(),
        },
    }
