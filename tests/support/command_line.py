"""The command line in this process: what commands print, and the one line in which they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bubbleviz.cli.app import main


class CommandLine:
    """Runs commands, and takes what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code of a command, its output and its complaint."""
        self._capsys.readouterr()
        code = main(list(words))
        return (code, *self._capsys.readouterr())

    def printed(self, *words: str) -> str:
        """Return the output of a command that succeeds."""
        code, out, err = self(*words)
        assert code == 0, err
        return out

    def json(self, *words: str) -> Any:
        """Return the JSON that a command that succeeds prints."""
        return json.loads(self.printed(*words))

    def refused(self, *words: str, code: int | None = None) -> str:
        """Return the one line in which a command refuses, with this code or 1 or 2."""
        ended, out, err = self(*words)
        assert ended in ({1, 2} if code is None else {code}), err
        assert (out, err.count("\n"), err[:11]) == ("", 1, "bubbleviz: ")
        assert len(err) < 1000
        return err
