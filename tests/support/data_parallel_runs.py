"""Planted data-parallel runs, in which ranks are late for a known reason.

Every step of a rank consists of data loading, a forward, a backward, the gradient synchronization
and an optimizer step. The synchronization starts on each rank when its backward ends, and ends on
all ranks ``MOVE_NS`` after the last rank has started it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bubbleviz.annotate.recorder import Recorder
from tests.support.recorded_runs import UPTIME_NS, Clock

#: Length of each part of a step, in ns.
LENGTHS_NS = {
    "loading": 5_000_000,
    "forward": 30_000_000,
    "backward": 60_000_000,
    "optimizer": 4_000_000,
}
#: Time for which the synchronization moves data, in ns.
MOVE_NS = 8_000_000


@dataclass(frozen=True)
class Step:
    """One step of a rank. All times are in ns."""

    rank: int
    number: int
    forward_ns: int
    backward_ns: int
    enter_ns: int
    leave_ns: int
    end_ns: int


def plant_steps(
    late_part: str = "",
    *,
    late_ns: int = 20_000_000,
    late_ranks: Collection[int] = (1,),
    ranks: int = 4,
    steps: int = 5,
    jitter: float = 0.0,
) -> Iterator[Step]:
    """Yield the steps of a run, in which some ranks are late.

    Args:
        late_part: Part of the step in which the ranks are late, or "" for no part.
        late_ns: Time that each late rank loses in every step.
        late_ranks: Ranks that are late.
        ranks: Number of ranks.
        steps: Number of steps.
        jitter: Standard deviation of the lengths of parts, as a fraction.
    """
    generator = random.Random(7)
    ready_ns = [1_000_000_000] * ranks
    for number in range(steps):
        times: list[tuple[int, int, int, int]] = []
        for rank in range(ranks):
            length_ns = {
                part: round(of_part * (1 + generator.gauss(0, jitter)))
                for part, of_part in LENGTHS_NS.items()
            }
            if rank in late_ranks and late_part:
                length_ns[late_part] += late_ns
            forward_ns = ready_ns[rank] + length_ns["loading"]
            backward_ns = forward_ns + length_ns["forward"]
            enter_ns = backward_ns + length_ns["backward"]
            times.append((forward_ns, backward_ns, enter_ns, length_ns["optimizer"]))
        leave_ns = max(enter_ns for _, _, enter_ns, _ in times) + MOVE_NS
        for rank, (forward_ns, backward_ns, enter_ns, optimizer_ns) in enumerate(times):
            end_ns = leave_ns + optimizer_ns
            yield Step(rank, number, forward_ns, backward_ns, enter_ns, leave_ns, end_ns)
            ready_ns[rank] = end_ns


def write_table(path: Path, steps: Iterator[Step], *, with_collectives: bool = True) -> Path:
    """Write the operations of a run as a CSV table.

    Args:
        path: Path of the table.
        steps: Steps of all ranks.
        with_collectives: Whether to write the synchronization. If not, the backward lasts until the
            synchronization ends.
    """
    lines = ["rank,phase,iteration,stage,microbatch,start_ns,end_ns,kind,group"]
    for step in steps:
        place = f"{step.number},0"
        backward_end_ns = step.enter_ns if with_collectives else step.leave_ns
        lines += [
            f"{step.rank},F,{place},0,{step.forward_ns},{step.backward_ns},,",
            f"{step.rank},BW,{place},0,{step.backward_ns},{backward_end_ns},,",
            f"{step.rank},Optimizer,{place},,{step.leave_ns},{step.end_ns},,",
        ]
        if with_collectives:
            times = f"{step.enter_ns},{step.leave_ns}"
            lines.append(f"{step.rank},COLLECTIVE,{place},,{times},all-reduce,dp")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def record_steps(
    folder: Path, steps: Iterator[Step], monkeypatch: pytest.MonkeyPatch, *, hosts: int = 1
) -> Path:
    """Record a run as ``annotate.torch`` does: collectives have no kind and no group.

    Args:
        folder: Directory of the recording.
        steps: Steps of all ranks.
        monkeypatch: Fixture that sets the names of hosts.
        hosts: Number of hosts, whose UTC clocks differ by a second.
    """
    all_steps = list(steps)
    n_ranks = max(step.rank for step in all_steps) + 1
    for rank in range(n_ranks):
        number = rank % hosts
        clock = Clock(number * 1_000_000_000, UPTIME_NS + 777_000_000_000 * number)
        monkeypatch.setattr(socket, "gethostname", lambda number=number: f"node{number}")
        recorder = Recorder(
            folder,
            limit_bytes=1 << 22,
            place=(rank, n_ranks),
            monotonic=clock.monotonic,
            utc=clock.utc,
        )
        for step in (step for step in all_steps if step.rank == rank):
            _record_step(recorder, clock, step)
        recorder.stop()
    return folder


def _record_step(recorder: Recorder, clock: Clock, step: Step) -> None:
    """Record the operations of one rank and step."""
    clock.now_ns = step.forward_ns
    iteration = recorder.open("", iteration=step.number)
    forward = recorder.open("bubbleviz:F mb=0 stage=0")
    clock.now_ns = step.backward_ns
    recorder.close(forward)
    backward = recorder.open("bubbleviz:BW mb=0 stage=0")
    clock.now_ns = step.enter_ns
    collective = recorder.open("bubbleviz:COLLECTIVE")
    clock.now_ns = step.leave_ns
    recorder.close(collective)
    recorder.close(backward)
    optimizer = recorder.open("bubbleviz:Optimizer")
    clock.now_ns = step.end_ns
    recorder.close(optimizer)
    recorder.close(iteration)
