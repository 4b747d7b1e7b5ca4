"""Pictures of a saved report are the same as those of the measured report."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.render.formats.latex import render as render_latex
from bubbleviz.render.picture.picture import picture
from bubbleviz.report.report import Report
from bubbleviz.report.restored import restore
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import list_texts
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES

VIEWS = {
    "usual": View(),
    "everything": View(causes=True, critical=True, communication=True, heat_map=True),
    "paper": View(style="paper", width_mm=89),
    "stages": View(rows="stage"),
    "spread": View(rows="spread"),
    "two iterations": View(iterations=(0, 1)),
}


@cache
def measure(name: str, folder: Path) -> Report:
    """Return a report on a fixture, or on a planted run with two replicas and a slow rank."""
    if name != "slow rank":
        return bubbleviz.analyze(FIXTURES / name)
    job = simulate_job(Job(rank={5: 1.5}, iterations=3, replicas=2))
    return bubbleviz.analyze(job.written(folder / "operations.csv"))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v", "slow rank"])
def test_a_saved_report_gives_the_same_picture(
    name: str, view: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    report = measure(name, tmp_path_factory.getbasetemp())

    restored = restore("report.json", summarize(report))

    assert picture(restored, VIEWS[view]) == picture(report, VIEWS[view])


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v", "slow rank"])
def test_a_saved_report_gives_the_same_latex(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    report = measure(name, tmp_path_factory.getbasetemp())

    restored = restore("report.json", summarize(report))

    assert render_latex(restored, View()) == render_latex(report, View())


def test_marks_and_restrictions_are_restored(tmp_path_factory: pytest.TempPathFactory) -> None:
    report = measure("slow rank", tmp_path_factory.getbasetemp())
    summary = summarize(replace(report, limitations=()))
    texts = " ".join(list_texts(picture(restore("report.json", summary), View())))

    assert texts.count("►") == 2
    assert "► Find out why rank 5 is slow (-" in texts


def test_limitations_without_effect_are_not_drawn(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limitations = (
        Limitation("GPU models", "missing", kind=LimitationKind.DETAILS),
        Limitation("kernels", "lost"),
    )
    report = replace(measure("1f1b", tmp_path_factory.getbasetemp()), limitations=limitations)
    texts = " ".join(list_texts(picture(restore("report.json", summarize(report)), View())))

    assert "Limitations: kernels." in texts
    assert "GPU models" not in texts


@pytest.fixture
def saved(tmp_path: Path, cli: CommandLine) -> Path:
    path = tmp_path / "report.json"
    cli.printed("analyze", FIXTURES / "zb-v", "-o", path, "-q")
    return path


def test_analyze_draws_a_saved_report(saved: Path, tmp_path: Path, cli: CommandLine) -> None:
    options = ("--stages", "0-1", "--iteration", "1", "--style", "paper")

    assert cli.printed("analyze", saved, "-o", tmp_path / "saved.svg", *options) == ""
    cli.printed("analyze", FIXTURES / "zb-v", "-o", tmp_path / "measured.svg", *options)

    assert (tmp_path / "saved.svg").read_bytes() == (tmp_path / "measured.svg").read_bytes()


def test_analyze_writes_the_page_of_a_saved_report(
    saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    cli.printed("analyze", saved, "-o", tmp_path / "page.html")

    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["x.svg", "x.json"])
def test_names_in_a_saved_report_are_replaced(
    name: str, saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    cli.printed("analyze", saved, "-o", tmp_path / name, "--anonymous")

    assert "node0" in saved.read_text("utf-8")
    assert "node0" not in (tmp_path / name).read_text("utf-8")


def test_a_saved_report_without_a_timeline_is_written_where_no_picture_is_needed(
    saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    document = json.loads(saved.read_text("utf-8")) | {"timeline": None}
    saved.write_text(json.dumps(document), encoding="utf-8")

    cli.printed("analyze", saved, "-o", tmp_path / "x.json", "-o", tmp_path / "x.html")
    refusal = cli.refused("analyze", saved, "-o", tmp_path / "x.svg", code=2)

    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == document
    assert "no timeline was saved" in refusal


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("-o", "x.csv"),
            "x.csv: a saved report can only be written as .svg, ",
        ),
        (("-o", "x.svg", "--skip", "1"), "--skip: only applies to profiles"),
        (("-o", "x.svg", "--stages", "9"), "--stages 9: there is no stage 9"),
    ],
)
def test_a_saved_report_is_not_measured_again(
    options: tuple[str, ...], expected: str, saved: Path, cli: CommandLine
) -> None:
    assert expected in cli.refused("analyze", saved, *options, code=2)


def test_a_report_without_outputs_is_refused_with_ways_to_use_it(
    saved: Path, cli: CommandLine
) -> None:
    assert "or draw it with bubbleviz analyze REPORT.json -o" in cli.refused("analyze", saved)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ranks", 0, "profile"), 9),
        (("ranks", 0, "index"), 3),
        (("iterations", 0, "index"), 7),
        (("iterations", 0, "ranks", "rank", 0), 9),
        (("iterations", 0, "ranks", "busy_ns"), {}),
        (("iterations", 0, "ranks", "bubble_ratio"), {}),
    ],
)
def test_references_to_missing_parts_are_refused(
    path: tuple[str | int, ...], value: object, saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    document = json.loads(saved.read_text("utf-8"))
    *parents, last = path
    parent = document
    for key in parents:
        parent = parent[key]
    parent[last] = value
    saved.write_text(json.dumps(document), encoding="utf-8")

    message = cli.refused("analyze", saved, "-o", tmp_path / "x.svg", code=1)

    assert "the report refers to ranks, profiles, iterations or phases" in message


def test_a_damaged_timeline_is_refused(saved: Path, tmp_path: Path, cli: CommandLine) -> None:
    document = json.loads(saved.read_text("utf-8"))
    document["timeline"]["tables"]["operations"]["rank"][0] = 99
    saved.write_text(json.dumps(document), encoding="utf-8")

    message = cli.refused("analyze", saved, "-o", tmp_path / "x.svg", code=1)

    assert "its timeline refers from rank of operations to a row that does not exist" in message
