"""Help: grouped, one line an option, whole, and short of rich in every other start."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.command_line import CommandLine, started

COMMANDS = [
    *("analyze", "inspect", "idle", "view", "nccl", "pgle", "compare", "gate", "simulate"),
    *("schedules", "conventions", "guide"),
]


def helped(cli: CommandLine, *words: str) -> list[str]:
    return cli.printed(*words, "--help").splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_takes_one_line_of_80(command: str, cli: CommandLine) -> None:
    lines = helped(cli, command)
    options = [line for line in lines if line.startswith("  -")]
    wrapped = [b for a, b in pairwise(lines) if a[:3] == "  -" and b[:3] == "   "]

    assert options
    assert not wrapped
    assert max(map(len, lines)) < 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_value_has_a_name_and_every_command_an_example(
    command: str, cli: CommandLine
) -> None:
    lines = helped(cli, command)

    assert not [line for line in lines if " VALUE " in line]
    assert lines[-1].startswith(f"  Example: bubbleviz {command}")


def test_options_are_grouped_by_what_one_wants(cli: CommandLine) -> None:
    titles = [line for line in helped(cli, "analyze") if line and line[0] != " "]

    assert [title.partition(" ")[0].rstrip(":") for title in titles] == [
        *("Usage", "Arguments", "Schedule", "Tables", "Outputs", "Pictures", "Selection"),
        *("Names", "Stages", "Reading", "Options"),
    ]


def test_the_list_of_commands_has_whole_summaries(cli: CommandLine) -> None:
    lines = helped(cli)
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}

    for command in COMMANDS:
        assert listed[command].endswith(".")
        assert "..." not in listed[command]
    assert "gaps" not in listed


def test_short_help(cli: CommandLine) -> None:
    assert cli.printed("idle", "-h") == cli.printed("idle", "--help")
    assert "Usage: bubbleviz PATH..." in cli.printed("-h")


def test_plain_help_loads_no_rich() -> None:
    program = (
        "import sys; from bubbleviz.cli.app import main; main(['analyze', '-h']); "
        "sys.exit(any(name.partition('.')[0] in {'rich', 'numpy'} for name in sys.modules))"
    )

    assert started(["-c", program]).returncode == 0
