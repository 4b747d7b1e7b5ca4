"""TOML that is nested as no convention is: refused in a sentence, by every option that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.places import CHECKOUT

ONE = str(CHECKOUT / "fixtures" / "1f1b")


@pytest.mark.parametrize(
    ("command", "option"), [("analyze", "--convention"), ("idle", "--activities")]
)
@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 2000}{']' * 2000}",
        f"a = {'{a=' * 2000}1{'}' * 2000}",
        f"{'a.' * 20_000}b = 1",
        f"[{'a.' * 20_000}b]",
        f"a = {'[' * 100_000}",
    ],
)
def test_nested_toml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str, text: str
) -> None:
    file = tmp_path / "names.toml"
    file.write_text(text)

    assert main([command, ONE, option, str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bubbleviz: {file}: not TOML (")
    assert said.count("\n") == 1
