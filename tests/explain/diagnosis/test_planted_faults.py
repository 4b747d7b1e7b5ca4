"""Planted faults: the first piece of advice names the fault and predicts the saving correctly.

The true saving is measured on the same run planted without faults. ``test_promises.py`` covers
faults that tables of operations can represent.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.explain.diagnosis.findings import Diagnosis
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.planting import Planting
from tests.support.planted_runs import analyze_planting

pytestmark = pytest.mark.thorough

BASE = Planting(
    stages=4, replicas=4, iterations=4, servers=2, barrier=True, jitter=0.02, transfer_ns=20_000
)
LONG = replace(BASE, iterations=12, replicas=1, servers=1)
REDUCING = replace(BASE, reduce_ns=300_000)
NORMED = replace(BASE, norm_ns=100_000)
APART = replace(BASE, barrier=False, replicas=1)
PAIR = replace(BASE, replicas=2)
ONE_RANK = replace(BASE, stages=1, replicas=1, servers=1, jitter=0.0, kernels=5)


def _report(planting: Planting) -> Report:
    return analyze_planting(planting, parallel=Parallel(1, planting.stages, planting.replicas))


def _diagnosis(planting: Planting) -> Diagnosis:
    diagnosis = _report(planting).explanation.diagnosis
    assert diagnosis is not None
    return diagnosis


def _first(planting: Planting) -> AdviceEntry:
    return write_all_advice(_report(planting))[0]


#: (run, planted fault, kind of the first advice, part of its text).
FAULTS: list[tuple[Planting, dict[str, Any], str, str]] = [
    (
        BASE,
        {"pause_device": 9, "pause_every": 2},
        "iteration",
        "individual operations of node0 GPU 6 (pipeline order 9) are slow in 2 iterations (0, 2)",
    ),
    (
        BASE,
        {"late_stage": 1, "late_ns": 400_000},
        "launch",
        "Launch operations earlier on ranks 1, 5, 9, 13 in pipeline order (-",
    ),
    (
        APART,
        {"late_optimizer": 0, "late_optimizer_ns": 2_000_000},
        "launch",
        "Launch operations earlier on node0 GPU 0 (pipeline order 0)",
    ),
    (
        NORMED,
        {"late_optimizer": 0, "late_optimizer_ns": 2_000_000},
        "launch",
        "Launch operations earlier on node0 GPU 0 (pipeline order 0)",
    ),
    (
        REDUCING,
        {"late_reducer": 1, "late_reduce_ns": 2_000_000, "stall_range": "gc.collect"},
        "launch",
        "Launch ReduceScatter earlier on node0 GPU 1 (pipeline order 4), where the launching "
        "thread is ",
    ),
    (
        REDUCING,
        {"late_reducer": 1, "late_reduce_ns": 2_000_000},
        "launch",
        "Launch ReduceScatter earlier on node0 GPU 1 (pipeline order 4) (-",
    ),
    (
        # The other rank of the late collective starts the next iteration later, but is not late.
        replace(APART, schedule="zb-h1", replicas=2, servers=1, reduce_ns=300_000),
        {"late_reducer": 5, "late_reduce_ns": 5_000_000},
        "launch",
        "Launch ReduceScatter earlier on node0 GPU 5 (pipeline order 6) (-",
    ),
    (
        # Data crosses a link of a V-shaped pipeline in both directions, for both chunks.
        replace(NORMED, schedule="zb-v", replicas=1, servers=1, transfer_ns=100_000),
        {"slow_link": 1, "slow_link_factor": 10.0},
        "link",
        "Find out why the link between stages 1 and 2 is slow",
    ),
    (
        BASE,
        {"pause_device": 9, "pause_every": 2, "pause_dry": True, "stall_range": "gc.collect"},
        "iteration",
        "They take 5.96x the usual time; in the longest, the launching thread is inside "
        "'gc.collect' but not in an API call",
    ),
]


@pytest.mark.parametrize(("without", "faults", "kind", "words"), FAULTS)
def test_a_fault_is_named_first_with_its_true_saving(
    without: Planting, faults: dict[str, Any], kind: str, words: str
) -> None:
    planted = replace(without, **faults)
    first = _first(planted)

    assert first.kind == kind
    assert words in first.text
    assert first.text == describe_first_steps(_report(planted))
    truth_ns = _diagnosis(planted).length_ns - _diagnosis(without).length_ns
    length_ns = _diagnosis(planted).length_ns
    assert first.saving_ns is not None
    assert abs(first.saving_ns - truth_ns) < 0.02 * length_ns
    assert first.saving_ns > 0.5 * truth_ns


@pytest.mark.parametrize("planting", [BASE, LONG, replace(BASE, jitter=0.1, transfer_ns=0)])
def test_without_a_fault_the_schedule_is_the_reason(planting: Planting) -> None:
    assert str(describe_first_steps(_report(planting))).startswith("The schedule itself")


def test_two_slow_ranks_of_a_tensor_group_share_a_sentence() -> None:
    slow = Planting(schedule="zb-h1", tensor=2, replicas=3, stages=4, slow_rank=5, kernels=1)
    report = analyze_planting(slow, parallel=Parallel(2, 4, 3))

    first = str(describe_first_steps(report))

    assert write_all_advice(report)[0].kind == "rank+rank"
    assert re.match(r"Find out why node0 GPU 8 \(.*\) and node0 GPU 9 \(.*\) are slow \(-", first)
    assert first.count("the other ranks of stage 1, in 2 of 2 iterations") == 1
    assert first.endswith("Check clocks, temperature, cooling and other jobs there")


@pytest.mark.parametrize("iterations", [1, 3])
def test_ranks_that_are_equally_slow_in_all_iterations_are_not_named(iterations: int) -> None:
    """The minimum over F and B varies by chance, but the total time of a microbatch does not."""
    even = Planting(stages=24, microbatches=24, kernels=1, jitter=0.1, iterations=iterations)
    report = analyze_planting(even)

    assert "iteration" not in {advice.kind for advice in write_all_advice(report)}
    assert str(describe_first_steps(report)).startswith("The schedule itself")


@pytest.mark.parametrize(("device", "index"), [(3, 1), (7, 3), (0, 5)])
def test_advice_on_a_rank_out_of_order_predicts_the_saving_of_the_right_order(
    device: int, index: int
) -> None:
    swapped = replace(PAIR, swapped_device=device, swapped_at=index)
    report = _report(swapped)
    first = write_all_advice(report)[0]
    (out_of_order,) = {
        rank.index
        for rank in report.ranks
        if (rank.stage, rank.pipeline) == stage_and_pipeline(device)
    }

    assert first.kind == "order"
    assert first.ranks == (out_of_order,)
    assert first.stage == device % PAIR.stages
    assert first.iterations == PAIR.iterations
    assert first.text == describe_first_steps(report)
    assert "in the order of 1f1b (-" in first.text
    assert "4 operations in 4 iterations ran out of order" in first.text
    truth_ns = _diagnosis(swapped).length_ns - _diagnosis(PAIR).length_ns
    assert first.saving_ns == pytest.approx(truth_ns, rel=0.02)


def test_a_rank_that_receives_in_a_different_order_than_is_sent_is_replayed() -> None:
    swapped = replace(PAIR, swapped_device=0, swapped_at=13)
    first = _first(swapped)

    assert first.kind == "order"
    length_ns = _diagnosis(swapped).length_ns
    truth_ns = length_ns - _diagnosis(PAIR).length_ns
    assert first.saving_ns is not None
    assert first.saving_ns == pytest.approx(truth_ns, abs=0.002 * length_ns)
    assert first.saving_ns > 0.02 * length_ns


def test_all_savings_are_shares_of_the_same_length() -> None:
    swapped = replace(PAIR, swapped_device=3, swapped_at=1, late_stage=1, late_ns=400_000)
    advice = write_all_advice(_report(swapped))
    length_ns = _diagnosis(swapped).length_ns

    assert {"order", "launch"} <= {entry.kind for entry in advice}
    for entry in advice:
        assert entry.saving_ns is not None
        assert f"take {round(length_ns - entry.saving_ns) / 1e6:,.3f} ms, " in entry.text
        assert entry.saving_ratio == pytest.approx(entry.saving_ns / length_ns)


def stage_and_pipeline(device: int) -> tuple[int, int]:
    """Return the (stage, pipeline) of a planted device."""
    return device % PAIR.stages, device // PAIR.stages


def test_an_order_that_costs_nothing_is_no_advice() -> None:
    report = _report(replace(PAIR, swapped_device=1, swapped_at=3))

    assert report.schedule is not None
    assert report.schedule.deviation_count == PAIR.iterations
    assert "order" not in {advice.kind for advice in write_all_advice(report)}


@pytest.mark.parametrize("ranks", [1, 8])
def test_advice_on_launch_gaps_predicts_the_saving_without_them(ranks: int) -> None:
    """Gaps are parts of operations. Without gaps, each operation is shorter by four gaps."""
    gap_ns, replicas = 60_000, ranks // 4
    even = replace(BASE, jitter=0.0, kernels=5, replicas=replicas) if replicas else ONE_RANK
    gaps = replace(even, kernel_gap_ns=gap_ns)
    shorter = {
        name: getattr(even, name) - 4 * gap_ns
        for name in ("forward_ns", "backward_ns", "optimizer_ns")
    }
    (advice,) = [a for a in write_all_advice(_report(gaps)) if a.kind == "launch-gaps"]

    truth_ns = _diagnosis(gaps).length_ns - _diagnosis(replace(even, **shorter)).length_ns
    assert advice.saving_ns == pytest.approx(truth_ns, rel=0.02)
    assert advice.ranks == tuple(range(ranks))
    assert advice.text.startswith("Launch fewer, larger kernels inside operations (fused")
    assert not [a for a in write_all_advice(_report(even)) if a.kind == "launch-gaps"]


def test_two_faults_are_distinguished() -> None:
    planted = replace(BASE, slow_rank=6, slow_stage=1, slow_factor=1.3)
    first = _first(planted)
    # The slow rank hides the slow stage, so fixing the stage alone saves no time.
    assert first.kind == "rank+stage"
    assert "node1 GPU 1 (pipeline order 6) is slow" in first.text
    assert "layers off stage 1" in first.text
    # The additional work of the slow stage is spread evenly.
    times = ("forward_ns", "backward_ns", "weight_ns")
    fixed = replace(BASE, **{name: round((1 + 0.3 / 4) * getattr(BASE, name)) for name in times})
    truth_ns = _diagnosis(planted).length_ns - _diagnosis(fixed).length_ns
    assert first.saving_ns == pytest.approx(truth_ns, rel=0.02)


def test_the_json_lists_the_largest_saving_first() -> None:
    from bubbleviz.render.json_document import make_document

    report = _report(replace(BASE, slow_rank=6))
    document = json.loads(json.dumps(make_document(report)))
    assert document["what_to_do_first"] == describe_first_steps(report)
    savings = [advice["saving_ns"] for advice in document["advice"]]
    assert savings
    assert savings == sorted(savings, reverse=True)
    assert document["advice"][0]["ranks"] == [6]
    assert document["advice"][0]["stage"] == 2


def test_a_regular_cost_is_ranked_by_its_saving() -> None:
    """The gradient norm takes time in every iteration, and one iteration is slow."""
    slow = replace(LONG, schedule="zb-v", iterations=8, slow_iteration=0)
    normed = replace(slow, norm_ns=2_000_000)
    report = _report(normed)
    advice = write_all_advice(report)

    assert [entry.kind for entry in advice] == ["collective", "iteration"]
    savings_ns = [entry.saving_ns for entry in advice if entry.saving_ns is not None]
    assert savings_ns[0] > savings_ns[1]
    assert advice[0].text == describe_first_steps(report)
    truth_ns = _diagnosis(normed).length_ns - _diagnosis(slow).length_ns
    assert advice[0].saving_ns == pytest.approx(truth_ns, rel=0.02)


def test_a_slow_iteration_hides_no_drift() -> None:
    drifting = replace(LONG, iterations=8, jitter=0.0, drift=0.2)
    drifting_and_slow = replace(drifting, slow_iteration=3)
    advice = {entry.kind: entry for entry in write_all_advice(_report(drifting_and_slow))}

    assert set(advice) == {"drift", "iteration"}
    assert "in 1 iteration (3)" in advice["iteration"].text
    assert advice["drift"].measure[0][1] == pytest.approx(1.2, rel=0.01)
    length_ns = _diagnosis(drifting_and_slow).length_ns
    for kind, without in (
        ("iteration", drifting),
        ("drift", replace(drifting_and_slow, drift=0.0)),
    ):
        truth_ns = length_ns - _diagnosis(without).length_ns
        assert advice[kind].saving_ns == pytest.approx(truth_ns, abs=0.02 * length_ns)


def test_the_profiler_delays_only_work_that_does_not_wait_for_input() -> None:
    """The overhead fills half of each rank's longest gap, which is mostly a wait for input."""
    base = replace(APART, jitter=0.0)
    late_planting = replace(base, late_optimizer=0, late_optimizer_ns=9_000_000)

    assert describe_first_steps(_report(replace(base, overhead=True))) == describe_first_steps(
        _report(base)
    )
    profiler, launch = write_all_advice(_report(replace(late_planting, overhead=True)))
    assert profiler.text.startswith("Record less")
    assert profiler.saving_ns == pytest.approx(late_planting.late_optimizer_ns / 2, rel=0.01)
    assert launch.saving_ns == pytest.approx(late_planting.late_optimizer_ns / 2, rel=0.01)
