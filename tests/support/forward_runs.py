"""Simulates inference runs with known times, and writes them as tables of operations.

A chunk is the unit of work that passes through the pipeline, like a microbatch. Chunks are
simulated one by one. A stage starts a chunk once it is free and the chunk has arrived. The first
stage also waits for the launch. The host launches a chunk once its request has arrived and the
output token of the chunk ``depth`` positions earlier has returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.operation_tables import write_csv

#: Time in ns that a chunk of length 1 takes on a stage whose factor is 1.
UNIT_NS = 1_000_000


@dataclass(frozen=True)
class Serving:
    """Parameters of a serving pipeline.

    Attributes:
        lengths: Length of each chunk, in multiples of ``UNIT_NS``.
        stages: Time factor of each stage.
        transfer_ns: Transfer time between two stages, in ns.
        depth: Maximum number of chunks in the pipeline, or 0 for no limit.
        host_ns: Delay of the host before each launch, in ns.
        arrivals_ns: Arrival time of each chunk's request, or empty if all requests arrive at time
            0.
        tokens: Number of tokens of each chunk, or empty if it is not recorded.
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
    """One chunk on one stage, with its start and end."""

    stage: int
    number: int
    start_ns: int
    end_ns: int
    launched_ns: int


def simulate_serving(run: Serving) -> list[Chunk]:
    """Simulate the run, and return its chunks sorted by (stage, start)."""
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


def write_table(folder: Path, run: Serving, **columns_: Sequence[int]) -> Path:
    """Write the run as a table of operations, and return the path of the file."""
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
    return write_csv(folder / "operations.csv", columns | columns_)


def compute_idle_shares(chunks: Sequence[Chunk]) -> dict[int, float]:
    """Return the idle share of each stage between the first start and the last end of the run.

    This slow implementation cuts time at every start and end, and checks each piece separately.
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
