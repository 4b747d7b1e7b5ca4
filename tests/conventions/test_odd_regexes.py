"""Regular expressions that Python cannot compile, alone or beside others, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.places import CHECKOUT

ONE = str(CHECKOUT / "fixtures" / "1f1b")
PATTERN = "[[pattern]]\nglob = '*'\nmatch = '{}'\nphase = 'F'\n"
FILES = {
    "match": ("analyze", "--convention", "name = 'mine'\n" + PATTERN),
    "communication": ("analyze", "--convention", "communication = ['{}']\n"),
    "helper_threads": ("analyze", "--convention", "helper_threads = ['{}']\n"),
    "of idle": ("idle", "--convention", "communication = ['{}']\n"),
    "activities": ("idle", "--activities", "[[activity]]\nname = 'a'\nmatch = ['{}']\n"),
}
ODD = {
    "repeated too often": "a{99999999999999999999}",
    "repeated more often than Python counts": "a{4294967296}",
    "nested": "(?:" * 5000 + ")" * 5000,
    "unterminated": "[a",
    "bad group": "(?P<1>a)",
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_regular_expression_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, odd: str
) -> None:
    command, option, text = FILES[file]
    path = tmp_path / "names.toml"
    path.write_text(text.format(ODD[odd].replace("{", "{{").replace("}", "}}").format()))

    assert main([command, ONE, option, str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bubbleviz: {path}: ")
    assert "is not a regular expression" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("file", ["communication", "helper_threads", "of idle", "activities"])
@pytest.mark.parametrize("flagged", ["(?i)acme", "(?P<a>x)", r"(x)\1"])
def test_expressions_that_stand_beside_others_are_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, flagged: str
) -> None:
    command, option, text = FILES[file]
    path = tmp_path / "names.toml"
    path.write_text(
        text.format(flagged).replace("]", f", '{flagged}']", 1)
        if "[[" not in text
        else text.format(flagged)
    )

    assert main([command, ONE, option, str(path)]) in {0, 2}
    assert "Traceback" not in capsys.readouterr().err
