"""Memory: what activations take and devices have, as measured or given."""

from __future__ import annotations

from dataclasses import replace

from bubbleviz.analyses.plan.measured_run import MeasuredRun
from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize, parse_memory
from bubbleviz.model.values import frozen
from bubbleviz.schedules.memory_use import MeasuredMemory, with_memory
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
        resident: by device: what it was measured to hold beside activations, in bytes; the limits
            are of the rest. Empty where that is not known, or plays no part.
    """

    workload: Workload
    in_bytes: bool
    of_run: bool
    resident: tuple[float, ...] = ()


def limited_workload(run: MeasuredRun, choice: MemoryChoice) -> LimitedWorkload:
    """Return the workload of a run with its memory.

    Without a limit, devices have what the one with most took in the order that ran, if that is
    known: as much is there for sure.

    Raises:
        UsageError: an option is no amount, they are of different units, or what was measured would
            be mixed with what is given.
    """
    measured = _measured(run, choice)
    if measured is None:
        workload, in_bytes = _given(run.workload, choice)
    else:
        workload, in_bytes = with_memory(run.workload, measured, None), True
    resident = () if measured is None else measured.resident
    if choice.limit == UNLIMITED:
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    if choice.limit is not None:
        size = parse_memory(choice.limit, "--memory-limit")
        if size.in_bytes != in_bytes:
            raise UsageError(
                f"--memory-limit {choice.limit}: activations are in {_unit(in_bytes, choice)}"
            )
        if measured is not None:
            workload = with_memory(workload, measured, size.amount)
        else:
            workload = replace(workload, limit=(size.amount,) * workload.devices)
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    if run.ran is None:
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    most = max(peak_memory(run.ran, workload))
    return LimitedWorkload(
        replace(workload, limit=(most,) * workload.devices), in_bytes, of_run=True
    )


def _measured(run: MeasuredRun, choice: MemoryChoice) -> MeasuredMemory | None:
    """Return what was measured; None where nothing was, or activations are given.

    Raises:
        UsageError: M_W is given and M_B measured.
    """
    if run.memory is None or choice.backward is not None:
        return None
    if choice.weight is not None:
        raise UsageError(
            f"--memory-w {choice.weight}: activations were measured; give --memory-b, too, or "
            "leave it out"
        )
    return run.memory


def _unit(in_bytes: bool, choice: MemoryChoice) -> str:
    """Return the unit of activations, and what to give for a limit of another."""
    if in_bytes:
        return "bytes; give one such as 80GB"
    if choice.backward is not None:
        return f"the unit of --memory-b {choice.backward}; give that in bytes, too"
    return "units of M_B, as the report holds no bytes of them; give --memory-b in bytes, too"


def _given(workload: Workload, choice: MemoryChoice) -> tuple[Workload, bool]:
    """Return the workload with the activations that are given, and whether they are bytes."""
    if choice.backward is None and choice.weight is None:
        return workload, False
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
