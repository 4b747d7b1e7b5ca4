"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.render.formats import renderers
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "analyze" in capsys.readouterr().out


def test_the_table_says_the_headline_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", ONE]) == 0
    shown = capsys.readouterr()

    assert shown.out.startswith("Bubble ratio (schedule): 27.27 %")
    assert shown.err == ""


@pytest.mark.parametrize("renderer", renderers(), ids=lambda r: r.name)
def test_an_output_is_written_and_only_replaced_by_force(
    renderer: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = renderer.name  # type: ignore[attr-defined]  # parametrised over Renderer
    file = tmp_path / f"out.{name}"

    assert main(["analyze", ONE, f"--{name}", str(file)]) == 0
    first = file.read_bytes()
    assert main(["analyze", ONE, f"--{name}", str(file)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["analyze", ONE, f"--{name}", str(file), "-f"]) == 0
    assert file.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == [file.name]


def test_a_dash_takes_standard_output_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", ONE, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert report["schema"] == "bubbleviz.report/1"
    assert report["summary"]["bubble_ratio"]["schedule"]["n"] == 3


def test_two_outputs_cannot_share_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", ONE, "--json", "-", "--csv", "-"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_csv_holds_one_row_an_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", ONE, "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    keys = [(int(row["rank"]), int(row["start_ns"])) for row in rows if row["start_ns"]]
    assert keys == sorted(keys)
    assert sum(row["phase"] == "F" for row in rows) == 4 * 8 * 3


@pytest.mark.parametrize("output", ["csv", "bubbles"])
def test_rows_of_a_window_name_its_iterations_as_the_table_does(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", ONE, "--window", "iteration:1-2", f"--{output}", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["analyze", ONE, "--window", "iteration:1-2", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert {row["iteration"] for row in rows} == {"1", "2"}
    assert [i["name"] for i in report["iterations"]] == ["1", "2"]


def test_iterations_are_selected_for_the_picture_only(tmp_path: Path) -> None:
    ratios = set()
    for selection in ("0", "1-2", "all"):
        svg, text = tmp_path / f"{selection}.svg", tmp_path / f"{selection}.json"
        arguments = ["--iteration", selection, "--svg", str(svg), "--json", str(text)]
        assert main(["analyze", ONE, *arguments]) == 0
        ratios.add(json.loads(text.read_text())["summary"]["bubble_ratio"]["schedule"]["mean"])

    assert len(ratios) == 1
    assert len((tmp_path / "all.svg").read_text()) > len((tmp_path / "0.svg").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--iteration", "9"],
        ["--iteration", "x"],
        ["--ranks", "7"],
        ["--stages", "4-9"],
        ["--order", "0,1"],
        ["--convention", "nothing.toml"],
        ["--same-clock", "a,b"],
        ["--skip", "-1"],
        ["--align", "ptp"],
        ["--rows", "host"],
        ["--parallel", "tp"],
        ["--parallel", "tp=0"],
        ["--parallel", "tp=2,tp=2"],
        ["--parallel", "ep=2"],
        ["--parallel", "tp=9999999,dp=9999999"],
        ["--parallel", "pp=3"],
        ["--parallel", ""],
        ["--bogus"],
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", ONE, *arguments]) in {1, 2}
    shown = capsys.readouterr()

    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("bubbleviz: ")


@pytest.mark.parametrize("option", ["--causes", "--critical-path", "--heat-map"])
def test_what_is_drawn_needs_a_picture(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table and numbers are none, and panels hold no heat map."""
    others = [[], ["--json", str(tmp_path / "a.json")]]
    others += [["--panels", str(tmp_path / "a.svg")]] if option == "--heat-map" else []
    for outputs in others:
        assert main(["analyze", ONE, option, *outputs]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"bubbleviz: {option}: needs a picture to draw on; add --")
        assert shown.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert main(["analyze", ONE, option, "--svg", str(tmp_path / "b.svg")]) == 0


def test_without_any_averaged_iteration_the_report_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["analyze", ONE, "--skip", "9"]) == 0
    assert "averages: no complete training iteration is left to average" in capsys.readouterr().out


def test_skipped_iterations_are_not_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", ONE, "--skip", "2", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert [i["averaged"] for i in report["iterations"]] == [False, False, True]
    assert report["summary"]["bubble_ratio"]["schedule"]["std"] is None


def test_inspect_says_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", ONE]) == 0
    shown = capsys.readouterr().out

    assert "analyze can compute bubble ratios" in shown
    assert "zero-bubble: 96 F" in shown


def test_a_user_names_ranges_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        """
[[pattern]]
glob = "[FB][0-9]*"
match = '^(?P<phase>[FB])(?P<microbatch>[0-9]+)[.]'
""",
        encoding="utf-8",
    )

    assert main(["analyze", ONE, "--convention", str(mine), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["convention"] == "mine"
    # Without Optimizer names, iterations end at repeated forwards, and ratios stay.
    assert report["summary"]["bubble_ratio"]["schedule"]["mean"] == pytest.approx(3 / 11)


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bubbleviz 0.")
