"""Replayed ranks: large runs are replayed by the pipelines that bound their iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.explain import replayed_ranks as module
from bubbleviz.report.report import Report
from tests.support.notes import find_limitation, list_limitation_subjects
from tests.support.operation_tables import write_csv

_STAGES, _MICROBATCHES, _ITERATIONS = 2, 3, 2
_REPLAYED = "critical path, slack, effects of changes and advice"


def _run(folder: Path, pipelines: int, slow: int = -1, *, with_pipelines: bool = True) -> Report:
    """Return the report on pipelines of two stages, one of which is slower by half.

    ::

        stage 0   ├F0┤        ├─B0─┤ ├F1┤ ...
        stage 1       ├F0┤├B0┤
    """
    rows = []
    for pipeline in range(pipelines):
        took_us = 30 if pipeline == slow else 20
        for number in range(_ITERATIONS * _MICROBATCHES):
            iteration, microbatch = divmod(number, _MICROBATCHES)
            for index, (stage, phase) in enumerate(((0, "F"), (1, "F"), (1, "BW"), (0, "BW"))):
                start_us = 2000 * iteration + (4 * microbatch + index) * took_us
                key = pipeline * _STAGES + stage, stage, pipeline, iteration, microbatch, phase
                rows.append((*key, start_us, start_us + took_us))
    names = ("rank", "stage", "pipeline", "iteration", "microbatch", "phase", "start_us", "end_us")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if not with_pipelines:
        del columns["pipeline"]
    return bubbleviz.analyze(write_csv(folder / "run.csv", columns))


@pytest.mark.parametrize(("pipelines", "with_pipelines"), [(8, False), (4, True)])
def test_few_or_unknown_pipelines_are_replayed_completely(
    pipelines: int, with_pipelines: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLAYED_OPERATIONS", 30)
    report = _run(tmp_path, pipelines, with_pipelines=with_pipelines)
    assert report.explanation.replayed_ranks is None
    assert _REPLAYED not in list_limitation_subjects(report)


def test_the_replayed_part_behaves_like_the_complete_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = _run(tmp_path, 12, slow=7)
    assert complete.explanation.replayed_ranks is None
    monkeypatch.setattr(module, "MAX_REPLAYED_OPERATIONS", 30)
    part = _run(tmp_path, 12, slow=7)
    note = find_limitation(part, _REPLAYED)
    assert note.reason.startswith("only 4 of 12 pipelines are replayed: the slowest,")
    first, second = part.explanation, complete.explanation
    assert first.path is not None
    assert second.path is not None
    assert first.path.operations.tolist() == second.path.operations.tolist()
    assert first.path.parts == second.path.parts
    slacks = [
        dict(zip(path.replayed.tolist(), path.slack_ns.tolist(), strict=True))
        for path in (first.path, second.path)
    ]
    assert 0 < len(slacks[0]) < len(slacks[1])
    assert slacks[0].items() <= slacks[1].items()
    # The mean of all stages is the mean of the replayed stages.
    assert [w.makespan_ns for w in first.changes if w.name != "balanced"] == [
        w.makespan_ns for w in second.changes if w.name != "balanced"
    ]
    findings = [
        [(f.faults[0].name, f.faults[0].ranks, f.saving_ns) for f in one.diagnosis.findings]
        for one in (first, second)
        if one.diagnosis is not None
    ]
    assert len(findings) == 2
    assert findings[0] == findings[1]
    assert first.causes.idle_ns.keys() == second.causes.idle_ns.keys()
    for name, idle_ns in first.causes.idle_ns.items():
        assert (idle_ns == second.causes.idle_ns[name]).all()
