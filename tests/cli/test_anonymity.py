"""With ``--anonymous``, no output names a host, a file or a thread.

All occurrences of a private name are replaced by the same word.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.render.formats import list_renderers
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.places import EXAMPLE
from tests.support.private_names import (
    HOST,
    INPUTS,
    PUBLIC,
    TOKEN,
    has_token,
    write_flight_recordings,
    write_nccl_events,
    write_nsys_export,
    write_operation_table,
    write_recording,
)
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rocpd

SECRET = re.compile("zq")
FORMATS = ["svg", "text", "latex", "csv", "bubbles", "html", "json", "chrome"]


@pytest.fixture(params=["zqhost", "zqhost-7.corp.example", "gpu zqhost\u202e", "schedule"])
def profile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a profile whose directory, file, host and threads have private names."""
    folder = tmp_path / "zqfolder"
    folder.mkdir()
    host = f"value = '{request.param}' WHERE name = 'Hostname'"
    return edit_database(
        folder / "zq file.sqlite",
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET {host}",
        "UPDATE StringIds SET value = 'zqthread' WHERE id IN (SELECT nameId FROM ThreadNames)",
        source=EXAMPLE,
    )


def read_texts(file: Path) -> str:
    """Return the text of a file, including the text of compressed parts."""
    text = file.read_text()
    packed = re.search(r'id="document">([^<]+)<', text)
    return zlib.decompress(base64.b64decode(packed[1])).decode() if packed else text


def list_pids_and_uuids(profile: Path) -> set[object]:
    """Return the process ids and GPU UUIDs of the ranks in a profile."""
    report = bubbleviz.analyze(profile)
    identifiers: set[object] = {
        identifier for rank in report.ranks for identifier in (rank.pid, rank.uuid)
    }
    assert len(identifiers) > 1
    return identifiers - {None}


@pytest.mark.parametrize("output", FORMATS)
def test_reports_contain_no_private_name(output: str, profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "zqout"

    assert main(["analyze", str(profile), "--anonymous", f"--{output}", str(file)]) == 0

    content = read_texts(file)
    assert not SECRET.search(content)
    assert not {*map(str, list_pids_and_uuids(profile))} & {*re.findall(r"[\w-]+", content)}
    assert str(tmp_path) not in content


def test_a_bundle_reproduces_the_numbers_and_names_nothing(
    profile: Path, tmp_path: Path, cli: CommandLine
) -> None:
    """The bundle also lacks the names of ranges and groups, because they describe the program."""
    bundles = [tmp_path / "one.zip", tmp_path / "two.zip"]
    for file in bundles:
        assert cli.printed("inspect", profile, "--report", file)
    with ZipFile(bundles[0]) as archive:
        table, numbers = (archive.read(name).decode() for name in archive.namelist())
    (tmp_path / "operations.csv").write_text(table)
    measured = cli.json("analyze", profile, "--json", "-")["summary"]["bubble_ratio"]
    reproduced = cli.json("analyze", tmp_path / "operations.csv", "--json", "-")

    head, first, *other_lines = table.splitlines()
    cell = '"[[""0"",""AllReduce"",""zqgroup"",4,0,0,-1,1,9000000000,9000500000]]"'
    (tmp_path / "grouped.csv").write_text("\n".join((head, first + cell, *other_lines)))
    assert cli.printed("inspect", tmp_path / "grouped.csv", "--report", tmp_path / "grouped.zip")
    with ZipFile(tmp_path / "grouped.zip") as archive:
        grouped = archive.read("operations.csv").decode()

    assert "AllReduce" in grouped
    assert not SECRET.search(grouped)
    assert bundles[0].read_bytes() == bundles[1].read_bytes()
    assert not SECRET.search(table + numbers)
    assert "F0.0.0" not in table
    assert reproduced["summary"]["bubble_ratio"] == measured
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
def test_no_private_name_is_printed_on_the_terminal(
    command: list[str], profile: Path, cli: CommandLine
) -> None:
    _, printed, complained = cli(*command, str(profile), "--anonymous")

    assert printed + complained
    assert not SECRET.search(printed + complained)
    assert str(profile.parent.parent) not in printed + complained


def test_inspect_prints_no_process_id_or_device_uuid(profile: Path, cli: CommandLine) -> None:
    printed = cli.printed("inspect", "--anonymous", "-v", str(profile))

    assert "device1" in printed
    assert not {*map(str, list_pids_and_uuids(profile))} & {*re.findall(r"[\w-]+", printed)}


def test_terms_stay_even_if_folders_have_the_same_name(cli: CommandLine) -> None:
    assert "1f1b on 4 ranks" in cli.printed("analyze", "fixtures/1f1b", "--anonymous")


def test_names_are_shown_again_by_the_next_command(profile: Path, cli: CommandLine) -> None:
    cli("inspect", "--anonymous", str(profile))

    assert "zq file.sqlite" in cli.printed("inspect", str(profile))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("node-1", "host1"),
        ("send_node-1 and node-10", "send_host1 and node-10"),
        ("node-1:3 GPU 0", "host1:3 GPU 0"),
        ("runs/a.sqlite: is empty", "file1.sqlite: is empty"),
        ("a.sqlite holds none", "file1.sqlite holds none"),
        ("a rank's window, a GPU, a host", "a rank's window, a GPU, a host"),
        ("a rank 3, a pid 7 GPU 0", "file1 rank 3, file1 pid 1 GPU 0"),
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
def test_texts(text: str, expected: str) -> None:
    names = PrivateNames(hidden=True)
    names.note_paths(["runs/a.sqlite", "-", ""])
    names.note_hosts(["node-1"])

    assert names.text(text) == expected
    assert PrivateNames().text(text) == text


def test_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder with the same name as an output would change the result.
    monkeypatch.chdir(tmp_path)
    names = PrivateNames(hidden=True)
    names.note_hosts(["svg", "a"])
    names.note_paths(["x.sqlite", "out"])

    anonymized = names.replaced(
        {"command": "analyze x.sqlite --svg out --same-clock=a,svg --skip 1"}
    )

    assert anonymized == {
        "command": "analyze file1.sqlite --svg file2 --same-clock=host2,host1 --skip 1"
    }


# Every private name contains a token, which no output of any command may contain.


#: Formats that need a special input, such as the lengths of prompts or memory events.
_SPECIAL = {"chunk-costs", "memory-plot"}


def make_output_paths(folder: Path) -> dict[str, Path]:
    """Return an output path for every format of ``analyze``, in a folder whose name is private."""
    output_folder = folder / f"{TOKEN}-out"
    output_folder.mkdir(exist_ok=True)
    names = (renderer for renderer in list_renderers() if renderer.name not in _SPECIAL)
    return {name.name: output_folder / f"{TOKEN}{name.suffixes[0]}" for name in names}


@pytest.fixture(params=INPUTS, ids=lambda own: own.__name__)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an input in which every private name contains the token."""
    folder = tmp_path / TOKEN
    folder.mkdir()
    write: Callable[[Path], Path] = request.param
    return write(folder)


def test_no_format_contains_the_token(planted: Path, cli: CommandLine) -> None:
    """Analyze the file by itself and as part of its folder. Outputs record the command line."""
    files = make_output_paths(planted.parent)
    words = [word for file in files.values() for word in ("-o", file)]

    for path in (planted, planted.parent):
        code, printed, complained = cli("analyze", path, *words, "--force", "--anonymous")

        assert code == 0, complained
        assert TOKEN not in (printed + complained).lower()
        leaking = [n for n, file in files.items() if has_token(file.read_bytes(), TOKEN)]
        assert not leaking


def test_without_the_option_these_formats_contain_the_token(
    tmp_path: Path, cli: CommandLine
) -> None:
    files = make_output_paths(tmp_path)
    words = [word for file in files.values() for word in ("-o", file)]

    assert cli("analyze", write_nsys_export(tmp_path), *words)[0] == 0

    showing = {name for name, file in files.items() if has_token(file.read_bytes(), TOKEN)}
    assert showing >= {"panels", "json", "csv", "parquet", "text", "latex", "chrome", "html", "svg"}


#: Commands that read profiles, as lists of arguments.
_COMMANDS = [
    ["analyze", "-v", "--timings"],
    ["idle", "-v"],
    ["inspect"],
    ["inspect", "-v"],
    ["idle", "--json", "-"],
    ["idle", "--csv", "-"],
    ["idle", "--svg", "-"],
    ["idle", "--page", "-"],
    ["nccl", "-v"],
    ["nccl", "--json", "-"],
    ["nccl", "--csv", "-"],
    ["pgle"],
    ["plan"],
    ["layout"],
    ["gate", "--max-bubble", "12%"],
    ["gate", "--max-bubble", "12%", "--json"],
]


def test_no_command_prints_the_token(planted: Path, cli: CommandLine) -> None:
    is_token_printed = set()
    for command in _COMMANDS:
        _, printed, complained = cli(command[0], planted, *command[1:], "--anonymous")
        assert printed + complained
        assert TOKEN not in (printed + complained).lower(), command
        if command[0] in {"idle", "inspect", "nccl"}:
            is_token_printed |= {TOKEN in "".join(cli(command[0], planted, *command[1:])[1:])}

    assert True in is_token_printed


def test_names_of_ranges_and_kernels_are_kept(tmp_path: Path, cli: CommandLine) -> None:
    """Only the private names inside them are replaced."""
    printed = cli.printed("idle", write_nsys_export(tmp_path), "--json", "-", "--anonymous")

    assert f"{PUBLIC}_host1_0" in printed
    assert f"{PUBLIC} of host1" in printed


def test_no_bundle_contains_a_name(planted: Path, cli: CommandLine) -> None:
    """Names of ranges and kernels are also left out, with and without the option."""
    for number, option in enumerate(([], ["--anonymous"])):
        file = planted.parent / f"{number}.zip"
        code, printed, complained = cli("inspect", planted, "-o", file, *option)

        assert code == 0, complained
        content = file.read_bytes()
        assert not has_token(content, TOKEN)
        assert not has_token(content, PUBLIC)
        assert (TOKEN in printed + complained) == (not option)


def test_saved_reports_name_nobody(tmp_path: Path, cli: CommandLine) -> None:
    """Saved reports contain names that later commands do not get as arguments."""
    folder = tmp_path / TOKEN
    folder.mkdir()
    reports = [folder / f"{TOKEN}{number}.json" for number in range(2)]
    table = write_operation_table(folder)
    for report in reports:
        assert cli("analyze", table, "-o", report)[0] == 0
    assert has_token(reports[0].read_bytes(), TOKEN)

    for command in (
        ["compare", *reports],
        ["compare", *reports, "-v"],
        ["compare", *reports, "--json", "-"],
        ["compare", *reports, "--fail-if-worse"],
        ["gate", reports[0], "--max-bubble", "0%"],
        ["gate", reports[0], "--baseline", reports[1], "--json"],
        ["gate", reports[0], "--promised-by", reports[1], "--markdown", "-"],
        ["plan", reports[0]],
        ["plan", reports[0], "--json", "-"],
        ["simulate", "--from", reports[0], "--schedule", "1f1b", "-p", 2, "-m", 2],
    ):
        _, printed, complained = cli(*command, "--anonymous")
        assert printed + complained
        assert TOKEN not in (printed + complained).lower(), command


def test_no_page_in_the_browser_contains_the_token(
    tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check pages of profiles, a saved report, and a profile without named operations."""
    pages: list[bytes] = []

    class Ended:
        def serve_forever(self) -> None:
            """Return at once, as after Ctrl-C."""

    @contextmanager
    def serving(page: bytes) -> Iterator[tuple[str, Ended]]:
        pages.append(page)
        yield "http://127.0.0.1/", Ended()

    monkeypatch.setattr("bubbleviz.cli.serving.open_server", serving)
    export = write_nsys_export(tmp_path)
    report = tmp_path / f"{TOKEN}.json"
    assert cli("analyze", export, "-o", report)[0] == 0
    idle = tmp_path / f"{TOKEN}-idle.sqlite"
    unnamed = edit_database(idle, "UPDATE NVTX_EVENTS SET text = 'x' || text", source=export)

    for path in (export, report, unnamed):
        cli.printed("view", path, "--no-browser")
        cli.printed("view", path, "--no-browser", "--anonymous")

    assert [has_token(page, TOKEN) for page in pages] == [True, False] * 3


def test_recordings_and_watching_name_no_host(
    tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_recording(tmp_path, monkeypatch)
    lines = tmp_path / f"{TOKEN}.jsonl"
    watch = ("watch", run, "--plain", "--interval", "0.01", "--stop-after", "0.01")

    for option in ([], ["--anonymous"]):
        watched = cli(*watch, "--jsonl", lines, *option)
        measured = cli("analyze", run, "--json", "-", *option)
        missing = cli("watch", tmp_path / f"{TOKEN}-later", *watch[2:], *option)

        assert (watched[0], measured[0], missing[0]) == (0, 0, 1)
        assert (TOKEN in "".join(measured[1:])) == (not option)
        assert (TOKEN in missing[2]) == (not option)
        assert (TOKEN in lines.read_text()) == (not option)
        assert not option or TOKEN not in "".join(watched[1:])
        lines.unlink()


@pytest.mark.parametrize("write", [write_nccl_events, write_flight_recordings])
def test_no_output_of_nccl_contains_the_token(
    write: Callable[[Path], Path], tmp_path: Path, cli: CommandLine
) -> None:
    folder = tmp_path / TOKEN
    folder.mkdir()
    path = write(folder)

    for command in (["nccl"], ["nccl", "-v"], ["nccl", "--json", "-"], ["nccl", "--csv", "-"]):
        printed = cli.printed(command[0], path, *command[1:], "--anonymous")
        assert TOKEN not in printed
    assert TOKEN in cli.printed("nccl", path, "--json", "-")


def test_a_process_has_one_number_in_every_table(tmp_path: Path, cli: CommandLine) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    real, hidden = (
        cli.printed(
            "nccl", write_nccl_events(folder) if number == 0 else folder, "--csv", "-", *option
        )
        for number, option in enumerate(([], ["--anonymous"]))
    )
    pids = [[row["pid"] for row in csv.DictReader(io.StringIO(text))] for text in (real, hidden)]

    assert set(pids[0]) == {"100", "101"}
    assert set(zip(*pids, strict=True)) == {("100", "1"), ("101", "2")}


@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_no_error_on_a_damaged_file_contains_the_token(
    damage: str, planted: Path, cli: CommandLine
) -> None:
    content = planted.read_bytes()
    noise = content[:16] + b"\xff" * 5000
    planted.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "noise": noise}[damage])

    for command in ("analyze", "idle", "inspect", "nccl", "plan"):
        for path in (planted, planted.parent):
            real = cli(command, path)
            hidden = cli(command, path, "--anonymous")
            assert hidden[0] == real[0]
            assert TOKEN not in "".join(hidden[1:]).lower(), command
            assert real[0] == 0 or TOKEN in real[2]


@pytest.mark.parametrize(
    "words",
    [
        ["{T}-missing.sqlite"],
        ["analyze", "{T}-missing.sqlite"],
        ["analyze", "{folder}/{T}.sqlit"],
        ["analyze", "{folder}/*.nothing"],
        ["analyze", "{file}", "-o", "{folder}/nowhere/{T}.svg"],
        ["analyze", "{file}", "-o", "{folder}/{T}.unknown"],
        ["analyze", "{file}", "-o", "{file}"],
        ["analyze", "{file}", "-o", "{folder}/{T}.svg", "--svg", "{folder}/{T}.svg"],
        ["analyze", "{file}", "--plan", "{folder}/{T}.csv"],
        ["analyze", "{file}", "--convention", "{folder}/{T}.toml"],
        ["analyze", "{file}", "--hosts", "{T}-other", "--svg", "-"],
        ["analyze", "{file}", "--same-clock", "{T}-other,{T}-third"],
        ["analyze", "{file}", "--dask", "tcp://{T}:1"],
        ["analyze", "{file}", "{file}"],
        ["idle", "{file}", "--activities", "{folder}/{T}.toml"],
        ["pgle", "{file}", "--against", "{folder}/{T}.pbtxt"],
        ["compare", "{folder}/{T}.json", "{file}"],
        ["gate", "{file}", "--baseline", "{folder}/{T}.json"],
        ["gate", "{file}", "--promised-by", "{folder}/{T}.json"],
        ["simulate", "--from", "{folder}/{T}.json"],
        ["simulate", "--plan", "{T}.csv", "--tf", "1", "--tb", "1", "--tw", "1"],
        ["layout", "--layers", "{folder}/{T}.csv", "-p", "2", "-m", "2"],
        ["watch", "{file}"],
        ["watch", "{folder}", "--listen", "{T}:x"],
        ["watch", "{folder}", "--jsonl", "{folder}/nowhere/{T}"],
        ["mcp", "{folder}/{T}"],
        ["view", "{folder}/{T}.json"],
    ],
    ids=" ".join,
)
def test_no_error_about_arguments_contains_the_token(
    words: list[str], tmp_path: Path, cli: CommandLine
) -> None:
    folder = tmp_path / TOKEN
    folder.mkdir()
    places = {"file": write_nsys_export(folder), "folder": folder, "T": TOKEN}
    arguments = [word.format(**places) for word in words]

    real, hidden = cli(*arguments), cli(*arguments, "--anonymous")

    assert real[0] == hidden[0] != 0
    assert TOKEN in real[2]
    assert TOKEN not in "".join(hidden[1:])


def test_an_error_in_the_middle_of_reading_names_no_host(tmp_path: Path, cli: CommandLine) -> None:
    """The run is refused, so hosts are only known from the files that were read before."""
    (tmp_path / "export").mkdir()
    (process,) = read_processes(write_nsys_export(tmp_path / "export"))
    merged = write_rocpd(
        tmp_path / "merged.db", [process, replace(process, host=f"{HOST}2", pid=9)]
    )

    assert HOST in cli("analyze", merged)[2]
    assert TOKEN not in "".join(cli("analyze", merged, "--anonymous")[1:])
