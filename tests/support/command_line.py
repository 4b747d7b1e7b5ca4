"""Runs commands in this process, and captures their output and one-line errors."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from bubbleviz.cli.app import main
from tests.support.places import CHECKOUT
from tests.support.valid_reports import check_outputs


def run_program(program: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the checkout.

    It is given as arguments for Python or as a complete command.
    """
    words = [sys.executable, *program] if program[0].startswith("-") else program
    env = {**os.environ, **environment}
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False, env=env)
    check_outputs(program, CHECKOUT, done.stdout)
    return done


def run_on_terminal(*words: str, **environment: str) -> str:
    """Run a command on a pseudo-terminal, and return its output."""
    main_end, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "bubbleviz", *words],
        stdout=end,
        stderr=end,
        cwd=CHECKOUT,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    ) as process:
        os.close(end)
        output = b""
        try:
            while piece := os.read(main_end, 65536):
                output += piece
        except OSError:  # the other end is closed
            pass
        process.wait()
    os.close(main_end)
    return output.decode()


class CommandLine:
    """Runs commands and captures their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Run a command, and return its exit code, its standard output and its standard error."""
        self._capsys.readouterr()
        code = main([*map(str, words)])
        return (code, *self._capsys.readouterr())

    def printed(self, *words: object) -> str:
        """Run a command that must succeed, and return its output."""
        code, out, err = self(*words)
        assert code == 0, err
        return out

    def json(self, *words: object) -> Any:
        """Run a command that must succeed, and return the JSON that it prints."""
        return json.loads(self.printed(*words))

    def refused(self, *words: object, code: int | None = None) -> str:
        """Run a command that must fail, and return its error line.

        The exit code must be ``code``, or 1 or 2 if ``code`` is None.
        """
        code_, out, err = self(*words)
        assert code_ in ({1, 2} if code is None else {code}), err
        assert (out, err.count("\n"), err[:11]) == ("", 1, "bubbleviz: ")
        assert len(err) < 1000
        return err
