"""Values of ``--details``, and the characters that standard output can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.cli.help import ANALYZE_TABLES, insert_default_values, select_tables
from bubbleviz.errors import UsageError
from bubbleviz.render.text.report import render_text as render
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine, run_program
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("", ""),
        ("analyze -v", "analyze -v all"),
        ("analyze -v run/", "analyze -v all run/"),
        ("analyze -v a.sqlite", "analyze -v all a.sqlite"),
        ("analyze --details --what-if", "analyze --details all --what-if"),
        ("analyze -v ranks run", "analyze -v ranks run"),
        ("analyze -v ranks,causes run", "analyze -v ranks,causes run"),
        ("analyze -v rnaks run", "analyze -v rnaks run"),
        ("analyze run -v all", "analyze run -v all"),
        ("analyze --details=ranks run", "analyze --details=ranks run"),
        ("analyze -- -v", "analyze -- -v"),
    ],
)
def test_the_value_may_be_omitted(typed: str, spelled: str) -> None:
    assert insert_default_values(typed.split()) == spelled.split()


def test_a_profile_after_the_option_is_not_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()

    assert insert_default_values(["analyze", "-v", "run"]) == ["analyze", "-v", "all", "run"]


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(UsageError, match="rank: no such table; did you mean ranks"):
        select_tables(["rank"], ANALYZE_TABLES)
    with pytest.raises(UsageError, match="use all"):
        select_tables(["xyz"])


@pytest.mark.parametrize("name", ANALYZE_TABLES)
def test_every_table_is_printed(name: str, cli: CommandLine) -> None:
    output = cli.printed("analyze", ONE, "-v", name)
    assert len(output.splitlines()) >= 2
    assert "What to do first" not in output


def test_all_tables_equal_those_of_the_text_file(cli: CommandLine) -> None:
    import bubbleviz

    assert cli.printed("analyze", "-v", ONE) == render(bubbleviz.analyze([ONE]), View())


UNSET = {"NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LC_ALL"}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)


def printed(*arguments: str, **environment: str) -> str:
    encoding = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8", **environment}
    done = run_program(["-m", "bubbleviz", "analyze", ONE, *arguments], **encoding)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_output_to_a_pipe_is_plain() -> None:
    plain = printed()

    assert "\x1b" not in plain
    assert "█" in plain
    assert max(map(len, plain.splitlines())) <= 80


def test_colors_can_be_forced_or_turned_off() -> None:
    assert "\x1b[" in printed(FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[" not in printed(FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")


def test_the_width_can_be_given() -> None:
    narrow, wide = printed(COLUMNS="60"), printed(COLUMNS="160")

    assert max(map(len, narrow.splitlines())) <= 60
    assert max(map(len, wide.splitlines())) == 160


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, {"TERM": "dumb"}]
)
@pytest.mark.parametrize("arguments", [(), ("-v",)], ids=["screen", "tables"])
def test_outputs_without_block_characters_get_ascii(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    output = printed(*arguments, **environment)

    assert output.isascii()
    assert "?" not in output


def test_details_with_quiet_are_refused(cli: CommandLine) -> None:
    refused = cli.refused("analyze", ONE, "-q", "-v")

    assert "--quiet prints no tables; remove --quiet or --details" in refused
