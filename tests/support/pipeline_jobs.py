"""Simulates jobs with known faults, operation by operation, and writes them as tables.

Only the order of operations comes from bubbleviz. Data arrives a fixed time after its producer has
ended, even if its consumer is busy. A rank posts a receive as soon as it is idle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.plan import Plan
from tests.support.operation_tables import write_csv

MS = 1_000_000
#: Time in ns from the end of an iteration on all ranks to the start of the next iteration.
_APART_NS = 50_000
Row = dict[str, int | str]


@dataclass(frozen=True)
class Job:
    """Parameters of a job. Times are in ms, and slowdown factors multiply times.

    Rank r is stage ``r % stages`` of replica ``r // stages``.

    Attributes:
        schedule: Name of a schedule that bubbleviz knows.
        stages: Number of stages.
        microbatches: Number of microbatches per iteration and replica.
        replicas: Number of replicas of the pipeline.
        iterations: Number of iterations.
        noise: Standard deviation of the logarithm of each duration.
        phase: Times of F, B (input gradient) and W of one microbatch on one stage.
        transfer: Transfer time between stages.
        reduce: Time of the gradient reduction over replicas, after all replicas have entered.
        messages: Whether the table has rows for sends and receives.
        launches: Whether rows have launch times.
        only_computes: Whether to omit the rows of collectives and optimizers.
        of_host: Number of ranks per host, or 0 for a single host.
        rank: Slowdown factor of each rank, keyed by rank.
        stage: Slowdown factor of each stage, keyed by stage.
        microbatch: Slowdown factor of each microbatch, in every iteration.
        lengths: Standard deviation of the logarithm of microbatch lengths, drawn per iteration.
        iteration: Slowdown factor of each iteration.
        link: Slowdown factor of transfers in both directions between a stage and the next, keyed by
            (replica, lower stage). A replica of -1 means every replica.
        link_since: First iteration to which the factors of ``link`` apply.
        late: Launch delay of each rank in an iteration, keyed by rank.
        late_every: Interval of the late launches, in iterations.
        pause: Additional time of each rank's third F, keyed by rank.
        slows: (slowdown factor, first iteration that it applies to) of each rank, keyed by rank.
        host_step: Time that the host of each rank takes to launch an operation, keyed by rank.
        host_follows: Time that is followed by ``host_step``, if the host takes time. This is the
            previous ``launch``, the ``start`` or ``end`` of the previous operation, or the time at
            which the ``input`` has arrived and the rank is idle.
        host_queue: Number of operations that a host launches ahead of its GPU, or 0 for no limit.
            Only hosts with a ``host_step`` are limited.
        drift: Relative slowdown of each rank in the last iteration, keyed by rank. The slowdown
            grows linearly.
        gaps: Time without kernels in each operation, as a fraction of its kernel time, keyed by
            rank.
        between: Additional time between iterations.
        even_stages: Whether the work is spread evenly over the stages.
        even_microbatches: Whether all microbatches of an iteration have the mean length.
    """

    schedule: str = "1f1b"
    stages: int = 4
    microbatches: int = 8
    replicas: int = 2
    iterations: int = 6
    noise: float = 0.01
    phase: tuple[float, float, float] = (4.0, 4.0, 4.0)
    transfer: float = 0.2
    reduce: float = 1.5
    messages: bool = True
    launches: bool = True
    only_computes: bool = False
    of_host: int = 0
    rank: Mapping[int, float] = field(default_factory=dict)
    stage: Mapping[int, float] = field(default_factory=dict)
    microbatch: Mapping[int, float] = field(default_factory=dict)
    lengths: float = 0.0
    iteration: Mapping[int, float] = field(default_factory=dict)
    link: Mapping[tuple[int, int], float] = field(default_factory=dict)
    link_since: int = 0
    late: Mapping[int, float] = field(default_factory=dict)
    late_every: int = 1
    pause: Mapping[int, float] = field(default_factory=dict)
    slows: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    host_step: Mapping[int, float] = field(default_factory=dict)
    host_follows: str = "launch"
    host_queue: int = 0
    drift: Mapping[int, float] = field(default_factory=dict)
    gaps: Mapping[int, float] = field(default_factory=dict)
    between: float = 0.0
    even_stages: bool = False
    even_microbatches: bool = False

    @property
    def plan(self) -> Plan:
        """Order of the operations in each replica."""
        chunks = 2 if self.schedule in {"interleaved-1f1b", "interleaved-zb", "zb-v"} else 1
        return find_schedule(self.schedule).plan(self.stages, self.microbatches, chunks)

    def drawn_lengths(self, draw: Callable[[float, float], float]) -> list[list[float]]:
        """Draw the relative lengths of an iteration's microbatches, for each replica."""
        lengths = [
            [math.exp(self.lengths * draw(0, 1)) * self.microbatch.get(m, 1.0) for m in counted]
            for counted in [range(self.microbatches)] * self.replicas
        ]
        mean = sum(map(sum, lengths)) / self.microbatches / self.replicas
        return [[mean] * self.microbatches] * self.replicas if self.even_microbatches else lengths

    def link_factor(self, replica: int, lower_stage: int, iteration: int) -> float:
        """Return the slowdown factor of a link in one replica and iteration.

        Args:
            replica: Number of the replica.
            lower_stage: Lower stage of the link, or -1 if its stages are not neighbors.
            iteration: Number of the iteration.
        """
        if iteration < self.link_since:
            return 1.0
        links = ((replica, lower_stage), (-1, lower_stage))
        return math.prod(self.link.get(link, 1.0) for link in links)

    def factor(self, rank: int, iteration: int) -> float:
        """Return the slowdown factor of a rank's compute times in an iteration.

        The result is the product of the factors for the stage, the rank, the iteration, the drift,
        and the slowdown in ``slows`` if it has begun.
        """
        stage, last = rank % self.stages, max(self.iterations - 1, 1)
        of_stage = self.stage.get(stage, 1.0)
        if self.even_stages:
            of_stage = sum(self.stage.get(s, 1.0) for s in range(self.stages)) / self.stages
        slowed, slow_from = self.slows.get(rank, (1.0, 0))
        drifted = 1 + self.drift.get(rank, 0.0) * iteration / last
        steady_factor = of_stage * self.rank.get(rank, 1.0) * self.iteration.get(iteration, 1.0)
        return steady_factor * drifted * (slowed if iteration >= slow_from else 1.0)


@dataclass(frozen=True)
class SimulatedJob:
    """Result of a simulation: a table of operations, and the length of each iteration in ns.

    ``period_ns`` is the mean time from the start of one iteration to the start of the next.
    """

    rows: list[Row]
    lengths_ns: list[float]
    period_ns: float

    @property
    def length_ns(self) -> float:
        """Mean length of the iterations."""
        return sum(self.lengths_ns) / len(self.lengths_ns)

    def written(self, path: Path) -> Path:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        return write_csv(path, {name: [row.get(name, "") for row in self.rows] for name in names})


def simulate_job(job: Job, seed: int = 0) -> SimulatedJob:
    """Simulate a job, iteration by iteration.

    Replicas are independent until they jointly reduce the gradients of each stage. A single replica
    does not reduce anything. The next iteration starts once all ranks have finished their optimizer
    steps.
    """
    random_of, rows, lengths_ns, begins_ns, base_ns = random.Random(seed), [], [], [], 1e9
    for iteration in range(job.iterations):
        lengths, free_ns = job.drawn_lengths(random_of.gauss), {}
        begins_ns.append(base_ns)
        for replica, lengths_of_replica in enumerate(lengths):
            ranks = _simulate_replica(
                job, iteration, replica, lengths_of_replica, base_ns, random_of
            )
            for rank, (free, done) in ranks.items():
                free_ns[rank] = free
                rows += done
        for rank, free in free_ns.items():
            all_ns = max(free_ns[r] for r in free_ns if r % job.stages == rank % job.stages)
            identity: Row = {"iteration": iteration, "rank": rank, "stage": rank % job.stages}
            identity |= {"pipeline": rank // job.stages, "launched_ns": round(base_ns - 100_000)}
            end_ns = free
            if job.replicas > 1:
                end_ns = all_ns + job.reduce * MS
                group: Row = {"kind": "all-reduce", "group": f"stage {rank % job.stages}"}
                rows.append(_make_timed_row(identity | group, "COLLECTIVE", free, end_ns))
            rows.append(_make_timed_row(identity, "Optimizer", end_ns, end_ns + MS))
        base_ns = max(int(row["end_ns"]) for row in rows)
        lengths_ns.append(base_ns - begins_ns[-1])
        base_ns += _APART_NS + job.between * MS
    if job.only_computes:
        rows = [row for row in rows if row["phase"] not in {"COLLECTIVE", "Optimizer"}]
    for row in rows if not job.launches else ():
        row.pop("launched_ns", None)
    for row in rows if job.of_host else ():
        row["host"] = f"node{int(row['rank']) // job.of_host}"
    period_ns = (begins_ns[-1] - begins_ns[0]) / max(job.iterations - 1, 1)
    return SimulatedJob(rows, lengths_ns, period_ns)


def _simulate_replica(
    job: Job,
    iteration: int,
    replica: int,
    lengths: list[float],
    base_ns: float,
    random_of: random.Random,
) -> dict[int, tuple[float, list[Row]]]:
    """Simulate one replica in one iteration, without the reduction and the optimizer.

    Args:
        job: Parameters of the job.
        iteration: Number of the iteration.
        replica: Number of the replica.
        lengths: Relative length of each microbatch.
        base_ns: Start of the iteration.
        random_of: Random generator for the noise.

    Returns:
        The end of each rank's last operation, and the rows of each rank.
    """
    plan, first = job.plan, replica * job.stages
    is_late = iteration % job.late_every == job.late_every - 1
    late_ns = [is_late * job.late.get(first + s, 0.0) * MS for s in range(job.stages)]
    free_ns = [base_ns + own for own in late_ns]
    left = [list(order) for order in plan.orders]
    end_of: dict[tuple[str, int, int], float] = {}
    rows: list[list[Row]] = [[] for _ in range(job.stages)]
    previous: list[dict[str, float]] = [{} for _ in range(job.stages)]
    ends_ns: list[list[float]] = [[] for _ in range(job.stages)]
    waits = 0
    while any(left):
        stage = waits % job.stages
        if not left[stage]:
            waits += 1
            continue
        planned = left[stage][0]
        phase, virtual, m = planned.phase.label, planned.virtual_stage, planned.microbatch
        inputs = [(phase, virtual + (-1 if phase == "F" else 1), m)]
        if inputs[0][1] in (-1, plan.virtual_stages) or phase == "W":
            inputs = []
        if phase != "F":
            inputs.append(("B" if phase == "W" else "F", virtual, m))
        if not all(need in end_of for need in inputs):
            waits += 1
            continue
        rank = first + stage
        identity: Row = {"iteration": iteration, "rank": rank, "stage": stage, "pipeline": replica}
        chunk: Row = {"microbatch": m, "virtual_stage": virtual, "chunk": plan.chunk_of(virtual)}
        ready_ns = base_ns
        for need in inputs:
            there_ns, sender = end_of[need], plan.device_of(need[1])
            if sender != stage:
                low = min(sender, stage) if abs(sender - stage) == 1 else -1
                factor = job.link_factor(replica, low, iteration)
                noise = math.exp(job.noise * random_of.gauss(0, 1))
                there_ns += job.transfer * factor * noise * MS
                kind = "F" if phase == "F" else "B"
                other: Row = {**identity, "rank": first + sender, "stage": sender}
                sent: Row = {"microbatch": m, "virtual_stage": need[1]}
                sent["chunk"] = plan.chunk_of(need[1])
                if job.messages:
                    row = _make_timed_row(other | sent, f"SEND_{kind}", end_of[need], there_ns)
                    rows[sender].append(row)
                    row = _make_timed_row(
                        identity | chunk, f"RECV_{kind}", min(free_ns[stage], there_ns), there_ns
                    )
                    rows[stage].append(row)
            ready_ns = max(ready_ns, there_ns)
        input_ns = max(free_ns[stage], ready_ns)
        times_ns = {"input": input_ns, **previous[stage]}
        launch_ns = _find_launch(job, rank, times_ns, base_ns + late_ns[stage] - 20_000)
        start_ns = max(input_ns, launch_ns)
        shares = {"F": job.phase[0], "B": job.phase[1], "W": job.phase[2]}
        length = sum(shares[part] for part in phase) * job.stages / plan.virtual_stages
        length *= job.factor(rank, iteration) * lengths[m]
        length *= math.exp(job.noise * random_of.gauss(0, 1))
        if phase == "F" and m == 2 and plan.chunk_of(virtual) == 0:
            length += job.pause.get(rank, 0.0)
        active_ns, length = round(length * MS), length * (1 + job.gaps.get(rank, 0.0))
        free_ns[stage] = end_of[phase, virtual, m] = start_ns + length * MS
        row = _make_timed_row(identity | chunk, phase, start_ns, free_ns[stage])
        row["launched_ns"] = round(launch_ns)
        previous[stage] = {"launch": launch_ns, "start": start_ns, "end": free_ns[stage]}
        ends_ns[stage].append(free_ns[stage])
        is_full = 0 < job.host_queue <= len(ends_ns[stage])
        previous[stage]["queue"] = ends_ns[stage][-job.host_queue] if is_full else 0.0
        row |= {"active_ns": active_ns, "kernels": 9} if job.gaps else {}
        rows[stage].append(row)
        left[stage].pop(0)
    return {first + s: (free_ns[s], rows[s]) for s in range(job.stages)}


def _find_launch(job: Job, rank: int, times_ns: Mapping[str, float], first_ns: float) -> float:
    """Return the time at which a rank's host launches an operation.

    Args:
        job: Parameters of the job.
        rank: Rank of the operation.
        times_ns: Times that the launch may follow. For the first operation, only ``input`` is
            known. ``queue`` is the end of the operation that has to leave a full queue.
        first_ns: Time of the rank's first launch in the iteration.
    """
    if rank in job.host_step and "launch" in times_ns:
        return max(times_ns[job.host_follows] + job.host_step[rank] * MS, times_ns["queue"])
    return min(first_ns, times_ns["input"] - 5_000)


def _make_timed_row(of: Row, phase: str, start_ns: float, end_ns: float) -> Row:
    times: Row = {"start_ns": round(start_ns), "end_ns": round(end_ns)}
    return {**of, "phase": phase, **times}
