"""The door: a path in place of a command runs what fits, and says so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bubbleviz.analyses.inspection import first_look
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError
from bubbleviz.interpret.record import forget
from bubbleviz.sources.kineto import profile as kineto_profile
from tests.support.places import FIXTURES

DATA = os.environ.get("BUBBLEVIZ_DATA")
ONE = str(FIXTURES / "1f1b")


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    forget()


def unnamed_trace(folder: Path) -> Path:
    """Return a trace of PyTorch with two kernels, and no range that names an operation."""
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "dur": 2,
            "args": {"device": 0, "stream": 7, "correlation": ts},
        }
        for ts in (10, 20)
    ]
    events += [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": ts - 5,
            "dur": 1,
            "args": {"correlation": ts},
        }
        for ts in (10, 20)
    ]
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return file


def test_a_named_pipeline_is_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ONE]) == 0
    by_door = capsys.readouterr()
    assert main(["analyze", ONE]) == 0

    assert by_door.out == capsys.readouterr().out
    assert by_door.err.startswith("bubbleviz: analyze, since ")
    assert by_door.err.count("\n") == 1


def test_options_follow_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert main([ONE, "--skip", "1", "-o", str(file)]) == 0

    assert json.loads(file.read_text())["summary"]["iterations"] == 2
    assert main([ONE, "--convention", "zero-bubble"]) == 0
    assert "--convention says how operations are named" in capsys.readouterr().err


def test_a_trace_without_names_gets_idle_and_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded: list[str] = []
    read_profile = kineto_profile.read_profile

    def counted(file: Any) -> object:
        decoded.append(file.path)
        return read_profile(file)

    monkeypatch.setattr("bubbleviz.sources.kineto.profile.read_profile", counted)
    trace = unnamed_trace(tmp_path)

    assert main([str(trace)]) == 0
    shown = capsys.readouterr()

    assert shown.err.startswith("bubbleviz: idle, since no range of ")
    assert "inspect may draft one" in shown.err
    assert "1 device, idle for" in shown.out
    assert decoded == [str(trace)]


def test_what_is_no_profile_is_refused_without_a_word_on_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing here")

    assert main([str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no profile, but a text" in shown.err
    assert shown.err.count("\n") == 1


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no profile"):
        first_look([str(tmp_path)])


def test_events_of_nccl_get_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        {
            "name": "AllReduce",
            "cat": "COLL",
            "ph": ph,
            "id": 0,
            "pid": 1,
            "tid": 0,
            "ts": ts,
            "args": {"SeqNum": 1, "CommHash": 1, "Rank": 0, "Count": 8, "Datatype": "ncclFloat32"},
        }
        for ph, ts in (("b", 1.0), ("e", 2.0))
    ]
    file = tmp_path / "trace-0.txt"
    file.write_text(json.dumps(events))

    assert first_look([str(file)])[0] == "nccl"
    assert first_look([str(tmp_path)])[0] == "nccl"
    main([str(file)])
    assert capsys.readouterr().err.startswith("bubbleviz: nccl, since ")


@pytest.mark.parametrize("command", ["idle", "gaps", "guide"])
def test_a_command_wins_over_a_path_of_its_name(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(command).write_bytes((FIXTURES / "1f1b" / "node0.sqlite").read_bytes())

    main([command])
    assert "since" not in capsys.readouterr().err
    assert main([f"./{command}"]) == 0
    assert f"analyze, since ./{command} names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
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
def test_neither_a_command_nor_a_path(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) in {1, 2}
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 1000


def test_the_path_is_hidden_where_names_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ONE, "--anonymous"]) == 0
    shown = capsys.readouterr()
    assert "1f1b/node0" not in shown.err


@pytest.mark.skipif(not DATA, reason="BUBBLEVIZ_DATA is not set: no real profiles")
@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("nsys/nsys-ai_mock.sqlite", "idle"),
        ("kineto/hta_nccl_data.json.gz", "idle"),
        ("jax/jax_cpu4.xplane.pb", "idle"),
        ("nccl", "nccl"),
    ],
)
def test_real_files(path: str, command: str) -> None:
    assert first_look([f"{DATA}/{path}"])[0] == command
