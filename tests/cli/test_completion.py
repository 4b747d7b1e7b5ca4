"""Completions offered to shells, in the protocol of typer's scripts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_program


def complete(words: list[str], shell: str = "bash") -> list[str]:
    """Return the completions that are offered for the last word."""
    variables = {
        "_BUBBLEVIZ_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    if shell != "bash":
        variables["_TYPER_COMPLETE_ARGS"] = " ".join(words)
        variables["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
        del variables["COMP_WORDS"]
    done = run_program(["-m", "bubbleviz"], **variables)
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["an"], ["analyze"]),
        (["gap"], []),
        (["analyze", "--what"], ["--what-if"]),
        (["analyze", "x.sqlite", "--rows", ""], ["rank", "stage", "spread"]),
        (["analyze", "--align", "c"], ["causal"]),
        (["analyze", "--convention", "zero"], ["zero-bubble"]),
        (["simulate", "--schedule", "zb-h"], ["zb-h1", "zb-h2"]),
        (["gate", "report.json", "--max-bubble", "sch"], ["schedule="]),
        (["guide", "rat"], ["ratios"]),
        (["guide", "zzz"], []),
        (["analyze", "tests/"], []),
    ],
    ids=" ".join,
)
def test_bash_is_offered_completions(words: list[str], offered: list[str]) -> None:
    assert complete(["bubbleviz", *words]) == offered


@pytest.mark.parametrize("shell", ["fish", "zsh"])
def test_other_shells_are_offered_options(shell: str) -> None:
    assert any("--what-if" in line for line in complete(["bubbleviz", "analyze", "--what"], shell))


def test_files_are_not_completions_of_a_command(tmp_path: Path) -> None:
    """If the program offers no completion, the shell completes paths by itself."""
    assert complete(["bubbleviz", str(tmp_path)]) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_accepts_the_script_that_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "bubbleviz"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m bubbleviz "$@"\n')
    program.chmod(0o755)
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = run_program([str(program), "--show-completion", "bash"], **variables).stdout
    typed = (
        f"{script}\nCOMP_WORDS=(bubbleviz analyze --heat); COMP_CWORD=2; "
        f'_bubbleviz_completion {program}; echo "${{COMPREPLY[@]}}"'
    )
    done = run_program(["bash", "-c", typed])

    assert "complete -o default -F" in script
    assert done.stdout.strip() == "--heat-map", done.stderr
