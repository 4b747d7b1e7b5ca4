"""Files that are no profile, or only the beginning of one: what they are called, and what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from tests.support.places import FIXTURES

COMMANDS = ("analyze", "inspect", "idle", "nccl", "pgle")


def _trace(*, device: bool) -> bytes:
    """Return a trace of PyTorch whose kernels come last, behind many operators."""
    times = {"ph": "X", "dur": 5, "pid": 1, "tid": 1}
    events: list[dict[str, object]] = [
        {"cat": "cpu_op", "name": f"aten::mm_{n}", "ts": 10 * n, **times, "args": {}}
        for n in range(200)
    ]
    args = {"device": 0, "stream": 7, "correlation": 1}
    events += [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, **times, "args": args},
        {"cat": "kernel", "name": "gemm", "ts": 9, **times, "args": args},
    ]
    head: dict[str, object] = {"schemaVersion": 1}
    if device:
        head["deviceProperties"] = [{"id": 0, "name": "GPU"}]
    return json.dumps({**head, "traceEvents": events}).encode()


def _refusal(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main([command, str(path)])
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("length", [1, 10, 60, 2_000, 20_000])
def test_a_trace_that_is_cut_is_called_cut(
    command: str, length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_trace(device=True)[:length])
    text = _refusal(command, path, capsys)
    assert "cut short" in text
    assert "copy the file again" in text
    assert "record it again" not in text
    assert "record their activity" not in text
    assert "--convention" not in text


def test_operators_of_a_cut_trace_are_said_to_lack_their_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_trace(device=False)[:5_000])
    text = _refusal("idle", path, capsys)
    assert "GPU work is written last, so that it may be missing; copy the file again" in text


@pytest.mark.parametrize("length", [12, 100])
def test_gzip_data_that_is_cut_is_called_cut(length: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(_trace(device=True))[:length])
    with pytest.raises(bubbleviz.BubblevizError, match="cut short"):
        bubbleviz.analyze(path)


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", '{"a": 1} {'])
def test_whole_json_is_not_called_cut(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(bubbleviz.BubblevizError, match="JSON without") as caught:
        bubbleviz.analyze(path)
    assert "cut" not in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.parquet", b"PAR1\x15\x04", "a Parquet table"),
        ("x.arrow", b"ARROW1\0\0", "an Arrow table"),
        ("x.yaml", b"jobs:\n  - 1\n", "a text"),
        ("README.md", "# Größe\n".encode(), "a text"),
        ("x.zip", b"PK\x03\x04\x14", "a ZIP archive; unpack it"),
        ("x.bin", b"\x00\xff\xfe\x01", "a binary file of an unknown kind"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    command: str,
    name: str,
    content: bytes,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    text = _refusal(command, path, capsys)
    assert f"no profile, but {kind}; " in text
    assert "nsys export" not in text
    assert "an SQLite export of nsys" in text


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="the system has no /proc")
def test_a_file_made_when_read_is_not_called_empty() -> None:
    with pytest.raises(bubbleviz.BubblevizError, match="a special file") as caught:
        bubbleviz.inspect("/proc/version")
    assert "empty" not in str(caught.value)


def test_a_trace_of_ours_is_no_profile_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(_trace(device=True))
    ours = tmp_path / "bubbles.trace.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "-o", str(ours)]) == 0
    capsys.readouterr()

    assert "a trace that bubbleviz wrote" in _refusal("idle", ours, capsys)
    assert ours.name not in _refusal("idle", tmp_path, capsys)
