"""A path in place of a command runs the command that fits the file, and prints its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bubbleviz.analyses.first_look import choose_command
from bubbleviz.interpret.record import close_open_files
from bubbleviz.progress import Watch
from bubbleviz.sources.kineto import profile as kineto_profile
from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file
from tests.support.places import FIXTURES

ONE = str(FIXTURES / "1f1b")


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    close_open_files()


def unnamed_trace(folder: Path) -> Path:
    """Return a PyTorch trace with two kernels and no range that names an operation."""
    span = {"ph": "X", "pid": 0, "tid": 7}
    events = []
    for ts in (10, 20):
        args = {"device": 0, "stream": 7, "correlation": ts}
        events += [
            {**span, "cat": "kernel", "name": "gemm", "ts": ts, "dur": 2, "args": args},
            {**span, "cat": "cuda_runtime", "name": "call", "ts": ts - 5, "dur": 1, "args": args},
        ]
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return file


def test_a_named_pipeline_is_analyzed(cli: CommandLine) -> None:
    code, out, err = cli(ONE)

    assert (code, out) == (0, cli.printed("analyze", ONE))
    assert err.startswith("bubbleviz: running analyze, because ")
    assert err.count("\n") == 1


def test_options_follow_the_path(tmp_path: Path, cli: CommandLine) -> None:
    file = tmp_path / "report.json"
    cli.printed(ONE, "--skip", "1", "-o", str(file))

    assert json.loads(file.read_text())["summary"]["iterations"] == 2
    assert "because --convention was passed" in cli(ONE, "--convention", "zero-bubble")[2]


def test_a_trace_without_names_runs_idle_and_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    decoded: list[str] = []
    read_profile = kineto_profile.read_profile

    def counted(path: str, watch: Watch) -> object:
        decoded.append(path)
        return read_profile(path, watch)

    monkeypatch.setattr("bubbleviz.sources.kineto.profile.read_profile", counted)
    trace = unnamed_trace(tmp_path)

    code, out, err = cli(str(trace))

    assert code == 0
    assert err.startswith("bubbleviz: running idle, because no range name in ")
    assert f"To draft a convention, run: bubbleviz inspect {trace}" in err
    assert "1 device, idle for" in out
    assert decoded == [str(trace)]
    assert cli("-q", str(trace))[1:] == ("", "")


def test_a_file_that_is_no_profile_is_refused_without_suggesting_commands(
    tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing here")

    assert "is not a profile; pass an SQLite export" in cli.refused(str(file), code=1)


def test_a_table_that_lacks_columns_is_not_called_a_table_of_operations(
    tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("kernel,ms\ngemm,2\n")

    code, _, err = cli(path)

    assert code == 1
    assert err.startswith(f"bubbleviz: {path}: is not a table of operations, because it lacks ")


def test_nccl_events_run_the_nccl_command(tmp_path: Path, cli: CommandLine) -> None:
    args = {"SeqNum": 1, "CommHash": 1, "Rank": 0, "Count": 8, "Datatype": "ncclFloat32"}
    event = {"name": "AllReduce", "cat": "COLL", "id": 0, "pid": 1, "tid": 0, "args": args}
    events = [{**event, "ph": ph, "ts": ts} for ph, ts in (("b", 1.0), ("e", 2.0))]
    file = tmp_path / "trace-0.txt"
    file.write_text(json.dumps(events))

    assert choose_command([str(file)])[0] == "nccl"
    assert choose_command([str(tmp_path)])[0] == "nccl"
    assert cli(str(file))[2].startswith("bubbleviz: running nccl, because ")


@pytest.mark.parametrize("command", ["idle", "gaps", "guide"])
def test_a_command_takes_precedence_over_a_path_of_the_same_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(command).write_bytes((FIXTURES / "1f1b" / "node0.sqlite").read_bytes())

    assert "because" not in cli(command)[2]
    code, _, err = cli(f"./{command}")
    assert code == 0
    assert f"analyze, because the range names in ./{command} follow" in err


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("anaylze", "'anaylze': no such command or file; did you mean analyze?"),
        (str(FIXTURES / "1f1"), f"did you mean {FIXTURES / '1f1b'}?"),
        ("zzz.sqlite", "'zzz.sqlite': no such command or file; see bubbleviz --help"),
        ("", "a path is empty"),
        ("x" * 5000, "no such command or file"),
        ("a\0b", "no such command or file"),
        ("nothing*.sqlite", "no file matches this pattern"),
    ],
)
def test_a_word_that_is_neither_a_command_nor_a_path_is_refused(
    word: str, expected: str, cli: CommandLine
) -> None:
    assert expected in cli.refused(word)


def test_the_path_is_hidden_if_names_are_hidden(cli: CommandLine) -> None:
    assert "1f1b/node0" not in cli(ONE, "--anonymous")[2]


@pytest.mark.real_files
def test_real_files() -> None:
    expected = {
        "nsys/nsys-ai_mock.sqlite": "idle",
        "kineto/hta_nccl_data.json.gz": "idle",
        "jax/jax_cpu4.xplane.pb": "idle",
        "nccl": "nccl",
    }
    assert {path: choose_command([str(get_real_file(path))])[0] for path in expected} == expected
