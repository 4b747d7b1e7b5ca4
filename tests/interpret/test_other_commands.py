"""Refusals suggest only commands that can read the same profile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from tests.support.command_line import CommandLine
from tests.support.nsys_exports import C, K, R, write_profile

#: Two kernels of a program that has no ranges.
KERNELS = [K(20, 30, 1), K(40, 60, 2)]
CALLS = [C(1, 2, 1), C(3, 4, 2)]


def _commands(text: str) -> list[list[str]]:
    """Return the commands that a text suggests for a profile."""
    flat = " ".join(text.split())
    matches = re.findall(r"bubbleviz ((?:idle|nccl|pgle|inspect|analyze) \S+)", flat)
    return [shlex.split(command) for command in matches]


@pytest.mark.parametrize("command", ["analyze", "nccl", "pgle", "inspect"])
@pytest.mark.parametrize("ranges", [[], [R(0, 70, "saxpy")]], ids=["no ranges", "others"])
def test_every_refusal_leads_to_a_command_that_works(
    command: str, ranges: list[R], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_profile(tmp_path, KERNELS, CALLS, ranges))
    assert main([command, path]) == (command != "inspect")
    output = capsys.readouterr()
    advised = _commands(output.out + output.err)
    assert advised == [["idle", path]]
    assert [main(words) for words in advised] == [0]


@pytest.mark.parametrize("command", ["analyze", "pgle", "inspect"])
def test_the_nccl_command_is_named_if_nccl_ran(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = [*KERNELS, K(70, 90, 3, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")]
    path = str(write_profile(tmp_path, kernels, [*CALLS, C(5, 6, 3)], []))
    main([command, path])
    output = capsys.readouterr()
    advised = _commands(output.out + output.err)
    assert advised == [["idle", path], ["nccl", path]]
    assert [main(words) for words in advised] == [0, 0]


def test_a_single_kernel_leads_only_to_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_profile(tmp_path, KERNELS[:1], CALLS[:1], []))
    for command in ("analyze", "nccl", "pgle", "inspect"):
        main([command, path])
        output = capsys.readouterr()
        expected = [["inspect", path]] if command == "analyze" else []
        assert _commands(output.out + output.err) == expected
        assert (command == "inspect") == ("too little to analyze" in output.out)


def test_a_draft_that_works_is_promised(tmp_path: Path) -> None:
    ranges = [R(0, 10, "my forward 0"), R(11, 20, "my backward 0")]
    kernels = [K(1, 5, 1), K(12, 18, 2)]
    path = write_profile(tmp_path, kernels, [C(1, 2, 1), C(12, 13, 2)], ranges)
    drafted = bubbleviz.inspect(path).suggestion is not None
    with pytest.raises(bubbleviz.BubblevizError) as caught:
        bubbleviz.analyze(path)
    advised = _commands(str(caught.value))
    assert (["inspect", str(path)] in advised) == drafted
    assert drafted
    assert "if there is no pipeline, run bubbleviz idle instead; otherwise, draft" in str(
        caught.value
    )


def test_without_work_no_convention_is_advised(tmp_path: Path, cli: CommandLine) -> None:
    path = str(write_profile(tmp_path, [], [], [R(0, 3, "setup")]))
    assert "--convention" not in cli.printed("inspect", path)
