"""Help is complete and grouped, and error messages do not import rich."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, run_program
from tests.support.places import FIXTURES

EXAMPLE = str(FIXTURES / "1f1b")
COMMANDS = [
    "analyze",
    "inspect",
    "idle",
    "view",
    "nccl",
    "pgle",
    "compare",
    "gate",
    "simulate",
    "schedules",
    "conventions",
    "guide",
]


def helped(cli: CommandLine, *words: str) -> list[str]:
    return cli.printed(*words, "--help").splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_has_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = helped(cli, command)

    assert max(map(len, lines)) <= 80
    assert f" Example: bubbleviz {command}" in "".join(lines)
    assert not [line for line in lines if "TEXT" in line or "INTEGER" in line]
    assert helped(cli, command) == cli.printed(command, "-h").splitlines()


def test_options_are_grouped_by_purpose(cli: CommandLine) -> None:
    titles = [line.split()[1] for line in helped(cli, "analyze") if line.startswith("╭")]

    assert {"Outputs", "Pictures", "Selection", "Names", "Clocks", "Reading"} <= {*titles}
    assert len(titles) == len({*titles})


def test_analyze_lists_the_options_of_the_common_formats(cli: CommandLine) -> None:
    lines = helped(cli, "analyze")

    for name in ("svg", "json", "csv", "html"):
        assert [line for line in lines if line.startswith(f"│ --{name} ")]
    assert not [line for line in lines if line.startswith("│ --parquet")]
    assert " Example: bubbleviz analyze *.sqlite --svg out.svg" in "".join(lines)


def test_the_list_of_commands_names_them_all(cli: CommandLine) -> None:
    text = cli.printed("-h")

    assert all(f"│ {command} " in text for command in COMMANDS)
    assert "gaps" not in text
    assert "bubbleviz PATH chooses analyze" in text


@pytest.mark.parametrize("words", [("help", "gate"), ("--help", "gate"), ("-h", "gate")])
def test_help_is_found_in_every_common_spelling(
    words: tuple[str, ...], cli: CommandLine, tmp_path: Path
) -> None:
    assert cli.printed(*words) == cli.printed("gate", "--help")
    assert cli.printed("help") == cli.printed("--help") == cli.printed("help", "-v")
    assert "no such command" in cli.refused("help", "nothing", code=2)
    code, guide, hint = cli("guide", "gate")
    assert (code, guide) == (0, cli.printed("guide", "compare"))
    assert hint == (
        "bubbleviz: showing guide compare; for the options, run bubbleviz gate --help\n"
    )
    assert cli.printed("-v", "analyze", EXAMPLE) == cli.printed("-v", EXAMPLE)
    assert cli("-q", EXAMPLE, "-o", "-")[0] == 2
    (tmp_path / "old.svg").touch()
    assert cli.printed("-f", "-o", tmp_path / "old.svg", EXAMPLE) == cli.printed(EXAMPLE)


def test_refusals_load_no_rich() -> None:
    program = (
        "import sys; from bubbleviz.cli.app import main; main(['analyze']); "
        "sys.exit(any(name.partition('.')[0] == 'rich' for name in sys.modules))"
    )

    assert run_program(["-c", program]).returncode == 0
