"""Refusals of files that contain no profile or no kernels: the reason and the next step."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.cli.app import main
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.nccl_runs import ALLREDUCE
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import FIXTURES
from tests.support.torch_traces import write_traces
from tests.support.xla_profiles import make_tpu, write_planes

COMMANDS = {
    "analyze": bubbleviz.analyze,
    "idle": idle,
    "nccl": measure_communication,
    "pgle": measure_costs,
    "inspect": lambda paths: bubbleviz.inspect(paths[0]),
}
#: Options that ``simulate`` needs in addition to a plan.
TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")
LFS = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4665a5ea423c2713d436b5ee50593a9640e0018c1550b5a0002f74190d6caea8\nsize 12345\n"
)


def _get_refusal(command: Any, path: Path) -> str:
    with pytest.raises(bubbleviz.BubblevizError) as caught:
        command([path])
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("run.sqlite", ("analyze", "{file}")),
        ("run.nsys-rep", ("idle", "{file}")),
        ("run.json.gz", ("inspect", "{file}")),
        ("run", ("nccl", "{file}")),
        ("costs.pbtxt", ("pgle", "{profile}", "--against", "{file}")),
        ("costs.pb", ("pgle", "{profile}", "--against", "{file}")),
        ("jax.sqlite", ("pgle", "{file}")),
        ("host.xplane.pb", ("pgle", "{file}")),
        ("plan.csv", ("analyze", "{profile}", "--plan", "{file}")),
        ("plan.csv", ("simulate", "--plan", "{file}", *TIMES)),
        ("ours.toml", ("analyze", "{profile}", "--convention", "{file}")),
        ("ours.toml", ("inspect", "{profile}", "--convention", "{file}")),
        ("ours.toml", ("idle", "{profile}", "--activities", "{file}")),
        ("ours.toml", ("nccl", "{profile}", "--convention", "{file}")),
        ("report.json", ("gate", "{file}", "--max-bubble", "schedule=1")),
        ("report.json", ("compare", "{file}", "{profile}")),
        ("report.json", ("view", "{file}")),
        ("report.json", ("simulate", "--from", "{file}")),
        ("trace-host-1.txt", ("nccl", "{file}")),
        ("trace.jsonlines", ("nccl", "{profile}", "{file}")),
        ("trace-host-2.txt", ("nccl", "{folder}")),
    ],
)
@pytest.mark.parametrize(
    ("text", "remedy"),
    [(LFS, "git lfs pull"), ("/annex/objects/SHA256E-s1--6b86.x\n", "git annex get")],
)
def test_pointers_are_named_wherever_a_file_is_given(
    name: str,
    arguments: tuple[str, ...],
    text: str,
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / name
    export = write_profile(folder, [K(0, 9, 1, ALLREDUCE)], [C(1, 2, 1)], name="own.sqlite")
    file.write_text(text)
    places = {"profile": export, "file": file, "folder": folder}

    code = main([argument.format(**places) for argument in arguments])
    stderr = capsys.readouterr().err
    # The other files of a directory are read.
    assert code == (0 if "{folder}" in arguments else 1)
    assert f"{file}: a Git LFS pointer" in stderr or f"{file}: a git-annex pointer" in stderr
    assert remedy in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("costs.pbtxt", 'costs { name: "fusion.1" cost_us: 3.0 }\n'),
        ("costs.txt", '# proto\ncosts: {\n  name: "fusion.1"\n  cost_us: 3.0 }\n'),
        ("other.pbtxt", "something { else: 1 }\n"),
    ],
)
def test_a_file_of_costs_is_not_a_profile(
    command: str, name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert "bubbleviz pgle with --against" in _get_refusal(COMMANDS[command], path)


def test_a_pytorch_trace_has_no_costs(tmp_path: Path) -> None:
    path = tmp_path / "run.pt.trace.json"
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5.0, "dur": 1.0, "pid": 0, "tid": 7}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 1.0}
    args = {"args": {"correlation": 1, "device": 0}}
    # There is idle time between two kernels, which the command idle breaks down.
    kernels = [{**event, **args}, {**event, **args, "ts": 9.0}]
    events = [*kernels, {**call, **args, "pid": 1, "tid": 1}]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    sentence = _get_refusal(measure_costs, path)
    assert "contains no names of XLA instructions" in sentence
    assert ".xplane.pb" in sentence
    assert "bubbleviz idle" in sentence


def test_an_xplane_without_instructions_is_not_sent_to_nsys(tmp_path: Path) -> None:
    planes = [plane for plane in make_tpu(1) if plane.name.startswith("/host")]
    sentence = _get_refusal(measure_costs, write_planes(tmp_path, planes))
    assert "nsys" not in sentence


def _write_without_kernels(folder: Path, calls: int, *warnings: tuple[int, str | None]) -> Path:
    path = write_profile(
        folder, [], [C(10 * i, 10 * i + 5, i) for i in range(calls)], [R(0, 99, "F0")]
    )
    with closing(sqlite3.connect(path)) as database, database:
        if not calls:
            database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)")
        database.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?)", warnings)
    return path


@pytest.mark.parametrize(
    "warning",
    [
        "No CUDA events collected. Does the process use CUDA?",
        "CUDA profiling might have not been started correctly.",
        "Installed CUDA driver version (13.2) is not supported by this build of Nsight Systems.",
        "Failed to initialize CUPTI: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    ],
)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_the_reason_of_nsys_is_given(warning: str, calls: int, tmp_path: Path) -> None:
    path = _write_without_kernels(tmp_path, calls, (1, "CUDA is fine."), (2, warning), (2, None))
    for command in (bubbleviz.analyze, idle):
        sentence = _get_refusal(command, path)
        assert f"nsys reported: {warning})" in sentence
        assert "fine" not in sentence
        assert ("supports the driver" in sentence) == ("driver" in warning)
    assert any(warning in missing for missing in bubbleviz.inspect(path).missing)


@pytest.mark.parametrize("calls", [0, 3])
def test_hardware_tracing_without_kernels_is_named(calls: int, tmp_path: Path) -> None:
    message = (1, "CUDA hardware tracing is enabled.")
    path = _write_without_kernels(tmp_path, calls, message)
    for command in (bubbleviz.analyze, idle):
        sentence = _get_refusal(command, path)
        assert "hardware tracing of CUDA recorded no kernels" in sentence
        assert "with: nsys profile -t cuda-sw,nvtx" in sentence
        assert ("although 3 CUDA API calls were" in sentence) == (calls == 3)


def test_an_option_for_hardware_tracing_is_recognized(tmp_path: Path) -> None:
    path = _write_without_kernels(tmp_path, 0)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        options = [("CAPTURE_EVENT_TYPE", "CudaHw"), ("COMMAND_LINE", "secret")]
        database.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", options)

    assert "-t cuda-sw,nvtx" in _get_refusal(bubbleviz.analyze, path)


def test_software_tracing_in_place_of_hardware_tracing_is_not_hardware_tracing(
    tmp_path: Path,
) -> None:
    message = (
        "CUDA hardware tracing is not supported on this system. A legacy (software instrumented) "
        "trace was collected instead."
    )
    path = _write_without_kernels(tmp_path, 3, (1, message))
    assert "-t cuda,nvtx" in _get_refusal(bubbleviz.analyze, path)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA hunter2-0123456789abcdef",
        "CUDA_TOKEN=abc CUDA failed",
        "No CUDA in /home/alice/run.sh",
        "CUDA " + "very " * 10_000,
        "",
    ],
)
def test_what_a_program_printed_is_never_repeated(text: str, tmp_path: Path) -> None:
    sentence = _get_refusal(bubbleviz.analyze, _write_without_kernels(tmp_path, 2, (3, text)))
    assert "no CUDA kernels were recorded, although 2 CUDA API calls were;" in sentence
    assert text == "" or text not in sentence


def test_without_any_trace_of_cuda_the_option_is_named(tmp_path: Path) -> None:
    assert "-t cuda,nvtx" in _get_refusal(bubbleviz.analyze, _write_without_kernels(tmp_path, 0))


SHOWING = ("analyze", "inspect", "idle", "nccl", "pgle")


def _make_torch_trace(*, device: bool) -> bytes:
    """Return a PyTorch trace in which kernels come last, after many operators."""
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


def _get_output(command: str, path: Path, cli: CommandLine) -> str:
    _, *outputs = cli(command, path)
    return " ".join("".join(outputs).split())


@pytest.mark.parametrize("command", SHOWING)
@pytest.mark.parametrize("length", [1, 10, 60, 2_000, 20_000])
def test_a_cut_trace_is_called_cut(
    command: str, length: int, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_make_torch_trace(device=True)[:length])
    text = _get_output(command, path, cli)
    assert "cut short" in text
    assert "copy the file again" in text
    assert "record it again" not in text
    assert "record device activity" not in text
    assert "--convention" not in text


def test_operators_of_a_cut_trace_are_said_to_lack_their_work(
    tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_make_torch_trace(device=False)[:5_000])
    text = _get_output("idle", path, cli)
    assert "GPU work, which is written last, may be missing (copy the file again)" in text


@pytest.mark.parametrize("length", [12, 100])
def test_cut_gzip_data_is_called_cut(length: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(_make_torch_trace(device=True))[:length])
    with pytest.raises(bubbleviz.BubblevizError, match="cut short"):
        bubbleviz.analyze(path)


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", '{"a": 1} {'])
def test_complete_json_is_not_called_cut(text: str, tmp_path: Path) -> None:
    path = tmp_path / "jax.trace_viewer.json"  # Ascend uses trace_view.json
    path.write_text(text, encoding="utf-8")
    with pytest.raises(bubbleviz.BubblevizError, match="JSON without") as caught:
        bubbleviz.analyze(path)
    assert "cut" not in str(caught.value)


@pytest.mark.parametrize("command", SHOWING)
@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("x.parquet", b"PAR1\x15\x04", "; pass"),
        ("README.md", "# Größe\n".encode(), "; pass"),
        ("x.zip", b"PK\x03\x04\x14", "; unpack it, or pass"),
        ("trace_view.json", b'[{"ph":"X","cat":"cpu_op"}]', "a timeline from the Ascend profiler"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_what_can_be_read(
    command: str, name: str, content: bytes, advice: str, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    text = _get_output(command, path, cli)
    kind = f"is not a profile{advice} an SQLite export from nsys" if advice[0] == ";" else advice
    assert kind in text
    assert "nsys export" not in text


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="the system has no /proc")
def test_a_file_made_when_read_is_not_called_empty() -> None:
    with pytest.raises(bubbleviz.BubblevizError, match="a special file") as caught:
        bubbleviz.inspect("/proc/version")
    assert "empty" not in str(caught.value)


def test_a_trace_written_by_bubbleviz_is_not_a_profile_in_a_directory(
    tmp_path: Path, cli: CommandLine
) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(_make_torch_trace(device=True))
    ours = tmp_path / "bubbles.trace.json"
    cli.printed("analyze", FIXTURES / "1f1b", "-o", ours)
    assert "a trace that bubbleviz wrote" in _get_output("idle", ours, cli)
    assert ours.name not in _get_output("idle", tmp_path, cli)


@pytest.mark.parametrize("name", ["good.sqlite.gz", "x.json.gz", "y.trace.json.gz"])
def test_a_database_that_is_packed_is_to_be_unpacked(
    name: str, tmp_path: Path, cli: CommandLine
) -> None:
    packed = tmp_path / name
    export = next(Path(FIXTURES / "1f1b").glob("*.sqlite"))
    packed.write_bytes(gzip.compress(export.read_bytes()))

    message = cli.refused("analyze", packed)

    assert (
        message
        == f"bubbleviz: {packed}: is a gzipped SQLite database; unpack it with gunzip first\n"
    )


def test_a_report_that_is_packed_is_to_be_unpacked(tmp_path: Path, cli: CommandLine) -> None:
    packed = tmp_path / "report.json.gz"
    packed.write_bytes(gzip.compress(b'{"schema": "bubbleviz.report/1"}'))

    for words in (("gate", packed, "--max-bubble", "3%"), ("plan", packed)):
        assert "unpack the report with gunzip and pass" in cli.refused(*words)
    message = cli.refused("simulate", "--from", packed)
    assert message == f"bubbleviz: {packed}: the report is gzipped: unpack it with gunzip\n"


def test_two_forms_of_one_process_are_refused(tmp_path: Path, cli: CommandLine) -> None:
    plant(Planting(stages=2, iterations=1), tmp_path)
    write_traces(tmp_path / "node0.sqlite", tmp_path)

    message = cli.refused("analyze", tmp_path)
    assert "both contain process 2001 of the same host" in message
    assert "pass only one of them, or record containers again" in message
