"""Planted causes of idle time in forward-only runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from tests.support.forward_runs import (
    UNIT_NS,
    Serving,
    compute_idle_shares,
    simulate_serving,
    write_table,
)

EVEN = (1.0,) * 24


def report_of(folder: Path, run: Serving) -> Report:
    return bubbleviz.analyze(write_table(folder, run))


def causes_of(report: Report) -> list[dict[str, int]]:
    """Return the idle time of each rank, keyed by cause, without causes that did not occur."""
    times = report.explanation.causes
    ranks = report.iteration(0).ranks.rank
    columns = times.columns("schedule", 0, ranks)
    return [{c: ns[row] for c, ns in columns.items() if ns[row]} for row in range(len(ranks))]


def test_a_single_chunk_on_a_single_stage_waits_for_nothing(tmp_path: Path) -> None:
    folder_run = Serving((1.0,), stages=(1.0,))
    report = report_of(tmp_path, folder_run)

    assert report.kind == "inference"
    assert causes_of(report) == [{}]
    assert report.summary.bubble_ratio["schedule"].mean == 0


def test_equal_chunks_on_equal_stages_only_fill_and_drain(tmp_path: Path) -> None:
    report = report_of(tmp_path, Serving(EVEN))

    ratio = report.summary.bubble_ratio["schedule"].mean
    assert ratio == pytest.approx(3 / 27)
    for stage, causes in enumerate(causes_of(report)):
        assert causes.get("warmup", 0) == stage * UNIT_NS
        assert causes.get("drain", 0) == (3 - stage) * UNIT_NS
        assert set(causes) <= {"warmup", "drain"}
    # There is no alternative schedule for forward-only runs.
    advice = describe_first_steps(report)
    assert advice is not None
    assert "More requests, or more chunks in flight" in advice
    assert "--what-if" not in advice


def test_a_slow_stage_makes_later_stages_wait(tmp_path: Path) -> None:
    first, second, third, last = causes_of(report_of(tmp_path, Serving(EVEN, (1.0, 1.5, 1.0, 1.0))))

    assert set(first) | set(second) <= {"warmup", "drain"}
    assert third["stages"] == 23 * UNIT_NS // 2
    # The last stage is as fast as the third, so it has the same waits.
    assert last["stages"] == 23 * UNIT_NS // 2
    assert "chunks" not in third | last


def test_longer_chunks_make_every_later_stage_wait(tmp_path: Path) -> None:
    lengths = (1.0, 1.0, 3.0, 3.0, 3.0)
    _, second, third, last = causes_of(report_of(tmp_path, Serving(lengths)))

    # Every stage on the way delays the first long chunk by another two units.
    waits = [causes["chunks"] for causes in (second, third, last)]
    assert waits == [2 * UNIT_NS, 4 * UNIT_NS, 6 * UNIT_NS]
    assert not {"stages", "dependency"} & set(second | third | last)


def test_one_request_at_a_time_waits_for_its_token(tmp_path: Path) -> None:
    run = Serving(EVEN, depth=1, host_ns=20_000)
    for stage, causes in enumerate(causes_of(report_of(tmp_path, run))):
        assert causes["token"] == 23 * 3 * UNIT_NS, stage
        assert causes["host"] == 23 * 20_000


def test_the_host_is_the_cause_if_the_token_had_returned(tmp_path: Path) -> None:
    run = Serving(EVEN, stages=(1.0, 1.0), depth=2, host_ns=300_000)
    first, second = causes_of(report_of(tmp_path, run))

    assert first["host"] + first.get("token", 0) == second["host"] + second.get("token", 0)
    assert first["host"] == 11 * 300_000


def test_transfers_are_the_cause_while_data_moves(tmp_path: Path) -> None:
    chunks = simulate_serving(Serving(EVEN, depth=1, transfer_ns=50_000))
    receives = {
        "received_ns": [0 if c.stage == 0 else c.start_ns for c in chunks],
        "receive_start_ns": [0 if c.stage == 0 else c.start_ns - 50_000 for c in chunks],
        "receive_launched_ns": [0 if c.stage == 0 else c.start_ns - 60_000 for c in chunks],
    }
    path = write_table(tmp_path, Serving(EVEN, depth=1, transfer_ns=50_000), **receives)
    causes = causes_of(bubbleviz.analyze(path))

    assert causes[1]["communication"] == 23 * 50_000


def test_an_empty_pipeline_has_no_requests(tmp_path: Path) -> None:
    arrivals = [(number // 8) * 30 * UNIT_NS for number in range(24)]
    run = Serving(EVEN, arrivals_ns=arrivals)
    for stage, causes in enumerate(causes_of(report_of(tmp_path, run))):
        assert causes["requests"] == 2 * 22 * UNIT_NS, stage
        assert not {"token", "dependency", "stages", "chunks"} & set(causes)


def test_a_short_pause_is_no_lack_of_requests(tmp_path: Path) -> None:
    arrivals = [0, 0, 0, 0, 8 * UNIT_NS, 8 * UNIT_NS]
    first, *_ = causes_of(report_of(tmp_path, Serving((1.0,) * 6, arrivals_ns=arrivals)))

    assert "requests" not in first


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from((0.1, 0.5, 1.0, 2.0, 3.0)), min_size=1, max_size=9),
    st.lists(st.sampled_from((0.5, 1.0, 1.0, 2.0)), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from((0, 10_000, 700_000)),
    st.sampled_from((0, 30_000)),
)
def test_causes_add_up_and_shares_are_those_of_slow_code(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[float],
    stages: list[float],
    depth: int,
    host_ns: int,
    transfer_ns: int,
) -> None:
    run = Serving(lengths, stages, transfer_ns, depth, host_ns)
    chunks = simulate_serving(run)
    columns = {"stage": [c.stage for c in chunks]}
    report = bubbleviz.analyze(write_table(tmp_path_factory.mktemp("run"), run, **columns))
    expected = compute_idle_shares(chunks)
    for rank in report.iteration(0).ranks:
        assert rank.bubble_ratio["schedule"] == pytest.approx(expected[rank.rank], abs=1e-12)
        for name, account in rank.accounts.items():
            idle_ns = report.explanation.causes.idle_ns[name][0, rank.rank]
            assert idle_ns.sum() == account.bubble_ns
            assert idle_ns.min() >= 0
