"""Too few chunks in flight: the predicted saving equals that of a run with more chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.explain.diagnosis.findings import Finding
from bubbleviz.report.sentences import write_all_advice
from tests.support.forward_runs import UNIT_NS, Serving, simulate_serving, write_table

LENGTHS = (1.0,) * 48


def length_ns(run: Serving) -> int:
    return max(chunk.end_ns for chunk in simulate_serving(run))


def tokens(folder: Path, run: Serving) -> dict[str, Finding]:
    """Return the findings about chunks in flight, keyed by the number of additional chunks."""
    diagnosis = bubbleviz.analyze(write_table(folder, run)).explanation.diagnosis
    assert diagnosis is not None
    assert diagnosis.length_ns == length_ns(run) - run.host_ns
    findings = [f for f in diagnosis.findings if f.faults[0].kind == "token"]
    return {f.faults[0].detail: f for f in findings}


def test_with_enough_chunks_in_flight_nothing_waits_for_a_token(tmp_path: Path) -> None:
    assert tokens(tmp_path, Serving(LENGTHS)) == {}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_savings_are_those_of_a_deeper_pipeline(tmp_path: Path, depth: int) -> None:
    run = Serving(LENGTHS, depth=depth)
    findings = tokens(tmp_path, run)

    assert findings["one"].saving_ns == length_ns(run) - length_ns(
        Serving(LENGTHS, depth=depth + 1)
    )
    assert findings["enough"].saving_ns == length_ns(run) - length_ns(Serving(LENGTHS))
    assert findings["one"].faults[0].phases == (("", float(depth)),)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_late_host_delays_the_pipeline_once(tmp_path: Path, depth: int) -> None:
    run = Serving(LENGTHS, depth=depth, host_ns=300_000)
    diagnosis = bubbleviz.analyze(write_table(tmp_path, run)).explanation.diagnosis
    assert diagnosis is not None
    assert diagnosis.length_ns == length_ns(run) - run.host_ns
    (late_finding,) = [f for f in diagnosis.findings if f.faults[0].kind == "launch"]

    in_time = replace(run, host_ns=0)
    assert late_finding.saving_ns == diagnosis.length_ns - length_ns(in_time)
    assert late_finding.faults[0].ranks == (0,)


def test_savings_approximate_those_of_a_deeper_pipeline_if_hosts_are_late(tmp_path: Path) -> None:
    run = Serving(LENGTHS, depth=2, host_ns=300_000)
    findings = tokens(tmp_path, run)

    deeper = replace(run, depth=3)
    saved_ns = length_ns(run) - length_ns(deeper)
    assert findings["one"].saving_ns == pytest.approx(saved_ns, rel=0.1)


def test_advice_says_how_many_chunks_are_in_flight(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_table(tmp_path, Serving(LENGTHS, depth=2)))
    first_two = write_all_advice(report)[:2]

    assert [advice.kind for advice in first_two] == ["token", "token"]
    assert sorted(advice.action for advice in first_two) == [
        "Keep more chunks in flight",
        "Keep one more chunk in flight",
    ]
    assert all("with 2 chunks in the pipeline" in advice.evidence for advice in first_two)


def test_savings_of_overlapping_iterations_are_relative_to_the_period(tmp_path: Path) -> None:
    """The period is the time that the slowest stage computes for one iteration."""
    run = Serving(LENGTHS, stages=(1.0, 1.0, 1.5, 1.0))
    iteration = [chunk.number // 8 for chunk in simulate_serving(run)]
    report = bubbleviz.analyze(write_table(tmp_path, run, iteration=iteration))
    diagnosis = report.explanation.diagnosis
    assert diagnosis is not None
    finding = diagnosis.findings[0]

    assert report.headline == "period"
    assert diagnosis.length_ns == 8 * 1.5 * UNIT_NS
    assert finding.faults[0].ranks == (2,)
    # If layers move, every stage takes 1.125 units per chunk.
    assert finding.saving_ratio == pytest.approx(1 - 1.125 / 1.5, abs=0.04)
