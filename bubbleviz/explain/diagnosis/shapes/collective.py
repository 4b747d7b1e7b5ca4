"""Collectives: how long data moves in them, once their last member has entered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.explain.slowdown.replay import Role
from bubbleviz.model.grouping import rows_by_value


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield each kind of collective."""
    work = seen.work
    rows = np.flatnonzero((work.role >= Role.PARAMETERS) & (seen.own_ns > 0))
    for kind, at in rows_by_value(work.kind[rows]):
        name = work.kinds[kind].name
        yield Fault(
            FaultKind.COLLECTIVE,
            f"collective-{name}",
            rows[at],
            np.zeros(len(at)),
            what=name,
            bound=True,
        )
