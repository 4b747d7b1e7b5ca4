"""Memory: what activations take and devices have, as measured or given."""

from __future__ import annotations

from dataclasses import replace

from bubbleviz.analyses.plan.measured_run import MeasuredRun
from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize, parse_memory
from bubbleviz.model.values import frozen
from bubbleviz.schedules.memory_use import with_memory as with_measured
from bubbleviz.schedules.workload import Workload, peak_memory

#: Value of ``--memory-limit`` that sets none.
UNLIMITED = "none"


@frozen
class MemoryChoice:
    """The memory options, as they were written; see :func:`.memory_sizes.parse_memory`.

    Attributes:
        limit: of a device, or ``none``; None for what the run took at most.
        backward: M_B, what one microbatch holds on a whole stage from F to B; None as measured.
        weight: M_W, the part of it held until W; None for all of it.
    """

    limit: str | None = None
    backward: str | None = None
    weight: str | None = None


@frozen
class LimitedWorkload:
    """A workload with its memory.

    Attributes:
        workload: with activations, and the limits of devices.
        in_bytes: whether these are bytes; else microbatches of a whole stage, or a unit given.
        of_run: whether the limit is what the order that ran took at most.
    """

    workload: Workload
    in_bytes: bool
    of_run: bool


def with_memory(run: MeasuredRun, choice: MemoryChoice) -> LimitedWorkload:
    """Return the workload of a run with its memory.

    Without a limit, devices have what the one with most took in the order that ran, if that is
    known: as much is there for sure.

    Raises:
        UsageError: an option is no amount, or they are of different units.
    """
    workload, in_bytes = _activations(run, choice)
    if choice.limit == UNLIMITED:
        return LimitedWorkload(workload, in_bytes, of_run=False)
    if choice.limit is not None:
        size = parse_memory(choice.limit, "--memory-limit")
        if size.in_bytes != in_bytes:
            raise UsageError(
                f"--memory-limit {choice.limit}: activations are in "
                + (
                    "bytes; give one such as 80GB"
                    if in_bytes
                    else "units of M_B, as the report "
                    "holds no bytes of them; give --memory-b in bytes, too"
                )
            )
        if run.memory is not None and choice.backward is None:
            limited = with_measured(workload, run.memory, size.amount)
            return LimitedWorkload(limited, in_bytes, of_run=False)
        limit = (size.amount,) * workload.devices
        return LimitedWorkload(replace(workload, limit=limit), in_bytes, of_run=False)
    if run.ran is None:
        return LimitedWorkload(workload, in_bytes, of_run=False)
    most = max(peak_memory(run.ran, workload))
    return LimitedWorkload(
        replace(workload, limit=(most,) * workload.devices), in_bytes, of_run=True
    )


def _activations(run: MeasuredRun, choice: MemoryChoice) -> tuple[Workload, bool]:
    """Return the workload with its activations, and whether they are bytes."""
    workload = run.workload
    if choice.backward is None and choice.weight is None:
        if run.memory is None:
            return workload, False
        return with_measured(workload, run.memory, None), True
    whole = MemorySize(1.0, in_bytes=False)
    if choice.backward is not None:
        whole = parse_memory(choice.backward, "--memory-b")
    rest = whole if choice.weight is None else parse_memory(choice.weight, "--memory-w")
    if rest.in_bytes != whole.in_bytes:
        raise UsageError("--memory-b and --memory-w are of different units; give both in bytes")
    if not 0 <= rest.amount <= whole.amount or not whole.amount:
        raise UsageError(
            f"--memory-w: {rest.amount:g} is held on to W of the {whole.amount:g} held to B; give "
            f"0 to {whole.amount:g}"
        )
    chunks = [workload.placement.count(device) for device in workload.placement]
    return (
        replace(
            workload,
            activation=tuple(whole.amount / each for each in chunks),
            kept=tuple(rest.amount / each for each in chunks),
        ),
        whole.in_bytes,
    )
