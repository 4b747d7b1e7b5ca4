"""Extra work: the pieces that fit are those that a slow reference places one by one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.extra_work import ExtraWork, fit_extra_work
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.durations import parse_duration
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine
from tests.support.operation_tables import write_csv
from tests.support.places import FIXTURES

#: Causes that divide a bubble.
NOT_FREE = ("profiler", "unknown")


def fit_slowly(report: Report, work_ns: int, piece_ns: int) -> tuple[dict[int, list[float]], float]:
    """Place pieces one after another, and return what fits: by stage, and in a shared job.

    Returns:
        by_stage: Mean numbers of pieces by kind of bubble and the mean time of the job that fits,
            for the rank with the fewest pieces of each stage.
        shared_ns: Mean time of a job that all stages share.
    """
    bubbles, operations = report.bubbles, report.operations
    counted = [
        iteration.index
        for iteration in report.iterations
        if iteration.averaged and iteration.ratios[bubbles.ratio].value is not None
    ]
    placed: dict[int, dict[int, list[int]]] = {
        rank.index: {index: [0, 0, 0] for index in counted} for rank in report.ranks
    }
    room: dict[int, dict[int, list[int]]] = {
        rank.index: {index: [] for index in counted} for rank in report.ranks
    }
    slots: list[list[int]] = []
    for row in range(len(bubbles)):
        rank, iteration = int(bubbles.rank[row]), int(bubbles.iteration[row])
        if iteration not in counted or Cause(bubbles.cause[row]).label in NOT_FREE:
            continue
        start, end = int(bubbles.start_ns[row]), int(bubbles.end_ns[row])
        if slots and slots[-1][:2] == [rank, iteration] and slots[-1][3] == start:
            slots[-1][3] = end
        else:
            slots.append([rank, iteration, start, end])
    for rank, iteration, start, end in slots:
        rows = (operations.rank == rank) & (operations.iteration == iteration)
        rows &= np.isin(operations.phase, [0, 1, 2, 3, 4, 5]) & (operations.has_span == 1)
        kind = 1
        if end <= operations.start_ns[rows].min():
            kind = 0
        elif start >= operations.end_ns[rows].max():
            kind = 2
        now = start
        while now + piece_ns <= end:
            placed[rank][iteration][kind] += 1
            now += piece_ns
        room[rank][iteration].append(end - start)
    by_stage: dict[int, list[float]] = {}
    shared: dict[int, list[int]] = {index: [] for index in counted}
    for stage in sorted({rank.stage for rank in report.ranks if rank.stage is not None}):
        ranks = [rank.index for rank in report.ranks if rank.stage == stage]
        chosen = min(ranks, key=lambda rank: sum(map(sum, placed[rank].values())))
        kinds = np.array(list(placed[chosen].values())).mean(axis=0).tolist()
        fitting = [place_job(room[chosen][index], work_ns, piece_ns) for index in counted]
        by_stage[stage] = [*kinds, float(np.mean(fitting))]
        for index in counted:
            shared[index] += room[chosen][index]
    shared_ns = [place_job(bubbles_ns, work_ns, piece_ns) for bubbles_ns in shared.values()]
    return by_stage, float(np.mean(shared_ns))


def place_job(bubbles_ns: list[int], work_ns: int, piece_ns: int) -> int:
    """Return the time of a job that fits into bubbles, placing its longest pieces first."""
    lengths_ns = [piece_ns] * (work_ns // piece_ns) + [work_ns % piece_ns]
    room = list(bubbles_ns)
    fitting_ns = 0
    for length_ns in lengths_ns:
        place = next((number for number, free_ns in enumerate(room) if free_ns >= length_ns), None)
        if place is not None:
            room[place] -= length_ns
            fitting_ns += length_ns
    return fitting_ns


def check_against_slow(report: Report, extra: ExtraWork, work_ns: int, piece_ns: int) -> None:
    by_stage, shared_ns = fit_slowly(report, work_ns, piece_ns)
    for slots in extra.stages:
        kinds = [slots.warm_up_pieces, slots.between_pieces, slots.drain_pieces]
        assert [*kinds, slots.fitting_ns] == pytest.approx(by_stage[slots.stage])
        assert slots.fitting_ns <= work_ns
        assert slots.pieces * piece_ns <= slots.idle_ns + 1e-6
    assert extra.fitting_ns == pytest.approx(shared_ns)


@pytest.fixture(scope="module", params=["1f1b", "zb-h2", "zb-v"])
def fixture_report(request: pytest.FixtureRequest) -> Report:
    return bubbleviz.analyze(FIXTURES / request.param)


@given(st.integers(50_000, 9_000_000), st.integers(1, 20), st.integers(0, 8_999_999))
def test_fixtures_match_a_slow_reference(
    fixture_report: Report, piece_ns: int, n_pieces: int, last_ns: int
) -> None:
    report, work_ns = fixture_report, n_pieces * piece_ns + last_ns % piece_ns
    stages = [rank.stage for rank in report.ranks]
    extra = fit_extra_work(report.bubbles, stages, report.iterations, work_ns, piece_ns)

    check_against_slow(report, extra, work_ns, piece_ns)


def write_replicas(folder: Path, lengths_ns: list[int]) -> Path:
    """Write a run of two stages and two replicas, in which forwards have the given lengths."""
    rows = []
    for iteration in range(3):
        now = iteration * 1_000_000
        for number, length_ns in enumerate(lengths_ns):
            rank = number % 4
            stage = rank % 2
            start = now + 1000 * number + stage * 20_000
            rows.append((rank, stage, iteration, "F", number // 4, start, start + length_ns))
            start += 100_000 - stage * 40_000
            rows.append((rank, stage, iteration, "B", number // 4, start, start + length_ns))
    names = ("rank", "stage", "iteration", "phase", "microbatch", "start_ns", "end_ns")
    return write_csv(folder / "run.csv", dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize("piece_ns", [1, 700, 2_000, 9_000, 40_000])
def test_the_rank_with_the_fewest_pieces_represents_its_stage(
    piece_ns: int, tmp_path: Path
) -> None:
    report = bubbleviz.analyze(write_replicas(tmp_path, [500, 400, 300, 900, 700, 100, 200, 800]))
    stages = [rank.stage for rank in report.ranks]
    assert len(stages) == 4
    assert len(set(stages)) == 2
    extra = fit_extra_work(report.bubbles, stages, report.iterations, 50_000, piece_ns)

    assert len(extra.stages) == 2
    check_against_slow(report, extra, 50_000, piece_ns)


def make_bubbles(report: Report, rows: list[tuple[int, int, Cause]]) -> Bubbles:
    """Return bubbles of rank 0 in iteration 0, with (start, end, cause) each."""
    start, end, cause = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    n_rows = len(rows)
    columns = {name: np.full(n_rows, -1) for name in IdleIntervals.column_names()}
    columns |= {"rank": np.zeros(n_rows, np.int64), "interval": np.zeros(n_rows, np.int64)}
    columns |= {"start_ns": start, "end_ns": end, "cause": cause}
    return Bubbles.of(
        IdleIntervals(**columns),
        np.zeros(n_rows, np.int64),
        ratio="schedule",
        operations=report.operations,
    )


@pytest.mark.parametrize(
    ("causes", "pieces"),
    [
        ((Cause.DEPENDENCY, Cause.COMMUNICATION), 3),
        ((Cause.DEPENDENCY, Cause.PROFILER), 1),
        ((Cause.UNKNOWN, Cause.HOST), 1),
        ((Cause.UNKNOWN, Cause.PROFILER), 0),
    ],
)
def test_only_profiler_overhead_and_unknown_causes_divide_a_bubble(
    causes: tuple[Cause, Cause], pieces: int
) -> None:
    report = bubbleviz.analyze(FIXTURES / "1f1b")
    bubbles = make_bubbles(report, [(0, 15, causes[0]), (15, 30, causes[1])])
    extra = fit_extra_work(bubbles, [0, 1, 2, 3], report.iterations, 100, 10)

    # The mean of three iterations, two of which have no bubbles.
    assert extra.stages[0].pieces == pytest.approx(pieces / 3)


def test_without_an_averaged_iteration_nothing_is_known(cli: CommandLine) -> None:
    shown = cli.printed(
        "analyze", str(FIXTURES / "1f1b"), "--skip", "3", "--extra-work", "12ms", "--piece", "1ms"
    )

    assert "It is unknown how much extra work fits" in shown


def test_all_outputs_contain_the_same_numbers(tmp_path: Path, cli: CommandLine) -> None:
    options = ("--extra-work", "12ms", "--piece", "1.5ms")
    files = {name: tmp_path / f"report.{name}" for name in ("json", "md", "txt")}
    outputs = [word for file in files.values() for word in ("-o", str(file))]
    shown = cli.printed("analyze", str(FIXTURES / "1f1b"), *options, *outputs)
    entry = json.loads(files["json"].read_text())["extra_work"]

    assert (entry["work_ns"], entry["piece_ns"], entry["ratio"]) == (12e6, 1.5e6, "schedule")
    # Stage 0 has bubbles of 6, 1, 1 and 1 ms, or of 9 ms in total.
    first = entry["stages"][0]
    assert first["idle_ns"] == pytest.approx(9e6)
    assert first["fitting_ns"] + first["rest_ns"] == pytest.approx(12e6)
    title = "Extra work that fits into bubbles, per iteration: 12.000 ms in pieces of 1.500 ms"
    for text in (shown, files["md"].read_text(), files["txt"].read_text()):
        assert title in " ".join(text.split())
    python = bubbleviz.analyze(FIXTURES / "1f1b", extra_work="12ms", piece="1.5ms").extra_work
    assert python is not None
    assert python.fitting_ns == entry["fitting_ns"]
    assert bubbleviz.analyze(FIXTURES / "1f1b").extra_work is None


@pytest.mark.parametrize(("piece", "n_boxes"), [("1ms", 36), ("2ms", 14), ("9us", 15)])
def test_pictures_show_each_piece_or_each_bubble(piece: str, n_boxes: int) -> None:
    report = bubbleviz.analyze(FIXTURES / "1f1b", extra_work="12ms", piece=piece)
    svg = render(report, View())

    assert "extra work that fits" in svg
    # The second path is the swatch in the legend.
    boxes, _ = re.findall(r'<path d="([^"]*)"[^>]*class="bv-paper bv-mark"', svg)
    assert boxes.count("M") == n_boxes
    assert "extra work" not in render(bubbleviz.analyze(FIXTURES / "1f1b"), View())


def test_a_shorter_last_piece_fits_next_to_other_pieces() -> None:
    # Stage 0 has bubbles of 6, 1, 1 and 1 ms: two pieces of 2.5 ms, and a last one of 1 ms.
    extra = bubbleviz.analyze(FIXTURES / "1f1b", extra_work="6ms", piece="2.5ms").extra_work

    assert extra is not None
    assert extra.stages[0].pieces == 2
    assert extra.stages[0].fitting_ns == 6e6


def test_the_longest_bubble_is_named(cli: CommandLine) -> None:
    run = str(FIXTURES / "1f1b")
    shown = " ".join(cli.printed("analyze", run, "--extra-work", "40ms").split())

    assert "The longest bubble lasts 6.000 ms." in shown


def test_a_job_without_pieces_is_indivisible() -> None:
    extra = bubbleviz.analyze(FIXTURES / "1f1b", extra_work="6ms").extra_work

    assert extra is not None
    assert extra.piece_ns == extra.work_ns == 6_000_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--piece", "4ms"), "--extra-work"),
        (("--extra-work", "4ms", "--piece", "5ms"), "longer than --extra-work 4ms"),
        (("--extra-work", "0ms"), "greater than 0"),
        (("--extra-work", "-4ms"), "greater than 0"),
        (("--extra-work", "120"), "did you mean 120ms?"),
        (("--extra-work", "12ms", "--piece", "1 hour"), "--piece '1 hour'"),
        (("--extra-work", "nan ms"), "must be a time"),
        (("--extra-work", "999999999999s", "--piece", "1ns"), "at most 1,000,000,000 s"),
    ],
)
def test_wrong_jobs_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(FIXTURES / "1f1b"), *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_saved_reports_have_no_bubbles_to_fill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = str(tmp_path / "report.json"), str(tmp_path / "report.svg")
    assert main(["analyze", str(FIXTURES / "1f1b"), "-q", "-o", saved]) == 0

    assert main(["analyze", saved, "--extra-work", "12ms", "-o", picture]) == 2
    assert "--extra-work: only applies to profiles" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [("120ms", 120_000_000), ("1.5 s", 1_500_000_000), ("3us", 3_000), ("2µs", 2_000), ("7ns", 7)],
)
def test_durations_are_exact(text: str, time_ns: int) -> None:
    assert parse_duration(text, "--piece") == time_ns


@given(st.text(max_size=8))
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--piece "):
        parse_duration(f"{text}!", "--piece")
