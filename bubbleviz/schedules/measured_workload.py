"""The workload of a run: its phase times, by virtual stage, and its transfers, by edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Protocol

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.schedules.measured_times import OperationTimes
from bubbleviz.schedules.workload import Workload

_UNKNOWN = -1


class PlacedTimes(OperationTimes, Protocol):
    """Times of operations whose place in the model is known."""

    @property
    def virtual_stage(self) -> int:
        """Place of the model chunk in the model's order; -1 unknown."""

    @property
    def gap_ns(self) -> float | None:
        """Median time from the operation before to one that waited for nothing; None unknown."""


def measured_workload(
    kinds: Sequence[PlacedTimes], transfer_ns: float | None, microbatches: int | None
) -> Workload:
    """Return the workload of a run; every microbatch holds 1/v of a stage from F to W.

    A transfer is the median of the receives of its edge and direction that waited for their input;
    where none did, that of the other direction, else that of all edges, else 0. What is computed
    again belongs to the backward that needs it. What passes between operations that wait for
    nothing (the host, launches) belongs to each of them.

    Args:
        kinds: how long operations take, and transfers under the phases of receives.
        transfer_ns: of all edges; None where none was recorded.
        microbatches: of an iteration.

    Raises:
        MismatchError: they lack a time of a virtual stage.
    """
    if microbatches is None:
        raise _lacks("its microbatches are unknown; name them in ranges")
    if any(kind.phase is Phase.FB for kind in kinds):
        raise _lacks("forwards and backwards overlap under one name")
    placement = _placement(kinds)
    stages = range(len(placement))
    gaps = _gaps(kinds)
    times = {
        (kind.virtual_stage, kind.phase): kind.median_ns + gaps.get(kind.phase, 0.0)
        for kind in kinds
    }

    def of(stage: int, phase: Phase) -> int:
        return round(times.get((stage, phase), 0.0))

    again = [of(s, Phase.R) for s in stages]
    # Where a chunk runs its backward both ways, what was recorded apart tells more.
    apart = [(s, Phase.B) in times for s in stages]
    for s in stages:
        if not of(s, Phase.F) or not (of(s, Phase.B) or of(s, Phase.BW)):
            raise _lacks(f"virtual stage {s} has no forward or no backward of its own")
    weight = [of(s, Phase.W) if apart[s] else of(s, Phase.BW) // 2 for s in stages]
    inner = [of(s, Phase.B) if apart[s] else of(s, Phase.BW) - weight[s] for s in stages]
    fused = [of(s, Phase.BW) or inner[s] + weight[s] for s in stages]
    cut = [placement[s] != placement[s + 1] for s in stages[:-1]]
    usual = round(transfer_ns or 0.0)
    down = [_transfer(times, s, usual) if cut[s] else 0 for s in stages[:-1]]
    up = [_transfer(times, s, usual, back=True) if cut[s] else 0 for s in stages[:-1]]
    held = tuple(1 / placement.count(placement[s]) for s in stages)
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=tuple(of(s, Phase.F) for s in stages),
        backward_ns=tuple(inner[s] + again[s] for s in stages),
        weight_ns=tuple(weight),
        fused_ns=tuple(fused[s] + again[s] for s in stages),
        down_ns=(*down, 0),
        up_ns=(0, *up),
        activation=held,
        kept=held,
        split=any(weight[s] for s in stages if apart[s]),
    )


def _gaps(kinds: Sequence[PlacedTimes]) -> dict[Phase, float]:
    """Return the gap before operations of each phase: the median of virtual stages.

    One virtual stage may show few, in which a transfer waited for others.
    """
    known = [kind for kind in kinds if kind.gap_ns is not None]
    of_all = [kind.gap_ns or 0.0 for kind in known]
    gaps = {}
    for phase in WORK:
        of_phase = [kind.gap_ns or 0.0 for kind in known if kind.phase is phase]
        gaps[phase] = median_low(of_phase or of_all or [0.0])
    return gaps


def _placement(kinds: Sequence[PlacedTimes]) -> tuple[int, ...]:
    """Return the device of each virtual stage; devices are numbered in the order of stages.

    Raises:
        MismatchError: it is unknown.
    """
    holder = {kind.virtual_stage: kind.stage for kind in kinds if kind.phase is Phase.F}
    if not holder or _UNKNOWN in holder or _UNKNOWN in holder.values():
        raise _lacks("its stages are unknown; set --order")
    absent = next((s for s in range(max(holder) + 1) if s not in holder), None)
    if absent is not None:
        raise _lacks(f"virtual stage {absent} of {max(holder) + 1} is missing; give all ranks")
    number = {stage: device for device, stage in enumerate(sorted(set(holder.values())))}
    return tuple(number[holder[s]] for s in range(len(holder)))


def _transfer(
    times: Mapping[tuple[int, Phase], float], edge: int, usual: int, *, back: bool = False
) -> int:
    """Return the transfer between a virtual stage and the next, or back."""
    there = times.get((edge + 1, Phase.RECV_F))
    home = times.get((edge, Phase.RECV_B))
    first, second = (home, there) if back else (there, home)
    known = second if first is None else first
    return usual if known is None else round(known)


def _lacks(what: str) -> MismatchError:
    return MismatchError(f"the run does not show the times of its schedule: {what}")
