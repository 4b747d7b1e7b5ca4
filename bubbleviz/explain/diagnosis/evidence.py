"""Evidence: what faults are looked for in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.diagnosis.effects import Effects
from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.values import frozen


@frozen(eq=False, shown=False)
class Evidence:
    """A run, its effects, and what is known beyond times.

    Attributes:
        work: of all ranks, in the iterations that count.
        own_ns: how long each row took itself; of communication, its transfer.
        effects: of the computes.
        host_of_rank: number of the host of each rank; empty where hosts are unknown.
        late_ns: how late each row started since the host had not launched it; 0 elsewhere.
        profiler_ns: likewise since the profiler held its process up.
    """

    work: Work
    own_ns: Ints
    effects: Effects
    host_of_rank: Ints
    late_ns: Ints
    profiler_ns: Ints

    def phase(self, kind: int) -> str:
        """Return the phase that a kind of work is reported under."""
        return self.work.kinds[kind].phase


def slow(
    kind: FaultKind,
    name: str,
    rows: Ints,
    scale: Floats,
    *,
    ranks: Sequence[int] = (),
    stage: int | None = None,
    link: tuple[int, int] | None = None,
    microbatches: Sequence[tuple[int, int]] = (),
    iterations: Sequence[int] = (),
    phases: Sequence[tuple[str, float]] = (),
    what: str = "",
    bound: bool = False,
) -> Fault:
    """Return a fault that makes rows take longer."""
    none = np.zeros(0, np.int64)
    return Fault(
        kind, name, tuple(ranks), stage, link, tuple(microbatches), tuple(iterations),
        tuple(phases), what, rows, scale, none, none, bound,
    )  # fmt: skip
