"""No dead end: every refusal of ``analyze`` names a command that tells something of the file."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.nsys_exports import C, K, R, profile

DATA = os.environ.get("BUBBLEVIZ_DATA")
FILES = sorted(
    str(file.relative_to(DATA))
    for folder in ("nsys", "kineto", "jax", "nccl")
    for file in Path(DATA or "", folder).glob("*.*")
    if DATA and file.suffix in {".sqlite", ".gz", ".pb", ".jsonlines"}
)


def followed(path: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the commands that a refusal of a file names, each of which must run on it."""
    assert main(["analyze", path]) == 1
    sentence = capsys.readouterr().err
    named = re.findall(r"bubbleviz (idle|nccl|pgle|inspect)(?: (\S+))?", sentence)
    for command, word in named:
        given = shlex.split(word.rstrip(","))[0] if word and "/" in word else path
        assert given == path
        assert main([command, given]) == 0, sentence
        assert capsys.readouterr().out
    return [command for command, _ in named]


def test_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = profile(tmp_path, [], [C(10, 15, 0)], [R(0, 90, "F0")])

    assert followed(str(file), capsys) == ["inspect"]


def test_a_single_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = profile(tmp_path, [K(30, 50, 0)], [C(10, 15, 0)], [R(0, 90, "other")])

    assert followed(str(file), capsys) == ["inspect"]


def test_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels, calls = [K(30, 50, 0), K(60, 80, 1)], [C(10, 15, 0), C(15, 20, 1)]
    file = profile(tmp_path, kernels, calls, [R(0, 90, "other")])

    assert followed(str(file), capsys) == ["idle"]


@pytest.mark.skipif(not DATA, reason="BUBBLEVIZ_DATA is not set: no real profiles")
@pytest.mark.parametrize("file", FILES)
def test_real_profiles(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert followed(f"{DATA}/{file}", capsys)
