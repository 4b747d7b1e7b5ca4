"""Writes pipeline dumps in the layout of AMD's Primus, from planted schedules.

The layout follows ``dump_pp_data`` in primus/modules/trainer/megatron/utils.py of AMD-AGI/Primus:
milliseconds since the rank began the iteration, and lists in the order in which passes ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.model.phases import Phase
from tests.planting.orders import Plan, make_plan
from tests.planting.programs import Simulation, simulate
from tests.support.stage_times import make_durations

#: Prefix of the lists that contain a phase.
_PREFIXES = {Phase.F: "fwd", Phase.B: "bwd", Phase.BW: "bwd", Phase.W: "wgrad"}
_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class DumpedRun:
    """A dumped run and its truth.

    Attributes:
        folder: Folder of the files.
        schedule_ratios: True ratio ``schedule`` of each iteration.
    """

    folder: Path
    schedule_ratios: tuple[float, ...]

    def rank_file(self, rank: int) -> Path:
        return self.folder / f"pp_rank_{rank}.json"


def write_dumped_run(
    folder: Path,
    schedule: str,
    p: int,
    m: int,
    v: int = 1,
    *,
    slow: Sequence[int] = (1, 1, 1),
    is_numbered: bool = False,
    transfer_ns: int = 0,
) -> DumpedRun:
    """Write the dump of a run, and return its truth.

    Args:
        folder: Output folder, created if necessary.
        schedule: Name of a planted schedule.
        p: Number of pipeline ranks.
        m: Number of microbatches.
        v: Number of model chunks per rank.
        slow: For each iteration, the factor of all times.
        is_numbered: Whether to write microbatches and chunks, as Primus's own schedules do.
        transfer_ns: Time of each transfer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(schedule, p, m, v)
    ranks: list[dict[str, Any]] = [{} for _ in range(p)]
    ratios = []
    for number, factor in enumerate(slow):
        times = [factor * ms * _NS_PER_MS for ms in (3, 2, 2)]
        simulation = simulate([plan], make_durations(*times), transfer_ns=transfer_ns)
        for rank in range(p):
            ranks[rank][str(number + 1)] = _list_passes(simulation, plan, rank, is_numbered)
        work_ns = int((simulation.end_ns - simulation.start_ns).sum())
        window_ns = int(simulation.end_ns.max() - simulation.start_ns.min())
        ratios.append(1 - work_ns / (p * window_ns))
    for rank, iterations in enumerate(ranks):
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(iterations, indent=2))
    sizes = {"world_size": p, "dp_size": 1, "tp_size": 1, "ep_size": 1, "pp_size": p}
    config = sizes | {"vp_size": v, "num_mbs": m, "train_iters": len(slow)}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return DumpedRun(folder, tuple(ratios))


def _list_passes(
    simulation: Simulation, plan: Plan, rank: int, is_numbered: bool
) -> dict[str, Any]:
    """Return a rank's passes in one iteration, as Primus writes them."""
    tasks = simulation.take(simulation.device == rank)
    passes: dict[str, Any] = {"total": float(tasks.end_ns.max() / _NS_PER_MS), "memory": 24.5}
    for prefix in ("fwd", "bwd", "wgrad"):
        phases = [phase for phase, name in _PREFIXES.items() if name == prefix]
        rows = tasks.take(np.isin(tasks.phase, phases))
        chunks = [plan.chunk_of(stage) for stage in rows.virtual_stage.tolist()]
        passes[f"{prefix}_start"] = (rows.start_ns / _NS_PER_MS).tolist()
        passes[f"{prefix}_end"] = (rows.end_ns / _NS_PER_MS).tolist()
        passes[f"{prefix}_minibatch"] = rows.microbatch.tolist() if is_numbered else []
        passes[f"{prefix}_chunk"] = chunks if is_numbered else []
    return passes
