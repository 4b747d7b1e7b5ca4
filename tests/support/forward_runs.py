"""Runs that only go forward, as tables of operations, with what is true of them.

A plain simulation, chunk by chunk: a stage takes a chunk once it is free and the chunk has arrived.
The first stage takes it once the host has launched it, which schedules it when its request is there
and the token of the chunk ``depth`` before has come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.operation_tables import write_csv

#: How long a chunk that takes one unit takes on a stage of speed 1.
UNIT_NS = 1_000_000


@dataclass(frozen=True)
class Serving:
    """A pipeline that serves.

    Attributes:
        lengths: of the chunks, in units.
        stages: how many times as long as usual each stage takes.
        transfer_ns: between two stages.
        depth: most chunks in the pipeline; 0 for any number.
        host_ns: from when a chunk could start until the host has launched it.
        arrivals_ns: when the request of each chunk comes; empty for all at once.
        tokens: of the chunks; empty for none recorded.
    """

    lengths: Sequence[float]
    stages: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    transfer_ns: int = 0
    depth: int = 0
    host_ns: int = 0
    arrivals_ns: Sequence[int] = ()
    tokens: Sequence[int] = ()


@dataclass(frozen=True)
class Chunk:
    """One chunk on one stage."""

    stage: int
    number: int
    start_ns: int
    end_ns: int
    launched_ns: int


def simulate_serving(run: Serving) -> list[Chunk]:
    """Return what every stage ran, in order of (stage, start)."""
    free, done = [0] * len(run.stages), list[int]()
    chunks = []
    for number, length in enumerate(run.lengths):
        ready = run.arrivals_ns[number] if run.arrivals_ns else 0
        if run.depth and number >= run.depth:
            ready = max(ready, done[number - run.depth])
        ready += run.host_ns
        for stage, speed in enumerate(run.stages):
            start = max(free[stage], ready)
            end = start + round(UNIT_NS * length * speed)
            launched = ready if stage == 0 else 0
            chunks.append(Chunk(stage, number, start, end, launched))
            free[stage], ready = end, end + run.transfer_ns
        done.append(free[-1])
    return sorted(chunks, key=lambda chunk: (chunk.stage, chunk.start_ns))


def write_table(folder: Path, run: Serving, **more: Sequence[int]) -> Path:
    """Write the run as a table of operations; return its file."""
    chunks = simulate_serving(run)
    columns: dict[str, Sequence[object]] = {
        "rank": [c.stage for c in chunks],
        "phase": ["F"] * len(chunks),
        "microbatch": [c.number for c in chunks],
        "start_ns": [c.start_ns for c in chunks],
        "end_ns": [c.end_ns for c in chunks],
        "launched_ns": [c.launched_ns for c in chunks],
    }
    if run.tokens:
        columns["tokens"] = [run.tokens[c.number] for c in chunks]
    return write_csv(folder / "operations.csv", columns | more)


def compute_idle_shares(chunks: Sequence[Chunk]) -> dict[int, float]:
    """Return the idle share of each stage from the first start to the last end, by slow code.

    Every stage is looked at between all instants at which anything begins or ends.
    """
    instants = sorted({t for c in chunks for t in (c.start_ns, c.end_ns)})
    busy = dict.fromkeys(sorted({c.stage for c in chunks}), 0)
    for low, high in itertools.pairwise(instants):
        for stage in busy:
            chunks_of_stage = (c for c in chunks if c.stage == stage)
            if any(c.start_ns <= low and high <= c.end_ns for c in chunks_of_stage):
                busy[stage] += high - low
    span_ns = instants[-1] - instants[0]
    return {stage: 1 - time / span_ns if span_ns else 0.0 for stage, time in busy.items()}
