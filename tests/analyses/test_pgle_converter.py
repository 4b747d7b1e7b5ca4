"""What JAX's converter makes of the same exports, and why the costs differ where they do.

``plain_converter`` does what ``jax/tools/pgo_nsys_converter.py`` does with the report
``nvtx_kern_sum`` of ``nsys stats``: of every range around a kernel's call on its thread, and every
name of a kernel, the mean duration; of every instruction that a range names, the largest of these.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

from bubbleviz.analyses.pgle import measure_costs
from tests.support.xla_runs import FORMS, NCCL, Run, told

_OP = re.compile(r"hlo_op=(.*)#")
_KERNELS = """
SELECT n.text, s.value, k.end - k.start
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS c
  ON c.correlationId = k.correlationId AND c.globalTid / 0x1000000 = k.globalPid / 0x1000000
JOIN NVTX_EVENTS AS n
  ON n.globalTid = c.globalTid AND n.start <= c.start AND c.end <= n.end
JOIN StringIds AS s ON s.id = k.demangledName
"""


def plain_converter(export: Path) -> dict[str, float]:
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    with closing(sqlite3.connect(export)) as connection:
        for name, kernel, took in connection.execute(_KERNELS):
            durations[name, kernel].append(took)
    costs: dict[str, list[float]] = defaultdict(list)
    for (name, _), took in durations.items():
        if found := _OP.search(name):
            costs[found[1]].append(fmean(took) / 1000)
    return {name: max(means) for name, means in costs.items()}


Instructions = tuple[tuple[str, tuple[int, ...], str | None], ...]


def _run(*instructions: tuple[str, tuple[int, ...], str | None]) -> list[Instructions]:
    return [instructions] * 4


#: Of each case the instructions of each step, with what their kernels take.
CASES: dict[str, tuple[list[Instructions], dict[str, float], dict[str, float]]] = {
    "one kernel an instruction is what both take": (
        _run(("fusion.1", (700,), "gemm"), ("all-reduce.2", (90,), NCCL)),
        {"all-reduce.2": 0.09, "fusion.1": 0.7},
        {"all-reduce.2": 0.09, "fusion.1": 0.7},
    ),
    "kernels of one execution: they average them, we sum them": (
        _run(("fusion.1", (700, 200), "gemm")),
        {"fusion.1": 0.45},
        {"fusion.1": 0.9},
    ),
    "warm-up: they count it, we leave it out": (
        [(("fusion.1", (took,), "gemm"),) for took in (6300, 700, 700, 700)],
        {"fusion.1": 2.1},
        {"fusion.1": 0.7},
    ),
    "copies: they lose them, we count them": (
        _run(("copy.1", (300,), None), ("fusion.2", (10,), "gemm")),
        {"fusion.2": 0.01},
        {"copy.1": 0.3, "fusion.2": 0.01},
    ),
    "times that vary: they take the mean, we a percentile": (
        [(("fusion.1", (took,), "gemm"),) for took in (5, *range(100, 1100, 100))],
        {"fusion.1": 5505 / 11 / 1000},
        {"fusion.1": 0.9},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_where_they_differ(case: str, tmp_path: Path) -> None:
    steps, theirs, ours = CASES[case]
    run = Run()
    for instructions in steps:
        with run.module():
            for op, took, kernel in instructions:
                run.thunk(op, *took, kernel=kernel)
    export = run.written(tmp_path)

    assert plain_converter(export) == pytest.approx(theirs)
    assert told(measure_costs(export)) == ours


def test_instructions_inside_others_and_newer_names(tmp_path: Path) -> None:
    """Nested ones count twice for them, and their names hold the tail of newer ranges."""
    newest = next(form for form in FORMS if form.endswith("hlo_op={},unique_hlo_op_id=41#"))
    run = Run()
    for _ in range(3):
        with run.module(), run.range("Thunk:#hlo_op=while.1#"):
            run.launch(30)
            run.thunk("dot.2", 100, form=newest)
    export = run.written(tmp_path)

    assert plain_converter(export) == {"while.1": 0.065, "dot.2,unique_hlo_op_id=41": 0.1}
    assert told(measure_costs(export)) == {"while.1": 0.03, "dot.2": 0.1}
