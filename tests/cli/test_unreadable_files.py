"""Commands warn of unreadable files in a directory, and fail if an unreadable file is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT
from tests.support.xla_profiles import make_tpu, write_planes

#: Commands that read any profile, each with its option for a JSON or text document.
COMMANDS = {"analyze": "--json", "idle": "--json", "nccl": "--json", "pgle": "--pbtxt"}
EMPTY: Mapping[str, bytes] = {"a.sqlite": b"", "z.sqlite": b""}
BAD: Mapping[str, Mapping[str, bytes]] = {
    "empty": EMPTY,
    "one empty": {"a.sqlite": b""},
    "blank": {"a.sqlite": b" \n", "z.sqlite": b"\n\n"},
    "not alike": {"a.sqlite": b"", "b.xplane.pb": b"", "z.pt.trace.json": b""},
    "damaged": {
        "a.sqlite": b"SQLite format 3\0" + bytes(200),
        "z.trace.json.gz": b"\x1f\x8b" + bytes(20),
        "y.xplane.pb": gzip.compress(b"x"),
    },
}


def _write_fixture(command: str, folder: Path) -> Path:
    """Write a profile that the command can read into a folder, and return its path."""
    if command == "pgle":
        return write_planes(folder, make_tpu())
    if command == "nccl":
        return Path(copy(CHECKOUT / "fixtures" / "zb-v" / "rank0.sqlite", folder / "m.sqlite"))
    return Path(copy(CHECKOUT / "fixtures" / "1f1b" / "node0.sqlite", folder / "m.sqlite"))


def _put(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _load_without_limitations(text: str) -> Any:
    """Return a document without its limitations and the texts that mention them."""
    try:
        content = json.loads(text)
    except ValueError:
        return text
    return {key: value for key, value in content.items() if key not in {"limitations", "methods"}}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl", "pgle"])
def test_unreadable_files_of_a_directory_are_warnings(
    command: str, bad: str, tmp_path: Path, cli: CommandLine
) -> None:
    folder, output = tmp_path / "run", tmp_path / "document"
    folder.mkdir()
    profile = _write_fixture(command, folder)
    arguments = [COMMANDS[command], str(output)] if command in COMMANDS else []
    code, out, err = cli(command, str(profile), *arguments)
    if code != 0:
        pytest.skip(f"the fixture contains nothing for {command}: {err}")
    output_alone = out, output.read_text() if output.exists() else ""
    _put(BAD[bad], folder)
    code, out, err = cli(command, str(folder), *arguments, *(["--force"] if arguments else []))
    assert code == 0

    if output.exists():
        assert _load_without_limitations(output.read_text()) == _load_without_limitations(
            output_alone[1]
        )
    else:
        assert out == output_alone[0]
    if command == "analyze":
        # The document contains the same limitations that other commands print.
        notes = json.loads(output.read_text())["limitations"]
        err = "".join(f"bubbleviz: warning: {n['what']}: {n['reason']}\n" for n in notes)
    for name in BAD[bad]:
        lines = [line for line in err.splitlines() if f"{folder / name}: " in line]
        assert len(lines) == 1
        assert lines[0].startswith(
            "bubbleviz: warning: a profile in the directory that cannot be read: "
        )


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl", "pgle"])
def test_a_directory_without_readable_files_is_an_error(
    command: str, bad: str, tmp_path: Path, cli: CommandLine
) -> None:
    _put(BAD[bad], tmp_path)
    message = cli.refused(command, str(tmp_path), code=1)
    assert message.startswith(f"bubbleviz: {tmp_path / min(BAD[bad])}: ")


@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl", "pgle"])
def test_an_unreadable_file_that_is_named_ends_the_command(
    command: str, tmp_path: Path, cli: CommandLine
) -> None:
    profile = _write_fixture(command, tmp_path)
    _put(EMPTY, tmp_path)
    assert (
        "a.sqlite: the file is empty" in cli(command, str(profile), str(tmp_path / "a.sqlite"))[2]
    )
