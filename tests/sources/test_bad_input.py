"""Bad input: the command prints one sentence, exits with an error code and writes nothing.

Each section covers one row of the table of refusals. The tests run the command line in the same way
as a user.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.sources.kineto.memory import read_memory
from tests.support.edited_databases import edit_database, rebuild_table
from tests.support.hostile_profiles import (
    CALLS,
    CONVENTION,
    DIRECTING,
    HOSTILE,
    KERNELS,
    NAMES,
    RANGES,
    hostile_profile,
)
from tests.support.nsys_exports import HOST_ID, R, T, pack_global_id, write_profile
from tests.support.places import FIXTURES

OUTPUTS = ("svg", "csv", "json", "text")
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
UTC_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of one run of the command line."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Bench:
    """A folder of inputs, a folder for outputs, and a runner of the command line."""

    inputs: Path
    outputs: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str | Path) -> Outcome:
        """Run the command line on the inputs, and check that it does not change them."""
        input_content = hash_files(self.inputs)
        self.capture.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = self.capture.readouterr()

        assert hash_files(self.inputs) == input_content
        return Outcome(code, printed.out, printed.err)

    def analyze(self, *arguments: str | Path) -> Outcome:
        """Run ``analyze`` with all outputs."""
        options = [part for name in OUTPUTS for part in (f"--{name}", self.outputs / f"x.{name}")]
        return self.run("analyze", *arguments, *options)

    def refused(self, *arguments: str | Path, code: int = 1) -> str:
        """Check that ``analyze`` refuses and writes nothing, and return its message."""
        output_content = hash_files(self.outputs)
        outcome = self.analyze(*arguments)

        assert hash_files(self.outputs) == output_content
        return read_refusal(outcome, code)

    def report(self, *arguments: str | Path) -> dict[str, object]:
        """Return the JSON report of an analysis that succeeds."""
        outcome = self.run("analyze", *arguments, "--json", "-")

        assert (outcome.code, outcome.err) == (0, "")
        report: dict[str, object] = json.loads(outcome.out)
        return report


def read_refusal(outcome: Outcome, code: int = 1) -> str:
    """Return the error message of a refusal, which must be the only output."""
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.startswith("bubbleviz: ")
    assert outcome.err.endswith("\n")
    line = outcome.err[:-1]
    assert line.isprintable()
    assert "Traceback" not in line
    assert len(line) < 1000
    return line


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 hashes of all files under a folder, keyed by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Return a bench that consists of two empty folders and the command line."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    return Bench(tmp_path / "in", tmp_path / "out", capsys)


def write_smallest_run(
    folder: Path, name: str = "run.sqlite", *, late_ns: int = 0, pid: int = 1
) -> Path:
    """Write the smallest run.

    Args:
        folder: Folder to write to.
        name: File name.
        late_ns: Time in ns from the default start of the session to its start.
        pid: Process id.
    """
    return write_profile(
        folder,
        [replace(kernel, pid=pid) for kernel in KERNELS],
        [replace(call, pid=pid) for call in CALLS],
        [replace(range_, pid=pid) for range_ in RANGES],
        utc_epoch_ns=UTC_NS + late_ns,
        name=name,
    )


def write_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def get_folder(path: Path) -> Path:
    return path.parent


def run_of(bench: Bench, *ranges: R) -> Path:
    return write_profile(bench.inputs, KERNELS, CALLS, list(ranges))


def remove_start(path: Path) -> Path:
    first = "SELECT min(rowid) FROM NVTX_EVENTS WHERE text GLOB 'F[0-9]*'"
    return edit_database(
        path,
        *rebuild_table("NVTX_EVENTS"),
        f"UPDATE NVTX_EVENTS SET start = NULL WHERE rowid = ({first})",
    )


def add_log_file(path: Path, suffix: str) -> Path:
    write_file(path.with_name(path.name + suffix), b"a transaction")
    return path


def link_to_itself(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


NO_PROFILE = b"neither a profile nor a database"
WRITING = ("still being written", "nsys export --type sqlite")
#: Functions that write the inputs, and words in the message that refuses these inputs.
REFUSED: dict[str, tuple[Callable[[Bench], list[Path]], tuple[str, ...]]] = {
    "a missing file": (lambda b: [b.inputs / "nowhere.sqlite"], ("nowhere.sqlite", "no such file")),
    "a link to itself": (
        lambda b: [link_to_itself(b.inputs / "loop.sqlite")],
        ("loop.sqlite", "is a link to a file that does not exist"),
    ),
    "a missing file among others": (
        lambda b: [write_smallest_run(b.inputs), b.inputs / "nowhere.sqlite"],
        ("nowhere.sqlite",),
    ),
    "a pattern without match": (
        lambda b: [b.inputs / "node*.sqlite"],
        ("node*.sqlite", "no file matches"),
    ),
    "a directory without profiles": (
        lambda b: [get_folder(write_file(b.inputs / "notes.txt", b"no profile\n"))],
        ("looked for *", "*.sqlite, ", "*.nsys-rep, *.qdrep"),
    ),
    "a directory of two runs": (
        lambda b: (
            [b.inputs]
            if all(write_smallest_run(make_folder(b.inputs / name)) for name in "ab")
            else []
        ),
        ("contains 2 runs in subfolders; pass the folder of one run, such as", "b"),
    ),
    "a directory of directories of a run": (
        lambda b: [write_smallest_run(make_folder(b.inputs / "a" / "b" / "c")).parents[3]],
        ("contains 1 run in subfolders; pass the folder of one run, such as", "c"),
    ),
    "a directory of unreadable files": (
        lambda b: [get_folder(write_file(b.inputs / "broken.sqlite", NO_PROFILE))],
        ("broken.sqlite",),
    ),
    "an unreadable file that was named": (
        lambda b: [
            write_smallest_run(b.inputs),
            write_file(b.inputs / "broken.sqlite", NO_PROFILE),
        ],
        ("broken.sqlite",),
    ),
    "a folder that is named like a profile": (
        lambda b: [make_folder(b.inputs / "run.sqlite")],
        ("contains no profile",),
    ),
    "a journal": (
        lambda b: [add_log_file(write_smallest_run(b.inputs), "-journal")],
        ("-journal", *WRITING),
    ),
    "a log": (lambda b: [add_log_file(write_smallest_run(b.inputs), "-wal")], ("-wal", *WRITING)),
    "a database that is no export": (
        lambda b: [edit_database(b.inputs / "shop.sqlite", "CREATE TABLE orders (id INTEGER)")],
        ("neither an nsys export", "StringIds", KERNEL, RUNTIME, "NVTX_EVENTS"),
    ),
    "a database without any table": (
        lambda b: [edit_database(b.inputs / "x.sqlite", "CREATE TABLE t (id)", "DROP TABLE t")],
        ("not an nsys export",),
    ),
    "a trace of another database": (
        lambda b: [edit_database(b.inputs / "x.rpd", "CREATE TABLE users (id)")],
        ("neither an nsys export nor a profile from ROCm or Ascend",),
    ),
    "a database without anything": (
        lambda b: [edit_database(b.inputs / "x.db", "PRAGMA user_version = 3")],
        ("not a rocprofv3 profile, because it has none of the tables",),
    ),
    "a start that is NULL": (
        lambda b: [remove_start(write_smallest_run(b.inputs))],
        ("contains NULL (no value) where a number is expected",),
    ),
    "marks alone": (
        lambda b: [run_of(b, *(replace(r, kind=34, end=None) for r in RANGES))],
        ("no NVTX ranges",),
    ),
    "names that no convention knows": (
        lambda b: [run_of(b, R(0, 90, "fwd"), R(100, 190, "bwd"), R(200, 290, "fwd"))],
        ("'fwd' (2)", "'bwd' (1)", "any built-in convention", "--convention"),
    ),
    "ranges without a name": (
        lambda b: [run_of(b, *(replace(r, name=None) for r in RANGES))],
        ("--convention",),
    ),
    "runs of different shape": (lambda _: [FIXTURES / "1f1b", FIXTURES / "zb-v"], ("1f1b", "zb-v")),
    "captures more than a minute apart": (
        lambda b: [
            write_smallest_run(b.inputs, "b.sqlite", pid=2, late_ns=2 * MINUTE_NS),
            write_smallest_run(b.inputs, "a.sqlite"),
        ],
        ("120 s apart", "a.sqlite", "b.sqlite"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_its_reason(bench: Bench, case: str) -> None:
    make_arguments, words = REFUSED[case]
    message = bench.refused(*make_arguments(bench))

    assert [word for word in words if word not in message] == []


def write_three_ranks(folder: Path) -> None:
    for number in (10, 9, 1):
        write_smallest_run(folder, f"rank{number}.sqlite", pid=number)


def read_order(report: dict[str, object]) -> list[str]:
    profiles = report["profiles"]
    assert isinstance(profiles, list)
    return [Path(profile["path"]).name for profile in profiles]


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (("",), (1, 9, 10)),
        (("rank*.sqlite",), (1, 9, 10)),
        (("rank9.sqlite", "rank10.sqlite", "rank1.sqlite"), (9, 10, 1)),
    ],
    ids=["a directory", "a pattern", "files"],
)
def test_files_are_read_in_natural_order_or_as_given(
    bench: Bench, arguments: tuple[str, ...], order: tuple[int, ...]
) -> None:
    write_three_ranks(bench.inputs)
    report = bench.report(*(bench.inputs / name for name in arguments))

    assert read_order(report) == [f"rank{number}.sqlite" for number in order]


def write_damaged(folder: Path, kind: str) -> Path:
    """Write a damaged copy of a profile and return its path."""
    path = folder / f"{kind}.sqlite"
    undamaged = (FIXTURES / "1f1b" / "node0.sqlite").read_bytes()
    noise = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(256))
    pages = [undamaged[at : at + 4096] for at in range(0, len(undamaged), 4096)]
    path.write_bytes(
        {
            "empty": b"",
            "text": b"start,end,name\n1,2,gemm\n",
            "one byte": b"S",
            "encrypted": noise,
            "cut in half": undamaged[: len(undamaged) // 2],
            "cut by a byte": undamaged[:-1],
            "header only": undamaged[:100],
            "half a header": undamaged[:50],
            "overwritten": undamaged[:4096] + noise * (len(undamaged) // len(noise)),
            "zeros": undamaged[:4096] + bytes(len(undamaged) - 4096),
            # Clear the root pages of the tables of kernels, calls and ranges.
            "no roots": b"".join(
                bytes(4096) if at in (6, 27, 35) else page for at, page in enumerate(pages)
            ),
        }[kind]
    )
    return path


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        ("empty", "empty"),
        ("text", "nor an SQLite database"),
        ("one byte", "nor an SQLite database"),
        ("encrypted", "encrypted"),
        ("cut in half", "truncated"),
        ("cut by a byte", "truncated"),
        ("header only", "truncated"),
        ("half a header", "truncated"),
        ("overwritten", "damaged"),
        ("zeros", "damaged"),
        # this is reported first, whatever the hash order
        ("no roots", "CUPTI_ACTIVITY_KIND_KERNEL"),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_a_damaged_file_is_refused(bench: Bench, kind: str, subject: str, command: str) -> None:
    path = write_damaged(bench.inputs, kind)
    message = (
        bench.refused(path) if command == "analyze" else read_refusal(bench.run("inspect", path))
    )

    assert path.name in message
    assert subject in message
    assert "nsys export --type sqlite" in message


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, "NVTX_EVENTS"])
def test_a_row_with_the_largest_number_is_read(bench: Bench, table: str) -> None:
    path = write_smallest_run(bench.inputs)
    undamaged_output = bench.run("analyze", path).out
    largest = (
        f"UPDATE {table} SET rowid = {2**63 - 1} WHERE rowid = (SELECT max(rowid) FROM {table})"
    )
    outcome = bench.run("analyze", edit_database(path, largest))

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == undamaged_output
    assert bench.run("inspect", path).code == 0


def test_no_file_is_left_next_to_a_profile_in_wal_mode(bench: Bench) -> None:
    path = edit_database(write_smallest_run(bench.inputs), "PRAGMA journal_mode=WAL")
    outcome = bench.analyze(path)

    assert (outcome.code, outcome.err) == (0, "")
    assert [p.name for p in bench.inputs.iterdir()] == [path.name]


def test_a_path_with_every_special_character_is_read(bench: Bench) -> None:
    folder = bench.inputs / "a b?c#d%20&'\"é"
    folder.mkdir()
    outcome = bench.analyze(write_smallest_run(folder, "run [1]?mode=rw.sqlite"))

    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("how", ["DROP TABLE", "DELETE FROM"])
@pytest.mark.parametrize("table", [KERNEL, RUNTIME, "NVTX_EVENTS"])
def test_inspect_names_what_was_not_recorded(bench: Bench, table: str, how: str) -> None:
    path = edit_database(write_smallest_run(bench.inputs), f"{how} {table}")
    outcome = bench.run("inspect", path)

    assert "-t cuda,nvtx" in bench.refused(path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "analyze cannot compute bubble ratios" in outcome.out
    assert "-t cuda,nvtx" in outcome.out


def test_a_convention_that_matches_no_name_is_refused(bench: Bench) -> None:
    convention = bench.inputs / "own.toml"
    convention.write_text(CONVENTION.replace(" (?P<phase>", "never (?P<phase>"), encoding="utf-8")
    message = bench.refused(write_smallest_run(bench.inputs), "--convention", convention)

    assert "hostile" in message
    assert "'F#.#.#' (2)" in message


@pytest.mark.parametrize("how", ["same path", "copy", "symbolic link", "hard link"])
def test_a_profile_given_twice_is_refused(bench: Bench, how: str) -> None:
    path = write_smallest_run(bench.inputs)
    twin = bench.inputs / "twin.sqlite"
    if how == "copy":
        shutil.copy(path, twin)
    elif how == "symbolic link":
        twin.symlink_to(path)
    elif how == "hard link":
        os.link(path, twin)
    else:
        twin = path
    message = bench.refused(path, twin)

    assert "are the same profile; pass it only once" in message
    assert path.name in message
    assert twin.name in message


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("how", ["path", "link", "through a folder"])
def test_an_output_is_never_an_input(bench: Bench, force: tuple[str, ...], how: str) -> None:
    path = write_smallest_run(bench.inputs)
    output = path
    if how == "link":
        output = bench.outputs / "link.csv"
        output.symlink_to(path)
    elif how == "through a folder":
        output = bench.inputs / ".." / bench.inputs.name / path.name
    outcome = bench.run("analyze", path, "--csv", output, *force)

    assert "is an input" in read_refusal(outcome)


def test_an_output_is_never_the_convention_file(bench: Bench) -> None:
    convention = bench.inputs / "own.toml"
    convention.write_text(CONVENTION, encoding="utf-8")
    path = write_profile(
        bench.inputs, KERNELS, CALLS, [replace(r, name=f"x {r.name}") for r in RANGES]
    )

    assert "own.toml" in read_refusal(
        bench.run("analyze", path, "--convention", convention, "--csv", convention, "--force")
    )


@pytest.mark.parametrize("key", ["Bytes", "Device Id", "Total Allocated", "Addr"])
@pytest.mark.parametrize("number", [1 << 63, -(1 << 63), (1 << 64) - 1, 10**40])
def test_memory_events_may_have_numbers_beyond_any_memory(
    tmp_path: Path, key: str, number: int
) -> None:
    args = {"Bytes": 512, "Addr": 4, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}
    events = [
        {"ph": "i", "name": "[memory]", "ts": ts, "pid": 1, "tid": 2, "args": {**args, **more}}
        for ts, more in ((1, {}), (2, {key: number}), (3, {"Bytes": -512}))
    ]
    file = tmp_path / "a.pt.trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    memory = read_memory(str(file), 0, on_host=False)

    assert memory is not None
    assert memory.change.tolist() == ([512, -512] if key == "Bytes" else [512, 512, -512])
    assert max(abs(memory.change.cumsum())) <= 1024


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_hostile_run(bench: Bench, text: str) -> Outcome:
    convention = bench.inputs / "own.toml"
    convention.write_text(CONVENTION, encoding="utf-8")
    path = hostile_profile(bench.inputs, text)
    edit_database(
        path,
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT)",
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
    )
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?, ?)", (text, text))
        database.executemany(
            "INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
            [("EXPORT_PRODUCT_VERSION", text), ("EXPORT_SCHEMA_VERSION", text)],
        )
        database.commit()
    outcome = bench.analyze(path, "--convention", convention, "--communication")
    assert (outcome.code, outcome.err) == (0, "")
    return outcome


def read_output(bench: Bench, name: str) -> str:
    return (bench.outputs / f"x.{name}").read_bytes().decode("utf-8")


def check_for_terminals(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert len(line) < 300


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_are_inert(bench: Bench, text: str) -> None:
    outcome = write_hostile_run(bench, text)
    picture, table, report = (read_output(bench, name) for name in ("svg", "csv", "json"))

    for element in ET.fromstring(picture).iter():
        assert element.tag.rsplit("}", 1)[-1] not in {"script", "foreignObject", "a", "image"}
        for attribute, value in element.attrib.items():
            assert not attribute.lower().startswith("on")
            assert attribute.rsplit("}", 1)[-1] != "href" or value.startswith("#")
        if not element.tag.endswith("style"):
            assert not DIRECTING.intersection(element.text or "")
    assert "x" * 1000 not in picture
    rows = list(csv.reader(io.StringIO(table), strict=True))
    assert len(rows) == len(table.splitlines()) == 1 + len(NAMES)
    for row in rows:
        assert len(row) == len(rows[0]) > 15
        for cell in row:
            assert cell.lstrip("-").isdigit() or not cell.startswith(FORMULA)
            assert "\0" not in cell
    assert report.isascii()
    assert all(line.isprintable() for line in report.split("\n"))
    assert json.loads(report)["profiles"][0]["host"] == text
    check_for_terminals(outcome.out)
    # Standard output contains the first screen, and the file contains every table.
    check_for_terminals(read_output(bench, "text"))
    path = bench.inputs / "profile.sqlite"
    # The bound applies to names in the profile.
    # The path is chosen by the user, and advice repeats it.
    check_for_terminals(bench.run("inspect", path).out.replace(str(path), path.name))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_and_tables_are_inert_in_a_refusal(bench: Bench, text: str) -> None:
    quoted = text.replace('"', '""').split("\0", maxsplit=1)[0]
    other = edit_database(bench.inputs / "x.sqlite", f'CREATE TABLE "{quoted}" (id INTEGER)')

    assert "most frequent names" in bench.refused(hostile_profile(bench.inputs, text))
    assert "neither an nsys export" in bench.refused(other)


@pytest.mark.parametrize(
    "name", ["new\nline.sqlite", "\x1b[31mred.sqlite", "<b>.sqlite", "-.sqlite"]
)
def test_hostile_file_names_are_inert(bench: Bench, name: str) -> None:
    assert ".sqlite: no" in bench.refused(bench.inputs / name)

    outcome = bench.analyze(write_smallest_run(bench.inputs, name))
    assert (outcome.code, outcome.err) == (0, "")
    check_for_terminals(outcome.out)
    ET.fromstring(read_output(bench, "svg"))


SECRET = "hunter2-0123456789abcdef"


def add_secrets(path: Path) -> Path:
    """Add a token to every place where an export stores the environment and output of the host."""
    thread = pack_global_id(1, 1)
    return edit_database(
        path,
        "CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)",
        "CREATE TABLE IF NOT EXISTS META_DATA_EXPORT (name TEXT, value TEXT)",
        "CREATE TABLE IF NOT EXISTS PROCESS_STREAMS (globalPid INTEGER, contentId INTEGER)",
        "CREATE TABLE IF NOT EXISTS PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        "CREATE TABLE IF NOT EXISTS DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)",
        f"CREATE TABLE '{SECRET}' (x INTEGER)",
        *(
            f"INSERT INTO {table} (name, value) VALUES ('{name}', '{SECRET}')"
            for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT")
            for name in ("COMMAND_LINE", "ENVIRONMENT", "EXPORT_ARGUMENTS")
        ),
        *(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES "
            f"({HOST_ID << 48}, 'Local', '{name}', 2, '{SECRET}')"
            for name in ("WANDB_API_KEY", "EnvironmentVariable", "hostname", "OsVersion")
        ),
        f"INSERT INTO StringIds VALUES (100000, '{SECRET}')",
        f"INSERT INTO StringIds VALUES (100001, 'WANDB_API_KEY={SECRET}')",
        "INSERT INTO PROCESS_STREAMS VALUES (1, 100000)",
        f"INSERT INTO PROCESSES VALUES (1, 1, '{SECRET}')",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (1, '{SECRET}')",
        # A mark is not a range, but scripts store their arguments in marks.
        "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) "
        f"VALUES (1, 34, '{SECRET}', {thread})",
        "INSERT INTO NVTX_EVENTS (start, eventType, textId, globalTid) "
        f"VALUES (1, 75, 100000, {thread})",
    )


def test_the_recorded_environment_appears_nowhere(bench: Bench) -> None:
    path = add_secrets(write_smallest_run(bench.inputs))
    outcome = bench.analyze(path, "--communication")
    texts = [outcome.out, outcome.err, bench.run("inspect", path).out]
    texts += [read_output(bench, name) for name in OUTPUTS]

    assert outcome.code == 0
    assert not any(SECRET in text for text in texts)


def test_nothing_is_cached(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.chdir(home)
    bench.report(write_smallest_run(bench.inputs))

    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        f"UPDATE {KERNEL} SET start = 'late'",
        f"UPDATE {RUNTIME} SET correlationId = 1e300",
        "UPDATE ENUM_NSYS_EVENT_TYPE SET id = id + 100",
        f"UPDATE {KERNEL} SET start = 0.5 WHERE rowid = 2",
        f"UPDATE {KERNEL} SET deviceId = 'a GPU'",
        f"UPDATE {RUNTIME} SET globalTid = 'a thread'",
        "UPDATE NVTX_EVENTS SET text = 5",
        "UPDATE NVTX_EVENTS SET text = x'ff00fe'",
        "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 'noon'",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = x'ff'",
        f'UPDATE {KERNEL} SET "end" = start - 1',
        f"UPDATE {KERNEL} SET start = -9223372036854775808 WHERE rowid = 1",
        f'UPDATE {KERNEL} SET "end" = 9223372036854775807 WHERE rowid = 1',
        'UPDATE NVTX_EVENTS SET "end" = start - 5',
        "UPDATE NVTX_EVENTS SET text = 'F99999999999999999999.0.0' WHERE text = 'F0.0.0'",
        "UPDATE NVTX_EVENTS SET text = 'F4000000000.4000000000.4000000000' WHERE text = 'F0.0.0'",
    ],
)
@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_a_strange_value_is_refused_or_reported(bench: Bench, damage: str, command: str) -> None:
    path = write_profile(bench.inputs, KERNELS, CALLS, RANGES, threads=[T(1, "main")])
    edit_database(add_secrets(path), damage)
    outcome = bench.analyze(path) if command == "analyze" else bench.run("inspect", path)

    assert SECRET not in outcome.out + outcome.err
    if outcome.code != 0:
        read_refusal(outcome)
        assert list(bench.outputs.iterdir()) == []
    else:
        assert outcome.err == ""
