"""``--anonymous``: no output names a host, a file or a thread, and each name has one word."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from zipfile import ZipFile

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.model import private_names
from tests.support.command_line import CommandLine
from tests.support.edited_databases import change
from tests.support.places import EXAMPLE

SECRET = re.compile("zq")
FORMATS = ["svg", "text", "latex", "csv", "bubbles", "html", "json", "chrome"]


@pytest.fixture(params=["zqhost", "zqhost-7.corp.example", "gpu zqhost\u202e", "schedule"])
def profile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a profile whose directory, file, host and threads have names to be hidden."""
    folder = tmp_path / "zqfolder"
    folder.mkdir()
    host = f"value = '{request.param}' WHERE name = 'Hostname'"
    return change(
        folder / "zq file.sqlite",
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET {host}",
        "UPDATE StringIds SET value = 'zqthread' WHERE id IN (SELECT nameId FROM ThreadNames)",
        source=EXAMPLE,
    )


def legible(file: Path) -> str:
    """Return what a file shows, and what is packed in it."""
    text = file.read_text()
    packed = re.search(r'id="document">([^<]+)<', text)
    return zlib.decompress(base64.b64decode(packed[1])).decode() if packed else text


def pids_and_uuids(profile: Path) -> set[object]:
    report = bubbleviz.analyze(profile)
    found: set[object] = {own for rank in report.ranks for own in (rank.pid, rank.uuid)}
    assert len(found) > 1
    return found - {None}


@pytest.mark.parametrize("output", FORMATS)
def test_no_name_in_reports(output: str, profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "zqout"

    assert main(["analyze", str(profile), "--anonymous", f"--{output}", str(file)]) == 0

    written = legible(file)
    assert not SECRET.search(written)
    assert not {*map(str, pids_and_uuids(profile))} & {*re.findall(r"[\w-]+", written)}
    assert str(tmp_path) not in written


def test_a_bundle_reproduces_the_numbers_and_names_nothing(
    profile: Path, tmp_path: Path, cli: CommandLine
) -> None:
    """Nor does it name ranges and groups, which say what the program is."""
    bundles = [tmp_path / "one.zip", tmp_path / "two.zip"]
    for file in bundles:
        assert cli.printed("inspect", profile, "--report", file)
    with ZipFile(bundles[0]) as archive:
        table, numbers = (archive.read(name).decode() for name in archive.namelist())
    (tmp_path / "operations.csv").write_text(table)
    measured = cli.json("analyze", profile, "--json", "-")["summary"]["bubble_ratio"]
    again = cli.json("analyze", tmp_path / "operations.csv", "--json", "-")

    head, first, *others = table.splitlines()
    cell = '"[[""0"",""AllReduce"",""zqgroup"",4,0,0,-1,1,9000000000,9000500000]]"'
    (tmp_path / "grouped.csv").write_text("\n".join((head, first + cell, *others)))
    assert cli.printed("inspect", tmp_path / "grouped.csv", "--report", tmp_path / "grouped.zip")
    with ZipFile(tmp_path / "grouped.zip") as archive:
        grouped = archive.read("operations.csv").decode()

    assert "AllReduce" in grouped
    assert not SECRET.search(grouped)
    assert bundles[0].read_bytes() == bundles[1].read_bytes()
    assert not SECRET.search(table + numbers)
    assert "F0.0.0" not in table
    assert again["summary"]["bubble_ratio"] == measured
    assert json.loads(numbers)["ratios"] == measured


@pytest.mark.parametrize(
    "command",
    [
        ["analyze"],
        ["idle", "--json", "-"],
        ["idle", "--csv", "-"],
        ["idle", "--svg", "-"],
        ["inspect"],
        ["nccl"],
        ["nccl", "--json", "-"],
        ["nccl", "--csv", "-"],
        ["pgle"],
        ["analyze", "--svg", "/zqnowhere/zq.svg"],
        ["analyze", "--plan", "zqplan.csv"],
        ["analyze", "--convention", "zqnames.toml"],
        ["analyze", "zqmissing.sqlite"],
        ["gate", "--max-bubble", "schedule=0.1"],
        ["simulate", "--tf", "1", "--tb", "1", "--tw", "1", "--plan"],
        ["compare", "zqmissing.json"],
    ],
    ids=" ".join,
)
def test_no_name_on_the_terminal(command: list[str], profile: Path, cli: CommandLine) -> None:
    _, printed, complained = cli(*command, str(profile), "--anonymous")

    assert printed + complained
    assert not SECRET.search(printed + complained)
    assert str(profile.parent.parent) not in printed + complained


def test_no_process_or_device_in_what_inspect_prints(profile: Path, cli: CommandLine) -> None:
    printed = cli.printed("inspect", "--anonymous", "-v", str(profile))

    assert "device1" in printed
    assert not {*map(str, pids_and_uuids(profile))} & {*re.findall(r"[\w-]+", printed)}


def test_terms_that_folders_are_named_as_stay(cli: CommandLine) -> None:
    assert "1f1b on 4 ranks" in cli.printed("analyze", "fixtures/1f1b", "--anonymous")


def test_names_are_shown_again_by_the_next_command(profile: Path, cli: CommandLine) -> None:
    cli("inspect", "--anonymous", str(profile))

    assert "zq file.sqlite" in cli.printed("inspect", str(profile))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("node-1", "host1"),
        ("send_node-1 and node-10", "send_host1 and node-10"),
        ("node-1:3 GPU 0", "host1:3 GPU 0"),
        ("runs/a.sqlite: is empty", "file1.sqlite: is empty"),
        ("a.sqlite holds none", "file1.sqlite holds none"),
        ("/home/zq/train.py(33): step", "file2.py(33): function1"),
        ("zq/train.py(33): step, zq/train.py(34)", "file2.py(33): function1, file2.py(34)"),
        ("jit(step)/jit(main)/dot", "jit(step)/jit(main)/dot"),
        ("tokens/s of 1F1B/ZB, 3 / 4", "tokens/s of 1F1B/ZB, 3 / 4"),
        ("runs of profiles", "runs of profiles"),
        ("node-1 pid 4242 GPU 0, of process 4242", "host1 pid 1 GPU 0, of process 1"),
        ("on GPU-286a7124-239e-11ee-be56-0242ac120002, once", "on device1, once"),
        ("thread 7 (pt_autograd_0), in B 3", "thread 7 (thread1), in B 3"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    with private_names.scope():
        private_names.hide()
        private_names.note_paths(["runs/a.sqlite", "-", ""])
        private_names.note_host("node-1")
        assert private_names.anonymous(text) == shown
    assert private_names.anonymous(text) == text


def test_command_lines() -> None:
    with private_names.scope():
        private_names.hide()
        private_names.note_host("svg")
        private_names.note_host("a")
        private_names.note_paths(["x.sqlite", "out"])
        words = ["analyze", "x.sqlite", "--svg", "out", "--same-clock=a,svg", "--skip", "1"]
        assert private_names.anonymous_words(words) == [
            "analyze", "file1.sqlite", "--svg", "file2", "--same-clock=host2,host1", "--skip", "1",
        ]  # fmt: skip
