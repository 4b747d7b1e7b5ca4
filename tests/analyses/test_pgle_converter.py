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


def _run(*instructions: tuple[str, tuple[int, ...], str | None], first: int = 1) -> Run:
    run = Run()
    for step in range(4):
        with run.module():
            for op, took, kernel in instructions:
                own = [each * (first if step == 0 else 1) for each in took]
                run.thunk(op, *own, kernel=kernel)
    return run


def test_the_converter_takes_what_one_kernel_takes_and_so_do_we(tmp_path: Path) -> None:
    export = _run(("fusion.1", (700,), "gemm"), ("all-reduce.2", (90,), NCCL)).written(tmp_path)

    assert plain_converter(export) == told(measure_costs(export))
    assert plain_converter(export) == {"all-reduce.2": 0.09, "fusion.1": 0.7}


@pytest.mark.parametrize(
    ("run", "theirs", "ours"),
    [
        pytest.param(
            _run(("fusion.1", (700, 200), "gemm")),
            {"fusion.1": 0.45},
            {"fusion.1": 0.9},
            id="kernels of one execution: they average them, we sum them",
        ),
        pytest.param(
            _run(("fusion.1", (700,), "gemm"), first=9),
            {"fusion.1": 2.1},
            {"fusion.1": 0.7},
            id="warm-up: they count it, we leave it out",
        ),
        pytest.param(
            _run(("copy.1", (300,), None), ("fusion.2", (10,), "gemm")),
            {"fusion.2": 0.01},
            {"copy.1": 0.3, "fusion.2": 0.01},
            id="copies: they lose them, we count them",
        ),
    ],
)
def test_where_they_differ(
    run: Run, theirs: dict[str, float], ours: dict[str, float], tmp_path: Path
) -> None:
    export = run.written(tmp_path)

    assert plain_converter(export) == pytest.approx(theirs)
    assert told(measure_costs(export)) == ours


def test_nested_instructions_count_twice_for_them(tmp_path: Path) -> None:
    run = Run()
    for _ in range(3):
        with run.module(), run.range("Thunk:#hlo_op=while.1#"):
            run.launch(30)
            run.thunk("dot.2", 100)
    export = run.written(tmp_path)

    assert plain_converter(export) == {"while.1": 0.065, "dot.2": 0.1}
    assert told(measure_costs(export)) == {"while.1": 0.03, "dot.2": 0.1}


def test_times_that_vary_are_their_mean_and_our_percentile(tmp_path: Path) -> None:
    run = Run()
    for took in (5, *range(100, 1100, 100)):
        with run.module():
            run.thunk("fusion.1", took)
    export = run.written(tmp_path)

    assert plain_converter(export) == pytest.approx({"fusion.1": 5505 / 11 / 1000})
    assert told(measure_costs(export)) == {"fusion.1": 0.9}
    assert told(measure_costs(export, aggregate="mean")) == {"fusion.1": 0.55}


def test_their_names_hold_the_tail_of_newer_ranges(tmp_path: Path) -> None:
    newest = next(form for form in FORMS if form.endswith("hlo_op={},unique_hlo_op_id=41#"))
    run = Run()
    for _ in range(3):
        with run.module():
            run.thunk("fusion.1", 50, form=newest)
    export = run.written(tmp_path)

    assert [name.endswith(",unique_hlo_op_id=41") for name in plain_converter(export)] == [True]
    assert told(measure_costs(export)) == {"fusion.1": 0.05}
