"""Predictions: what PyTorch's schedules and plans should take at the times of a report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bubbleviz.model.phases import Phase
from bubbleviz.report.saved import read_pipeline
from bubbleviz.schedules.communication.deadlocks import check_order, makespan_of
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Step,
    Transfer,
    crosses,
    input_of,
    output_of,
)
from bubbleviz.schedules.communication.lowering import lowered
from bubbleviz.schedules.communication.transports import BUFFERED, STREAMS, Transport
from bubbleviz.schedules.known import schedule_named
from bubbleviz.schedules.plan import Order, Plan
from bubbleviz.schedules.plan_memory import peak_memory
from bubbleviz.schedules.workload import Workload
from scripts.proving.jobs import Job

#: Names of PyTorch's schedules here.
_NAMES = {
    "InterleavedZeroBubble": "interleaved-zb",
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
#: Those whose sends and receives are batched, and waited for at once.
_BATCHED = ("1F1B", "GPipe")


def bubbleviz(*arguments: object) -> str:
    """Run a command of bubbleviz as a user would, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "bubbleviz", *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def workload_of(report: Path) -> Workload:
    """Return what the virtual stages of a measured run take."""
    return read_pipeline(str(report)).workload


def transport_of(job: Job) -> Transport:
    """Return what transfers of a job wait for."""
    return STREAMS if job.streams else BUFFERED


def shipped_plan(name: str, job: Job) -> Plan:
    """Return the plan of one of PyTorch's schedules."""
    return schedule_named(_NAMES[name]).plan(
        job.ranks, job.microbatches, len(job.placement) // job.ranks
    )


def shipped_s(name: str, job: Job, workload: Workload) -> float:
    """Return the seconds that one of PyTorch's schedules should take."""
    plan = shipped_plan(name, job)
    made = batched(plan) if name in _BATCHED else lowered(plan)
    return makespan_of(made, workload, transport_of(job)) / 1e9


def memory_of(name: str, job: Job, workload: Workload) -> float:
    """Return the most memory of a rank under one of PyTorch's schedules, in microbatches."""
    return max(peak_memory(shipped_plan(name, job), workload.activation, workload.kept))


def write_plan(report: Path, limit: float, job: Job) -> tuple[Path, float]:
    """Plan a measured run; return the file of the order and the predicted iteration in seconds.

    Args:
        report: Report of the run; the plan is written next to it.
        limit: Microbatches that each rank has memory for.
        job: The job that ran.
    """
    order, document = report.with_name("plan.csv"), report.with_name("plan.json")
    bubbleviz("plan", report, "--memory-limit", limit, "-o", order, "-o", document, "--force")
    plan = json.loads(document.read_text(encoding="utf-8"))
    queued_ns = plan["communication"]["own_makespan_ns"]
    return order, (queued_ns if job.streams else plan["best"]["makespan_ns"]) / 1e9


def batched(plan: Plan, *, waits_for_sends: bool = False) -> LoweredPlan:
    """Return a plan of one stage a device as batched point-to-point operations run it.

    1F1B starts the send of one operation and the receive of the next together and waits for both
    (``Schedule1F1B`` of PyTorch, ``forward_backward_pipelining_without_interleaving`` of
    Megatron-LM); receives alone are waited for at once.

    Args:
        plan: with whole backwards; where all forwards come first it runs as PyTorch's GPipe.
        waits_for_sends: wait for each send at once, as Megatron-LM does, rather than before the
            next one.

    Raises:
        MismatchError: the order deadlocks.
    """
    check_order(plan)
    forwards_first = all(
        [op.phase is Phase.F for op in order]
        == sorted((op.phase is Phase.F for op in order), reverse=True)
        for order in plan.orders
    )
    lines = (
        _batched_line(order, plan, fused=not forwards_first, waits_for_sends=waits_for_sends)
        for order in plan.orders
    )
    return LoweredPlan(plan, tuple(map(tuple, lines)))


def _batched_line(order: Order, plan: Plan, *, fused: bool, waits_for_sends: bool) -> list[Step]:
    """Return one line.

    Args:
        order: of the device.
        plan: that it is of.
        fused: whether a send goes with the receive of the next operation where forwards and
            backwards alternate, as in 1F1B; in GPipe none does.
        waits_for_sends: whether the other sends are waited for at once.
    """
    line: list[Step] = []
    sent: tuple[Transfer, ...] = ()  # started, to be waited for before the next one
    held: tuple[Transfer, ...] = ()  # to be started with the next receive
    for operation, following in zip(order, (*order[1:], None), strict=True):
        needed, made = input_of(operation, plan), output_of(operation, plan)
        together = held + ((Transfer(needed, sends=False),) if crosses(needed, plan) else ())
        if together:
            line.append(Step(transfers=together, awaited=together))
        line.append(Step(operations=(operation,)))
        if sent and fused:
            line.append(Step(awaited=sent))
            sent = ()
        turns = following is not None and following.phase is not operation.phase
        send, held = ((Transfer(made, sends=True),) if crosses(made, plan) else ()), ()
        if fused and turns:
            held = send
        elif send:
            line.append(Step(transfers=send, awaited=send if waits_for_sends else ()))
            sent += () if waits_for_sends else send
        if sent and not fused and turns:
            line.append(Step(awaited=sent))
            sent = ()
    return [*line, Step(awaited=sent)] if sent else line
