"""No text in a file can control the terminal or add a line to the output of a command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.fuzzing.kinds import KINDS, folder_of, write_inputs
from tests.support.command_line import CommandLine
from tests.support.hostile_fields import (
    HOSTILE_TEXT,
    INJECTED,
    Variants,
    arrow_variants,
    csv_variants,
    json_line_variants,
    json_variants,
    line_variants,
    pickle_variants,
    space_variants,
    sqlite_variants,
)
from tests.support.hostile_profiles import DIRECTING

#: Maximum length of a line in a message.
LONGEST_LINE = 100

#: Function that adds hostile texts to a file, for each kind of input.
PLANTED: dict[str, Variants] = {
    "nsys sqlite": sqlite_variants,
    "nsys tables": arrow_variants,
    "pytorch json": json_variants,
    "rocm": sqlite_variants,
    "xplane": space_variants,
    "xla json": json_variants,
    "ascend": sqlite_variants,
    "nccl events": line_variants,
    "nccl inspector": json_line_variants,
    "flight recorder": pickle_variants,
    "flight json": json_variants,
    "csv": csv_variants,
    "arrow tables": arrow_variants,
    "megascan": json_variants,
    "recordings": json_line_variants,
    "reports": json_variants,
    "conventions": line_variants,
    "activities": line_variants,
    "orders": csv_variants,
    "layers": csv_variants,
    "costs": line_variants,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the undamaged inputs."""
    folder = tmp_path_factory.mktemp("fuzzing") / "inputs"
    write_inputs(folder)
    return folder


def list_files(kind: str, inputs: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (input, file) for each file in copies of all undamaged inputs of a kind."""
    for good in sorted(folder_of(KINDS[kind], inputs).iterdir()):
        path = folder / good.name
        if good.is_dir():
            shutil.copytree(good, path)
            yield from ((path, file) for file in sorted(path.rglob("*")) if file.is_file())
        else:
            shutil.copyfile(good, path)
            yield path, path


def commands_of(kind: str) -> list[str]:
    """Return up to six commands that print and write no files. Commands with ``-v`` come first."""
    printing = [
        words for words in KINDS[kind].commands if "{out}" not in words and "-q" not in words
    ]
    return sorted(printing, key=lambda words: "-v" not in words)[:6]


@pytest.mark.thorough  # this takes a minute
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_fields_are_inert(
    kind: str, inputs: Path, tmp_path: Path, cli: CommandLine
) -> None:
    commands = commands_of(kind)
    count = 0
    for path, file in list_files(kind, inputs, tmp_path):
        for field in PLANTED[kind](file):
            places = {"in": path, "good": path, "inputs": inputs}
            command = commands[count % len(commands)].format_map(places)
            _, out, err = cli(*command.split())
            check(out + err, f"{file.name}: {field}: {command}")
            count += 1

    assert count > 0


@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl", "pgle", "watch", "gate"])
def test_hostile_paths_are_inert(
    command: str, inputs: Path, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / f"run{HOSTILE_TEXT.replace('/', '')}"
    shutil.copytree(inputs / "recordings" / "run", path)
    options = ["--plain", "--stop-after", 0.01, "--interval", 0.01] if command == "watch" else []
    _, out, err = cli(command, path, *options)

    check(out + err, command)


def check(printed: str, where: str) -> None:
    """Check that no printed text controls the terminal or starts an extra line."""
    assert DIRECTING.isdisjoint(printed), (where, sorted(DIRECTING.intersection(printed)))
    lines = printed.splitlines()
    injected = [
        line
        for previous, line in pairwise(["", *lines])
        if line.lstrip().startswith(INJECTED) and not is_broken(previous)
    ]
    assert not injected, (where, injected)


def is_broken(line: str) -> bool:
    """Return whether a line is so long that its sentence continues on the next line."""
    return len(line) + len(f" {INJECTED}") > LONGEST_LINE
