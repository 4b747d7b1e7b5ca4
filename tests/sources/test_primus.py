"""Pipeline dumps from AMD's Primus are read, and damaged dumps end in one precise sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.errors import MismatchError, ProfileError
from bubbleviz.model.phases import Phase
from tests.support.needs import get_real_file
from tests.support.primus_dumps import DumpedRun, write_dumped_run


def get_schedule_ratios(report: bubbleviz.Report) -> list[float | None]:
    return [iteration.ratios["schedule"].value for iteration in report.iterations]


@pytest.fixture
def dumped(tmp_path: Path) -> DumpedRun:
    return write_dumped_run(tmp_path, "1f1b", 4, 8, slow=(3, 1, 1))


#: Schedules whose dumps may have no microbatch numbers, with their chunks per rank.
UNNUMBERED_SCHEDULES = [
    ("1f1b", 1),
    ("gpipe", 1),
    ("interleaved-1f1b", 2),
    ("interleaved-1f1b", 4),
    ("zb-h2", 1),
    ("interleaved-zb", 2),
]


@pytest.mark.parametrize(
    ("schedule", "v", "is_numbered"),
    [
        *((schedule, v, False) for schedule, v in UNNUMBERED_SCHEDULES),
        *((schedule, v, True) for schedule, v in UNNUMBERED_SCHEDULES),
        ("zb-v", 2, True),  # Only Primus's own schedules have this order, and it numbers these.
    ],
)
def test_planted_schedules_are_recognized(
    schedule: str, v: int, is_numbered: bool, tmp_path: Path
) -> None:
    run = write_dumped_run(
        tmp_path, schedule, 4, 8, v, is_numbered=is_numbered, transfer_ns=100_000
    )

    report = bubbleviz.analyze(tmp_path)

    assert get_schedule_ratios(report) == pytest.approx(run.schedule_ratios, abs=1e-12)
    assert report.schedule is not None
    assert report.schedule.name == schedule
    assert [rank.stage for rank in report.ranks] == [0, 1, 2, 3]


def test_times_between_iterations_are_unknown(dumped: DumpedRun) -> None:
    report = bubbleviz.analyze(dumped.folder)

    assert [iteration.name for iteration in report.iterations] == ["1", "2", "3"]
    assert all(iteration.ratios["period"].value is None for iteration in report.iterations)
    starts_ns = [
        int(report.operations.start_ns[report.operations.iteration == k].min()) for k in range(3)
    ]
    windows_ns = [iteration.ratios["schedule"].window_ns for iteration in report.iterations]
    assert np.diff(starts_ns).tolist() == windows_ns[:-1]
    assert "times between iterations" in [entry.what for entry in report.limitations]


def test_files_may_be_given_together_with_the_sizes(dumped: DumpedRun) -> None:
    files = sorted(dumped.folder.glob("*.json"))
    pattern = str(dumped.folder / "*.json")

    reports = [bubbleviz.analyze(files), bubbleviz.analyze(pattern)]

    expected = get_schedule_ratios(bubbleviz.analyze(dumped.folder))
    assert [get_schedule_ratios(report) for report in reports] == [expected, expected]
    with pytest.raises(
        ProfileError, match="is the configuration of a Primus run, which contains no"
    ):
        bubbleviz.analyze(dumped.folder / "config.json")


def test_iterations_of_a_ramp_up_are_named(dumped: DumpedRun, tmp_path: Path) -> None:
    """The number of microbatches grows during training (``--rampup-batch-size``)."""
    small = write_dumped_run(tmp_path / "small", "1f1b", 4, 4, slow=(1, 1))
    for rank in range(4):
        first = json.loads(small.rank_file(rank).read_text())
        later = json.loads(dumped.rank_file(rank).read_text())
        later = {str(int(number) + len(first)): passes for number, passes in later.items()}
        dumped.rank_file(rank).write_text(json.dumps(first | later))

    report = bubbleviz.analyze(dumped.folder)

    assert [iteration.averaged for iteration in report.iterations] == [False] * 2 + [True] * 3
    what = "iterations with another number of microbatches"
    (note,) = [entry for entry in report.limitations if entry.what == what]
    assert note.count == 2
    assert note.reason.startswith("the averaged iterations have 8 microbatches")


def test_a_missing_rank_makes_ratios_incomplete(dumped: DumpedRun) -> None:
    dumped.rank_file(3).unlink()

    report = bubbleviz.analyze(dumped.folder)

    assert all(iteration.ratios["schedule"].incomplete for iteration in report.iterations)
    reasons = [entry.reason for entry in report.limitations]
    assert any("no profile contains ranks 3 (the run has 4 ranks)" in reason for reason in reasons)


def test_without_the_sizes_one_chunk_is_assumed(dumped: DumpedRun) -> None:
    (dumped.folder / "config.json").unlink()

    report = bubbleviz.analyze(dumped.folder)

    assert get_schedule_ratios(report) == pytest.approx(dumped.schedule_ratios, abs=1e-12)
    (reason,) = {e.reason for e in report.limitations if e.what == "the configuration of the run"}
    assert "no config.json with pp_size" in reason
    assert "each rank has one model chunk" in reason


def test_without_the_sizes_a_rank_that_is_skipped_is_missing(dumped: DumpedRun) -> None:
    (dumped.folder / "config.json").unlink()
    dumped.rank_file(1).unlink()

    report = bubbleviz.analyze(dumped.folder)

    assert report.incomplete
    assert "ranks without a profile" in [entry.what for entry in report.limitations]
    assert "column stage" not in (report.what_to_do_first or "")


def test_without_the_sizes_chunks_look_like_missing_stages(tmp_path: Path) -> None:
    run = write_dumped_run(tmp_path, "interleaved-1f1b", 4, 8, 2)
    (run.folder / "config.json").unlink()

    advice = bubbleviz.analyze(run.folder).what_to_do_first or ""

    assert advice.startswith("Check for missing profiles")
    assert "ranks have several model chunks: copy config.json of the run" in advice


def test_a_pass_that_was_recorded_as_both_is_a_forward_and_a_backward(tmp_path: Path) -> None:
    """Primus records a combined forward and backward twice, with the same times."""
    passes = {"fwd": ([0.0, 4.0], [1.0, 7.0], [0, 1]), "bwd": ([4.0, 8.0], [7.0, 10.0], [0, 1])}
    lists: dict[str, Any] = {"total": 10.0, "memory": 1.0}
    for prefix, (start, end, minibatch) in passes.items():
        lists |= {f"{prefix}_start": start, f"{prefix}_end": end}
        lists |= {f"{prefix}_minibatch": minibatch, f"{prefix}_chunk": [0, 0]}
    path = tmp_path / "pp_rank_0.json"
    path.write_text(json.dumps({"1": lists}))

    operations = bubbleviz.analyze(path).operations

    assert operations.phase.tolist() == [Phase.F, Phase.FB, Phase.BW]
    assert operations.microbatch.tolist() == [0, 1, 1]
    assert operations.second_microbatch.tolist() == [-1, 0, -1]


def drop_an_end(iterations: dict[str, Any]) -> None:
    iterations["2"]["bwd_end"].pop()


def drop_a_chunk(iterations: dict[str, Any]) -> None:
    iterations["2"]["fwd_minibatch"] = list(range(8))
    iterations["2"]["fwd_chunk"] = [0] * 7


def end_before_the_start(iterations: dict[str, Any]) -> None:
    iterations["3"]["fwd_end"][2] = 0.0


def take_too_long(iterations: dict[str, Any]) -> None:
    iterations["3"]["bwd_end"][-1] = 4e6


def use_a_text(iterations: dict[str, Any]) -> None:
    iterations["1"]["fwd_start"][1] = "soon"


def clear(iterations: dict[str, Any]) -> None:
    for lists in iterations.values():
        lists |= {name: [] for name in lists if name.endswith(("start", "end"))}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop_an_end, "iteration 2 has 8 values in bwd_start, but 7 in bwd_end; copy"),
        (drop_a_chunk, "iteration 2 has 8 values in fwd_start, but 7 in fwd_chunk; copy"),
        (end_before_the_start, "iteration 3 has a pass in fwd_end that ends before it starts"),
        (take_too_long, "an impossible time in bwd_end; times must be from 0 to 3,600,000 ms"),
        (use_a_text, "is not a valid pipeline dump from Primus"),
        (clear, "the pipeline dump contains no forward or backward; train at least"),
    ],
)
def test_contradicting_lists_are_refused(
    damage: Callable[[dict[str, Any]], None], sentence: str, dumped: DumpedRun
) -> None:
    path = dumped.rank_file(1)
    iterations = json.loads(path.read_text())
    damage(iterations)
    path.write_text(json.dumps(iterations))

    with pytest.raises(ProfileError, match=sentence) as error:
        bubbleviz.analyze(path)

    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("length", [30, 1000])
def test_a_cut_file_is_named(length: int, dumped: DumpedRun) -> None:
    path = dumped.rank_file(1)
    path.write_text(path.read_text()[:length])

    with pytest.raises(ProfileError, match="pipeline dump is cut short or damaged"):
        bubbleviz.analyze(path)
    report = bubbleviz.analyze(dumped.folder)

    assert any("cut short or damaged" in entry.reason for entry in report.limitations)
    assert report.iterations[0].ratios["schedule"].incomplete


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ('{"pp_size": 1, "vp_size": 1}', "is from a run with 1 pipeline ranks; put the files"),
        ('{"pp_size": 4, "vp_size": 3}', "cannot be divided among 3 model chunks on 4 pipeline"),
        ('{"pp_size": 4, "vp_si', "cannot be read as the configuration of a pipeline dump"),
    ],
)
def test_sizes_of_another_run_are_refused(sizes: str, sentence: str, dumped: DumpedRun) -> None:
    (dumped.folder / "config.json").write_text(sizes)

    with pytest.raises(ProfileError, match=sentence):
        bubbleviz.analyze(dumped.rank_file(1))


def test_a_file_without_a_rank_in_its_name_is_refused(dumped: DumpedRun) -> None:
    path = dumped.rank_file(0).rename(dumped.folder / "first.json")

    with pytest.raises(ProfileError, match="name does not contain the pipeline rank; rename"):
        bubbleviz.analyze(path)


def test_ranks_of_two_runs_are_refused(dumped: DumpedRun, tmp_path: Path) -> None:
    other = write_dumped_run(tmp_path / "other", "1f1b", 4, 8)

    with pytest.raises(MismatchError, match="both contain rank 0"):
        bubbleviz.analyze([dumped.folder, other.folder])


def test_simulated_dumps_have_other_names_for_sizes(tmp_path: Path) -> None:
    """Primus's simulator of schedules writes ``vpp_size``, and one iteration called 0."""
    run = write_dumped_run(tmp_path, "interleaved-1f1b", 4, 8, 2, slow=(1,))
    sizes = {"pp_size": 4, "vpp_size": 2, "micro_batches": 8}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    for rank in range(4):
        path = run.rank_file(rank)
        path.write_text(path.read_text().replace('"1": {', '"0": {'))

    report = bubbleviz.analyze(tmp_path)

    assert report.schedule is not None
    assert report.schedule.name == "interleaved-1f1b"
    assert [iteration.name for iteration in report.iterations] == ["0"]


@pytest.mark.real_files
def test_the_real_run_of_eight_stages() -> None:
    report = bubbleviz.analyze(get_real_file("primus/pp8"))

    assert report.bubble_ratio == pytest.approx(0.3713, abs=5e-5)
    assert report.schedule is not None
    assert report.schedule.name == "1f1b"
