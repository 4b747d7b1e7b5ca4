"""Plant runs whose replicas are unequally fast, and count where stages are right, unknown or wrong.

``python -m scripts.staging_grid --runs 200 --kept DIR`` draws runs (sizes, schedules, slow ranks,
stages, microbatches and pipelines, pauses, jitter, hosts) by numbers 0, 1, ... of a fixed seed,
aligns each, and prints what differs from the planted truth. What is read of a run is kept in DIR,
so that a second time only aligns.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.errors import BubblevizError
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recordings
from bubbleviz.progress import Unwatched
from tests.planting import Planting, Truth, plant

#: Stages, replicas and microbatches of the runs.
_SIZES = (
    (4, 2, 8), (2, 4, 4), (4, 4, 4), (8, 2, 8), (4, 3, 6), (8, 2, 4), (4, 2, 4), (2, 2, 6),
    (8, 4, 8), (3, 2, 12), (6, 2, 12), (1, 4, 4),
)  # fmt: skip
_SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")
_TROUBLES = (
    "none", "rank", "rank", "rank", "rank", "pause", "pause", "microbatch", "pipeline", "stage",
    "late", "iteration",
)  # fmt: skip


def drawn(number: int) -> tuple[Planting, bool]:
    """Return the run of that number, and whether its hosts' names tell nothing of their order."""
    rng = np.random.default_rng((2_026, number))

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    stages, replicas, microbatches = one(*_SIZES)
    schedule = one(*_SCHEDULES) if stages > 1 else one("1f1b", "gpipe")
    if schedule == "interleaved-1f1b":
        microbatches = max(1, round(microbatches / stages)) * stages
    ranks = stages * replicas
    options: dict[str, Any] = {
        "slow_factor": one(1.15, 1.5, 2.0, 2.4),
        "jitter": one(0.0, 0.01, 0.03, 0.1),
        "transfer_ns": one(0, 20_000, 200_000),
        "servers": one(*(n for n in (1, 1, 2, 4, 8) if n <= ranks)),
        "iterations": one(2, 3, 4),
        "iteration_ranges": bool(one(0, 1)),
        "barrier": bool(one(0, 1, 1, 1)),
        "communication": bool(one(0, 1, 1, 1, 1, 1)),
        "names": one("numbered", "numbered", "numbered", "numbered", "numbered", "constant"),
        "nested_receive_ns": one(0, 0, 0, 20_000),
        "seed": number,
    }
    if not options["communication"]:
        options["nested_receive_ns"] = 0
    troubles: dict[str, dict[str, Any]] = {
        "none": {},
        "rank": {"slow_rank": one(*range(ranks)), "slow_rank_factor": one(1.15, 1.5, 2.0, 2.4)},
        "pause": {
            "pause_device": one(*range(ranks)),
            "pause_every": one(1, 2),
            "pause_ns": one(2_000_000, 8_000_000),
        },
        "microbatch": {"slow_microbatch": one(*range(microbatches))},
        "pipeline": {"slow_pipeline": one(*range(replicas))},
        "stage": {"slow_stage": one(*range(stages))},
        "late": {"late_stage": one(*range(stages)), "late_ns": 500_000},
        "iteration": {"slow_iteration": 1},
    }
    options |= troubles[one(*_TROUBLES)]
    planting = Planting(
        schedule=schedule, stages=stages, replicas=replicas, microbatches=microbatches, **options
    )
    return planting, planting.servers > 1 and bool(one(0, 0, 0, 1))


def recorded(planting: Planting, folder: Path) -> tuple[Recordings, Truth]:
    """Return what is read of a planted run, and its truth."""
    truth = plant(planting, folder)
    fleet = Fleet(1)
    options = ReadOptions(find_conventions(()), cross_thread=True, keep_export=False)
    read, _ = record_all(fleet, fleet.find([str(folder)]), options, Unwatched())
    return read, truth


def verdict(run: Run, truth: Truth) -> str:
    """Return how far stages and pipelines are those of the truth."""
    true = {(rank.host, rank.pid, rank.device_id): rank for rank in truth.ranks}
    held: dict[int, set[int | None]] = {}
    for op in truth.operations:
        held.setdefault(op.rank, set()).add(op.virtual_stage)
    if any(rank.stage is None for rank in run.ranks):
        return "unknown"
    pipelines: dict[int | None, set[int]] = {}
    for rank in run.ranks:
        planted = true[rank.host, rank.pid, rank.device_id]
        own = run.operations.take(run.operations.rank == rank.index)
        # Names that are the same for all operations do not tell chunks apart.
        named = truth.planting.names != "constant"
        stages = {int(v) for v in own.virtual_stage if v >= 0}
        if rank.stage != planted.stage or (named and stages != held[planted.rank] - {None}):
            return "WRONG stages"
        pipelines.setdefault(rank.pipeline, set()).add(planted.pipeline)
    if None in pipelines:
        return "right stages, pipelines unknown"
    if any(len(planted) > 1 for planted in pipelines.values()):
        return "WRONG pipelines"
    return "right" if run.paired else "right, iterations not paired"


def shuffled(read: Recordings, truth: Truth, number: int) -> Recordings:
    """Give hosts each other's names, in the truth as well."""
    hosts = sorted({recording.source.host for recording in read.recordings})
    others = dict(zip(hosts, np.random.default_rng(number).permutation(hosts), strict=True))
    for rank in truth.ranks:
        object.__setattr__(rank, "host", str(others[rank.host]))
    return replace(
        read,
        recordings=tuple(
            replace(r, source=replace(r.source, host=str(others[r.source.host])))
            for r in read.recordings
        ),
    )


def outcome(number: int, kept: Path) -> str:
    """Return the verdict on the run of that number."""
    planting, hidden = drawn(number)
    path = kept / f"{number}.pickle"
    if path.exists():
        read, truth = pickle.loads(path.read_bytes())
    else:
        with tempfile.TemporaryDirectory() as folder:
            read, truth = recorded(planting, Path(folder))
        path.write_bytes(pickle.dumps((read, truth)))
    if hidden:
        read = shuffled(read, truth, number)
    try:
        return verdict(merge(read, RunHints()), truth)
    except BubblevizError as error:
        return f"refused: {type(error).__name__}"


def _options(planting: Planting) -> str:
    usual = {field.name: field.default for field in fields(planting)}
    return " ".join(f"{k}={v}" for k, v in asdict(planting).items() if v != usual[k])


def main() -> None:
    """Print the verdict on each run that is not right, and how often each was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kept", type=Path, required=True)
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    for number in range(given.first, given.first + given.runs):
        found = outcome(number, given.kept)
        counts[found] += 1
        if found != "right":
            planting, hidden = drawn(number)
            sys.stdout.write(f"{number} {found}: {_options(planting)} {'hidden' * hidden}\n")
            sys.stdout.flush()
    for found, count in counts.most_common():
        sys.stdout.write(f"{count:5} {found}\n")


if __name__ == "__main__":
    main()
