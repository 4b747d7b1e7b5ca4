"""Errors about the command line suggest only similar words."""

from __future__ import annotations

import pytest

from bubbleviz.cli.app import main
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

RUN = str(FIXTURES / "1f1b" / "node0.sqlite")


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
        (["--what-if"], "no such option: --what-if; see bubbleviz --help"),
        (
            ["analyze", RUN, "--json"],
            "--json needs a file; to print the output instead, pass --json -",
        ),
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
def test_commands_suggest_similar_words(
    arguments: list[str], suggestion: str | None, cli: CommandLine
) -> None:
    complaint = cli.refused(*arguments, code=2).lower()
    if suggestion is None:
        assert "did you mean" not in complaint
        assert "possible options" not in complaint
    else:
        assert suggestion in complaint


def test_a_missing_path_suggests_a_similar_file(cli: CommandLine) -> None:
    message = cli.refused("analyze", str(FIXTURES / "1f1c"), code=1)
    assert f"did you mean {FIXTURES / '1f1b'}?" in message
    for far in (FIXTURES / "quite another name", FIXTURES / "nowhere" / "1f1b"):
        assert "check the path" in cli.refused("analyze", str(far), code=1)


def test_a_window_of_iterations_without_steps_says_how_to_name_them(cli: CommandLine) -> None:
    complaint = cli.refused("idle", RUN, "--window", "iteration:1", code=1)
    assert "--step NAME" in complaint
    assert "--window time:" in complaint
    assert main(["idle", RUN, "--window", "iteration:1", "--step", "Optimizer"]) == 0
