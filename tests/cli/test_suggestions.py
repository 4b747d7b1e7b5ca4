"""Suggestions in complaints about the command line: near words only."""

from __future__ import annotations

import pytest

from bubbleviz.cli.app import main
from bubbleviz.model.texts import nearest
from tests.support.places import FIXTURES

RUN = str(FIXTURES / "1f1b" / "node0.sqlite")


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("--jsn", ["--jobs", "--json", "--svg"], "--json"),
        ("analyse", ["analyze", "idle"], "analyze"),
        ("zerobubble", ["zero-bubble"], "zero-bubble"),
        ("--iteration", ["--convention", "--window"], None),
        ("--skip", ["--step", "--shortest"], None),
        ("q", ["zero-bubble"], None),
        ("", ["a"], None),
        ("a", [], None),
    ],
)
def test_only_near_words_are_suggested(word: str, known: list[str], near: str | None) -> None:
    assert nearest(word, known) == near


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["analyse", RUN], "did you mean analyze?"),
        (["stat", RUN], None),
        (["analyze", RUN, "--skipp", "3"], "did you mean --skip?"),
        (["idle", RUN, "--iteration", "3"], None),
        (["idle", RUN, "--skip", "3"], None),
        (["guide", "anotate"], "did you mean annotate?"),
        (["--hlp"], "did you mean --help?"),
        (["--what-if", RUN], "others follow a path or a command; see bubbleviz --help"),
        (["analyze", RUN, "--no-cross-thred"], "did you mean --no-cross-thread?"),
        (["analyze", RUN, "--rows", "ranks"], "did you mean rank?"),
        (["analyze", RUN, "--align", "utcc"], "did you mean utc?"),
        (["analyze", RUN, "--align", "x"], None),
        (["analyze", RUN, "--convention", "zerobubble"], "did you mean zero-bubble?"),
        (["analyze", RUN, "--convention", "q"], None),
        (["simulate", "--schedule", "zb-h3", "-p", "4"], "did you mean zb-h"),
        (["gate", "report.json", "--max-bubble", "schedule=30"], "did you mean schedule=30%?"),
        (["gate", "report.json", "--max-bubble", "schedule=300"], None),
    ],
)
def test_commands_suggest_near_words(
    arguments: list[str], suggestion: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    complaint = capsys.readouterr().err.lower()
    if suggestion is None:
        assert "did you mean" not in complaint
        assert "possible options" not in complaint
    else:
        assert suggestion in complaint


def test_a_missing_path_suggests_a_file_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(FIXTURES / "1f1c")]) == 1
    assert f"did you mean {FIXTURES / '1f1b'}?" in capsys.readouterr().err
    for far in (FIXTURES / "quite another name", FIXTURES / "nowhere" / "1f1b"):
        assert main(["analyze", str(far)]) == 1
        assert "check the path" in capsys.readouterr().err


def test_a_window_of_iterations_without_steps_says_how_to_name_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["idle", RUN, "--window", "iteration:1"]) == 1
    complaint = capsys.readouterr().err
    assert "--step NAME" in complaint
    assert "--window time:" in complaint
    assert main(["idle", RUN, "--window", "iteration:1", "--step", "Optimizer"]) == 0
