"""Faults: what made work take longer than its like, and what it would take without."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

import numpy as np

from bubbleviz.explain.diagnosis.host_state import HostState
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.values import frozen


class FaultKind(Enum):
    """The shapes of slowness."""

    RANK = "rank"
    HOST = "host"
    STAGE = "stage"
    MICROBATCH = "microbatch"
    ITERATION = "iteration"
    LINK = "link"
    LAUNCH = "launch"
    LAUNCH_GAPS = "launch-gaps"
    COLLECTIVE = "collective"
    DRIFT = "drift"
    SLOWED = "slowed"
    TOKEN = "token"


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@frozen
class Fault:
    """One reason why work took longer than its like.

    Attributes:
        kind: its shape.
        name: stable and unique in a run, for example ``rank-3``.
        rows: of the work table that it slows.
        scale: what each would take without it, as a share of what it took; shape of ``rows``.
        ranks: that it slows; empty where it is bound to none.
        stage: that it slows; None for none.
        link: stages that data moved between; None for none.
        microbatches: that are slow, as pairs of iteration and microbatch; empty for none.
        iterations: in which it shows; empty for all.
        phases: that it slows, and how many times as long as their norm each takes.
        what: the kind of collective, or of work; empty where the kind of the fault tells.
        delayed: rows that start late for it.
        late_ns: how much later; shape of ``delayed``.
        collective: kind of collective that starts late for it; empty where operations lose more.
        host: where a host was at its longest.
        bound: whether nothing is slow against its like: without the fault work takes no time at
            all, which is more than can be had.
    """

    kind: FaultKind
    name: str
    rows: Ints = field(default_factory=_nothing)
    scale: Floats = field(default_factory=lambda: np.zeros(0))
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    link: tuple[int, int] | None = None
    microbatches: tuple[tuple[int, int], ...] = ()
    iterations: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    what: str = ""
    delayed: Ints = field(default_factory=_nothing)
    late_ns: Ints = field(default_factory=_nothing)
    collective: str = ""
    host: HostState = field(default_factory=HostState)
    bound: bool = False

    @property
    def family(self) -> str:
        """What it shares with faults of which it is a part, or which are parts of it."""
        if self.kind is FaultKind.LAUNCH:
            return self.what or "launches"
        return "pauses" if self.kind is FaultKind.ITERATION and self.what else self.name
