"""Stages: what every rank of a stage computes takes longer than on the other stages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.explain.slowdown.replay import COMPUTING
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the stages that are slower than the others; hosts where these are all on one."""
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.stage_of_compute, minlength=len(effects.stages))
    roles = np.array([kind.role for kind in work.kinds], np.int64)[effects.stage_kind]
    out = effects.stands_out(effects.stage_effect, size) & np.isin(roles, COMPUTING)
    slow_stages = distinct(effects.stage_number[out]).tolist()
    for host, stages in _hosts(seen, slow_stages):
        yield _fault(seen, np.flatnonzero(out & np.isin(effects.stage_number, stages)), host)
        slow_stages = [stage for stage in slow_stages if stage not in stages]
    for stage in slow_stages:
        yield _fault(seen, np.flatnonzero(out & (effects.stage_number == stage)))


def _hosts(seen: Evidence, slow_stages: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield hosts that hold all ranks of several slow stages, and no other rank."""
    if not len(seen.host_of_rank) or len(slow_stages) < 2:
        return
    host = seen.host_of_rank[seen.work.rank]
    for one in distinct(host[np.isin(seen.work.stage, slow_stages)]).tolist():
        stages = distinct(seen.work.stage[host == one])
        alone = distinct(host[np.isin(seen.work.stage, stages)])
        if len(stages) > 1 and len(alone) == 1 and set(stages.tolist()) <= set(slow_stages):
            yield one, stages.tolist()


def _fault(seen: Evidence, slow_rows: Ints, host: int | None = None) -> Fault:
    effects, work = seen.effects, seen.work
    at = np.flatnonzero(np.isin(effects.stage_of_compute, slow_rows))
    rows = effects.rows[at]
    kinds, stage = effects.stage_kind[slow_rows], int(effects.stage_number[slow_rows[0]])
    ratios = effects.stage_effect[slow_rows].tolist()
    phases = tuple((seen.phase(k), r) for k, r in zip(kinds.tolist(), ratios, strict=True))
    return Fault(
        FaultKind.STAGE if host is None else FaultKind.HOST,
        f"stage-{stage}" if host is None else f"host-{host}",
        rows,
        1 / effects.stage_effect[effects.stage_of_compute[at]],
        ranks=tuple(distinct(work.rank[rows]).tolist()),
        stage=stage if host is None else None,
        phases=phases,
    )
