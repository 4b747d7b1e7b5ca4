"""Links that become slow during a run: the report names the link, the onset and the cost.

Each job is simulated with the slow link and with the repaired link. bubbleviz reads only the table
of the faulty job, with or without rows for sends and receives.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import bubbleviz
from bubbleviz.count.statistics import estimate_difference
from bubbleviz.explain.diagnosis.link_changes import LinkChange, find_link_changes
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.needs import get_real_file
from tests.support.pipeline_jobs import Job, simulate_job

JOB = Job(iterations=10, noise=0.02)
#: Faults that begin in iteration 5 and are not caused by a link.
OTHER_FAULTS: dict[str, dict[str, Any]] = {
    "no fault": {},
    "slow rank": {"slows": {1: (1.5, 5)}},
    "slow stage": {"slows": {2: (2.0, 5), 6: (2.0, 5)}},
    "all ranks slow": {"slows": dict.fromkeys(range(8), (1.4, 5))},
    "slow iterations": {"iteration": dict.fromkeys(range(5, 10), 2.0)},
    "late launches": {"late": {2: 20.0}, "late_every": 2},
    "pauses": {"pause": {2: 20.0}},
    "drift": {"drift": {1: 0.6}},
    "different lengths": {"lengths": 0.5},
}


def _find_changes(folder: Path, job: Job) -> tuple[LinkChange, ...]:
    report = bubbleviz.analyze(simulate_job(job).written(folder / "operations.csv"))
    source = report.explanation.slowdown_source
    assert source is not None
    return find_link_changes(source)


def _advise(path: Path) -> tuple[AdviceEntry, ...]:
    return write_all_advice(bubbleviz.analyze(path))


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "gpipe"])
@pytest.mark.parametrize("since", [3, 8])
def test_a_link_that_becomes_slow_is_named_with_its_onset_and_cost(
    schedule: str, since: int, messages: bool, tmp_path: Path
) -> None:
    healthy = replace(JOB, schedule=schedule, messages=messages)
    faulty = replace(healthy, link={(0, 1): 30.0}, link_since=since)
    faulty_job, healthy_job = simulate_job(faulty), simulate_job(healthy)
    saved = 1 - healthy_job.length_ns / faulty_job.length_ns

    advice = _advise(faulty_job.written(tmp_path / "operations.csv"))

    assert advice[0].place == "link-1-2"
    assert advice[0].since_iteration == since
    assert advice[0].iterations == 10 - since
    assert advice[0].saving_ratio == pytest.approx(saved, abs=0.02)
    assert f"of pipeline p0 has been slow since iteration {since}" in advice[0].text
    assert [entry.place for entry in advice if entry.kind == "link"] == ["link-1-2"]


@pytest.mark.parametrize("other", ["slow rank", "drift", "pauses"])
def test_a_link_is_not_blamed_for_what_other_faults_cost_since_it_changed(
    other: str, tmp_path: Path
) -> None:
    healthy = replace(JOB, noise=0.005, **OTHER_FAULTS[other])
    faulty = replace(healthy, link={(-1, 1): 25.0}, link_since=5)
    faulty_job = simulate_job(faulty)
    saved = 1 - simulate_job(healthy).length_ns / faulty_job.length_ns

    advice = _advise(faulty_job.written(tmp_path / "operations.csv"))

    link = next(entry for entry in advice if entry.place == "link-1-2")
    assert link.saving_ratio == pytest.approx(saved, abs=0.01)


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("name", OTHER_FAULTS)
def test_other_faults_are_not_mistaken_for_a_slow_link(
    name: str, messages: bool, tmp_path: Path
) -> None:
    assert _find_changes(tmp_path, replace(JOB, messages=messages, **OTHER_FAULTS[name])) == ()


def test_a_link_that_is_slow_from_the_start_has_not_changed(tmp_path: Path) -> None:
    assert _find_changes(tmp_path, replace(JOB, link={(-1, 1): 30.0})) == ()


def test_replicas_of_a_slow_link_share_one_fault(tmp_path: Path) -> None:
    faulty = replace(JOB, link={(-1, 1): 30.0}, link_since=4)

    advice = _advise(simulate_job(faulty).written(tmp_path / "operations.csv"))

    assert advice[0].place == "link-1-2"
    assert "replica" not in advice[0].text
    assert advice[0].ranks == (1, 2, 5, 6)


def test_a_link_that_was_slow_before_it_changed_has_one_fault(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, replicas=1, link={(-1, 1): 30.0}, link_since=5))
    always = simulate_job(replace(JOB, replicas=1, link={(-1, 1): 8.0}))
    rows = [row for row in always.rows if int(row["iteration"]) < 5]
    gap_ns = max(int(row["end_ns"]) for row in rows)
    late_rows = [row for row in job.rows if int(row["iteration"]) >= 5]
    shift_ns = max(gap_ns - min(int(row["start_ns"]) for row in late_rows) + 100_000, 0)
    for row in late_rows:
        row |= {name: int(row[name]) + shift_ns for name in row if name.endswith("_ns")}

    report = bubbleviz.analyze(replace(job, rows=rows + late_rows).written(tmp_path / "o.csv"))

    assert report.explanation.diagnosis is not None
    names = [f.faults[0].name for f in report.explanation.diagnosis.findings if len(f.faults) == 1]
    assert names.count("link-1-2") == 1


def test_all_transfers_are_not_advised_on_before_the_slow_link(tmp_path: Path) -> None:
    faulty = replace(JOB, replicas=1, link={(-1, 1): 5.0}, link_since=3)

    advice = _advise(simulate_job(faulty).written(tmp_path / "operations.csv"))

    assert [entry.place for entry in advice if entry.kind == "link"] == ["link-1-2"]


@pytest.mark.real_files
@pytest.mark.parametrize(
    ("name", "link", "since", "saved"),
    [
        ("pipemorph-1f1b-2_3-120ms", "2-3", "9", 0.487),
        ("pipemorph-zb-2_3-20ms", "2-3", "9", 0.092),
        ("link-from-5-of-10", "1-2", "5", 0.340),
        ("link-from-8-of-10", "1-2", "8", 0.171),
    ],
)
def test_delayed_links_of_recorded_runs_come_first(
    name: str, link: str, since: str, saved: float
) -> None:
    report = bubbleviz.analyze(get_real_file(f"cases/{name}.csv.gz"))
    advice = write_all_advice(report)

    assert [entry.place for entry in advice if entry.kind == "link"] == [f"link-{link}"]
    assert advice[0].place == f"link-{link}"
    assert advice[0].saving_ratio == pytest.approx(saved, abs=0.02)
    assert f"slow since iteration {since} (" in (describe_first_steps(report) or "")


def test_the_interval_of_a_difference_is_that_of_welchs_test() -> None:
    generator = np.random.default_rng(3)
    earlier, later = generator.normal(10, 1, 6), generator.normal(14, 2, 9)

    difference, half_width = estimate_difference(earlier, later)

    expected = stats.ttest_ind(later, earlier, equal_var=False).confidence_interval()
    assert difference == pytest.approx(later.mean() - earlier.mean())
    # Rounding the degrees of freedom down widens the interval slightly.
    assert half_width == pytest.approx((expected.high - expected.low) / 2, rel=0.02)
    assert half_width >= (expected.high - expected.low) / 2


def test_one_value_has_no_interval() -> None:
    assert estimate_difference(np.array([3.0]), np.array([5.0, 6.0])) == (2.5, None)


def test_equal_values_have_an_interval_of_zero() -> None:
    assert estimate_difference(np.array([3, 3]), np.array([5, 5])) == (2.0, 0.0)
