"""Rules that the reader of every input format must follow."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.progress import unwatched
from bubbleviz.sources import readers
from bubbleviz.sources.readers import find_reader
from tests.support.ascend_profiles import write_ascend
from tests.support.columnar_exports import write_columnar
from tests.support.needs import get_real_file
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.operation_tables import write_tables, write_trace
from tests.support.primus_dumps import write_dumped_run
from tests.support.processes import Process, read_processes
from tests.support.recorded_runs import write_recording
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.torch_traces import write_traces
from tests.support.xla_files import E, L, P, make_space, make_trace_json

KNOWN = {reader.name: reader for reader in readers.READERS}
PLANES = [
    P("/device:GPU:0", [L("Stream #1", [E("gemm", 10, 20, {"correlation_id": 1})], 1)]),
    P("/host:CPU", [L("python", [E("train", 0, 50, {"step_num": 3})], 5)]),
]


def write_all_formats(folder: Path) -> dict[str, Path]:
    """Write a file of each format, and return the files, keyed by reader."""
    export = write_profile(folder, [K(10, 20, 1)], [C(5, 8, 1)], [R(0, 50, "F0")])
    (trace,) = write_traces(export, folder)
    planes, trace_json = folder / "host.xplane.pb", folder / "host.trace.json.gz"
    planes.write_bytes(make_space(PLANES))
    trace_json.write_bytes(gzip.compress(make_trace_json(PLANES)))
    return {
        "nsys": export,
        "nsys_columns": write_columnar(export, folder),
        "rocpd": write_rocpd(folder / "7_results.db", read_processes(export)),
        "rpd": write_rpd(folder / "trace.rpd", read_processes(export)),
        "ascend": write_ascend(folder, read_processes(export))[0],
        "kineto": trace,
        "xplane": planes,
        "xla-trace": trace_json,
        "recording": write_recording(folder / "recordings"),
        **write_tables(folder, [(0, "F", 0, 10), (0, "B", 10, 30)]),
        "traced": write_trace(folder / "traced.json", [(0, 0, "F", 0, 10), (0, 0, "BW", 10, 30)]),
        "primus": write_dumped_run(folder / "primus", "1f1b", 1, 2).rank_file(0),
    }


def list_claiming_readers(path: Path) -> list[str]:
    return [name for name, reader in KNOWN.items() if readers.is_recognized(reader, str(path))]


def test_every_reader_has_a_planted_file(tmp_path: Path) -> None:
    assert set(write_all_formats(tmp_path)) == set(KNOWN)


def test_one_reader_claims_each_file(tmp_path: Path) -> None:
    for name, path in write_all_formats(tmp_path).items():
        if path.is_dir():
            assert [n for n, r in KNOWN.items() if r.recognizes_directory(str(path))] == [name]
            assert find_reader(str(path)).name == name
            continue
        assert list_claiming_readers(path) == [name]
        assert find_reader(str(path)).name == name
        reader = KNOWN[name]
        endings = reader.suffixes or reader.table_suffixes or reader.possible_suffixes
        assert str(path).endswith(endings)


def test_unclaimed_json_is_read_as_a_last_resort(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": []}')

    assert list_claiming_readers(path) == []
    assert find_reader(str(path)).name == "kineto"


@pytest.mark.thorough
@pytest.mark.parametrize("name", KNOWN)
def test_damaged_bytes_end_in_a_report_or_a_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random bytes are changed, and the end of the file may be missing."""
    path = write_all_formats(tmp_path)[name]
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for seed in range(40):
        file = files[seed % len(files)]
        undamaged, chance = file.read_bytes(), random.Random(seed)
        content = bytearray(undamaged)
        for _ in range(chance.randint(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        end = chance.choice([len(content), chance.randrange(len(content))])
        file.write_bytes(content[:end])
        for command in ("analyze", "inspect"):
            code = main([command, str(path)])
            stderr = capsys.readouterr().err
            assert code in (0, 1)
            assert "Traceback" not in stderr
            assert code == 0 or stderr.count("\n") == 1, stderr
        file.write_bytes(undamaged)


#: Readers of formats that contain kernels.
#: Formats that contain operations have no kernels.
PROFILES = [name for name, reader in KNOWN.items() if not reader.operations]
TABLES = [name for name, reader in KNOWN.items() if reader.operations]


def write_without_calls(folder: Path) -> dict[str, Path]:
    """Write a file of each format that contains GPU work but neither launches nor ranges."""
    export = write_profile(
        folder, [K(10, 20, 1), K(30, 45, 2)], without=("CUPTI_ACTIVITY_KIND_RUNTIME",)
    )
    trace = folder / "rank0.pt.trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    times = [{"ts": 0.010, "dur": 0.010}, {"ts": 0.030, "dur": 0.015}]
    events = [{**kernel, **time, "args": {"device": 0, "stream": 7}} for time in times]
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    kernels = [E("gemm", 10, 20), E("gemm", 30, 45)]
    bare = [P("/device:GPU:0", [L("Stream #1", kernels, 1)])]
    planes, trace_json = folder / "host.xplane.pb", folder / "host.trace.json.gz"
    planes.write_bytes(make_space(bare))
    trace_json.write_bytes(gzip.compress(make_trace_json(bare)))
    tables = write_columnar(export, folder)
    profiles = {"nsys": export, "nsys_columns": tables}
    (process,) = read_processes(
        write_profile(folder, [K(10, 20, 1), K(30, 45, 2)], name="whole.sqlite")
    )
    process.calls, process.ranges = [], []
    of_rocm = {
        "rocpd": write_rocpd(folder / "7_results.db", [process]),
        "rpd": write_rpd(folder / "trace.rpd", [process]),
        "ascend": write_ascend(folder, [process])[0],
    }
    return {**profiles, **of_rocm, "kineto": trace, "xplane": planes, "xla-trace": trace_json}


@pytest.mark.parametrize("name", PROFILES)
def test_a_partial_reading_has_the_work_and_reports_what_stands_for_launches(
    name: str, tmp_path: Path
) -> None:
    path = str(write_without_calls(tmp_path)[name])

    with KNOWN[name].open_file(path, 1, unwatched) as file:
        reading = file.read((), partial=True)
        calls = sum(map(len, reading.calls.blocks()))
        none = np.empty(0, np.int64)
        everything = reading.all_ranges.lasting(0, none, none, none, None)

    work = reading.activities
    start_ns = work.start_ns - work.start_ns.min()
    assert sorted(zip(start_ns, work.end_ns - work.start_ns, strict=True)) == [(0, 10), (20, 15)]
    assert len(reading.ranges) == 0
    assert len(everything) == 0
    notes = list_limitation_subjects(reading)
    if reading.launches_known:
        assert calls == 0
    else:
        assert calls == len(work)
        assert notes & {"launches", "GPU work"}


@pytest.mark.parametrize("name", PROFILES)
def test_what_lacks_is_refused_or_stood_in_for_where_it_is_needed(
    name: str, tmp_path: Path
) -> None:
    path = str(write_without_calls(tmp_path)[name])

    with KNOWN[name].open_file(path, 1, unwatched) as file:
        try:
            reading = file.read(("*",))
        except NothingToAnalyzeError as error:
            assert any(f"no {api} API calls" in str(error) for api in ("CUDA", "HIP", "CANN"))  # noqa: PT017 - or else launches are not known
        else:
            assert not reading.launches_known


@pytest.mark.parametrize("name", PROFILES)
def test_without_work_there_is_nothing_even_partially(name: str, tmp_path: Path) -> None:
    empty = [P("/device:GPU:0"), P("/host:CPU")]
    content = {
        "kineto": b'{"schemaVersion": 1, "traceEvents": []}',
        "xplane": make_space(empty),
        "xla-trace": make_trace_json(empty),
    }
    path = tmp_path / "none"
    if name.startswith("nsys"):
        path = write_profile(tmp_path)
        path = path if name == "nsys" else write_columnar(path, tmp_path)
    elif name == "ascend":
        (path,) = write_ascend(tmp_path, [Process("node0", 7)])
    elif name in {"rocpd", "rpd"}:
        path = {"rocpd": write_rocpd, "rpd": write_rpd}[name](path, [Process("node0", 7)])
    else:
        path.write_bytes(content[name])

    with (
        KNOWN[name].open_file(str(path), 1, unwatched) as file,
        pytest.raises(NothingToAnalyzeError),
    ):
        file.read((), partial=True)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("partial", [False, True])
def test_a_table_has_no_kernels_and_names_the_command_that_reads_it(
    name: str, partial: bool, tmp_path: Path
) -> None:
    path = str(write_all_formats(tmp_path)[name])

    with (
        KNOWN[name].open_file(path, 1, unwatched) as file,
        pytest.raises(NothingToAnalyzeError, match="to measure bubbles, run bubbleviz analyze"),
    ):
        file.read((), partial=partial)


OF_FOLDER = {
    "kineto/*.json.gz": "kineto",
    "jax/*.xplane.pb": "xplane",
    "jax/*.json.gz": "xla-trace",
    "nsys/**/*.sqlite": "nsys",
    "primus/*/pp_rank_*.json": "primus",
    "straggler/*.parquet": "parquet",
}


@pytest.mark.real_files
def test_one_reader_claims_each_real_file() -> None:
    for pattern, reader in OF_FOLDER.items():
        files = sorted(get_real_file("").glob(pattern))

        assert files, pattern
        assert {str(file): list_claiming_readers(file) for file in files} == {
            str(file): [reader] for file in files
        }


def test_gzipped_planes_are_refused_with_the_advice_to_unpack(tmp_path: Path) -> None:
    path = write_all_formats(tmp_path)["xplane"]
    path.write_bytes(gzip.compress(path.read_bytes()))

    with pytest.raises(ProfileError, match="the xplane file is gzipped; unpack"):
        bubbleviz.idle(path)
