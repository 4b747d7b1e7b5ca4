"""Replayed ranks: large runs are replayed by the pipelines that bound their iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain import stretch as module
from bubbleviz.explain.stretch import replayed_ranks
from bubbleviz.report.report import Report
from tests.support.operation_tables import csv_of

_STAGES, _MICROBATCHES, _ITERATIONS = 2, 3, 2
_REPLAYED = "critical path, slack, what-if and advice"


def _run(folder: Path, pipelines: int, slow: int = -1, *, known: bool = True) -> Report:
    """Return the report on pipelines of two stages, of which one takes half as long again.

    ::

        stage 0   ├F0┤        ├─B0─┤ ├F1┤ ...
        stage 1       ├F0┤├B0┤
    """
    rows = []
    for pipeline in range(pipelines):
        took_us = 30 if pipeline == slow else 20
        for number in range(_ITERATIONS * _MICROBATCHES):
            iteration, microbatch = divmod(number, _MICROBATCHES)
            for place, (stage, phase) in enumerate(((0, "F"), (1, "F"), (1, "BW"), (0, "BW"))):
                start_us = 2000 * iteration + (4 * microbatch + place) * took_us
                key = pipeline * _STAGES + stage, stage, pipeline, iteration, microbatch, phase
                rows.append((*key, start_us, start_us + took_us))
    names = ("rank", "stage", "pipeline", "iteration", "microbatch", "phase", "start_us", "end_us")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if not known:
        del columns["pipeline"]
    return bubbleviz.analyze(csv_of(folder / "run.csv", columns))


def _chosen(report: Report) -> list[int] | None:
    """Return the pipelines that are replayed; None for all."""
    averaged = np.ones(_ITERATIONS, bool)
    found = replayed_ranks(report.operations, report.ranks, averaged)
    return None if found is None else np.flatnonzero(found.chosen[::_STAGES]).tolist()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs of more than 30 forwards and backwards replayed in part."""
    monkeypatch.setattr(module, "MOST_REPLAYED_RANKS", 30)


def test_small_runs_are_replayed_whole(tmp_path: Path) -> None:
    report = _run(tmp_path, 8, slow=5)
    assert _chosen(report) is None
    assert report.explanation.replayed_ranks is None
    assert not [note for note in report.limitations if note.what == _REPLAYED]
    nothing = report.operations.take(slice(0))
    assert replayed_ranks(nothing, report.ranks, np.zeros(0, bool)) is None
    assert replayed_ranks(nothing, (), np.zeros(0, bool)) is None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("pipelines", "slow", "known", "chosen"),
    [
        (8, 5, True, [0, 1, 4, 5]),
        (9, -1, True, [0, 1, 2, 5]),  # of equal ones the first
        (8, -1, False, None),
        (4, -1, True, None),  # as few as would be replayed
    ],
)
def test_the_slowest_are_replayed_and_some_of_the_others(
    pipelines: int, slow: int, known: bool, chosen: list[int] | None, tmp_path: Path
) -> None:
    assert _chosen(_run(tmp_path, pipelines, slow, known=known)) == chosen


def test_the_part_shows_what_the_whole_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _run(tmp_path, 12, slow=7)
    monkeypatch.setattr(module, "MOST_REPLAYED_RANKS", 30)
    part = _run(tmp_path, 12, slow=7)
    (note,) = [note for note in part.limitations if note.what == _REPLAYED]
    assert note.reason.startswith("4 pipelines of 12 are replayed: the slowest,")
    first, second = part.explanation, whole.explanation
    assert first.path is not None
    assert second.path is not None
    assert first.path.operations.tolist() == second.path.operations.tolist()
    assert first.path.parts == second.path.parts
    replayed = first.path.slack_ns >= 0
    assert 0 < replayed.sum() < (second.path.slack_ns >= 0).sum()
    assert (first.path.slack_ns == second.path.slack_ns)[replayed].all()
    # The mean of all stages is that of those which are replayed.
    assert [w.makespan_ns for w in first.what_if if w.name != "balanced"] == [
        w.makespan_ns for w in second.what_if if w.name != "balanced"
    ]
    assert first.diagnosis is not None
    assert second.diagnosis is not None
    assert [
        (finding.faults[0].name, finding.faults[0].ranks, finding.saving_ns)
        for finding in first.diagnosis.findings
    ] == [
        (finding.faults[0].name, finding.faults[0].ranks, finding.saving_ns)
        for finding in second.diagnosis.findings
    ]
    assert first.causes.idle_ns.keys() == second.causes.idle_ns.keys()
    for name, idle_ns in first.causes.idle_ns.items():
        assert (idle_ns == second.causes.idle_ns[name]).all()
