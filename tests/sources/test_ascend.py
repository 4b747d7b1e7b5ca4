"""Databases of Ascend's profilers, generated from the same runs as exports of nsys."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.analyses.nccl import hangs, measure_communication
from bubbleviz.analyses.nccl.communications import format_communicator
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.analyses.nccl.totals import find_totals
from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.model.columns import NONE
from bubbleviz.model.copies import Direction
from bubbleviz.progress import unwatched
from bubbleviz.report.idle_summary import StepParts
from bubbleviz.sources.ascend.profile_file import build_decoded
from bubbleviz.sources.ascend.recording import read_recording
from bubbleviz.sources.paths import find_profiles
from bubbleviz.sources.readers import find_reader
from tests.planting import plant
from tests.support import planted_runs
from tests.support.ascend_profiles import BEGIN_NS, GROUP, SECRET, AscendWriter, write_ascend
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.nccl_runs import list_columns
from tests.support.notes import list_limitation_subjects
from tests.support.processes import Process, read_processes

US = 1_000


def plant_processes(folder: Path) -> tuple[Path, list[Process]]:
    """Plant a pipeline of two ranks, and return its export and its processes."""
    (file,) = plant(planted_runs.FULL, folder).files
    export = folder / file.path
    return export, read_processes(export)


@pytest.mark.parametrize("fields", [{}, {"is_queued": True}, {"has_devices": False}])
def test_a_pipeline_gives_the_ratios_of_nsys(fields: dict[str, bool], tmp_path: Path) -> None:
    """Queued work belongs to the ranges of the thread that queued it."""
    export, processes = plant_processes(tmp_path)
    expected = bubbleviz.analyze([export])
    report = bubbleviz.analyze(write_ascend(tmp_path / "ascend", processes, **fields))

    for name, ratio in expected.summary.bubble_ratio.items():
        assert report.summary.bubble_ratio[name].mean == pytest.approx(ratio.mean, abs=1e-12)
    assert [rank.label for rank in report.ranks] == ["node0 NPU 0", "node0 NPU 1"]
    assert report.coverage == expected.coverage
    assert report.limitations == ()
    assert report.restrictions == ()


def make_step() -> Process:
    """Return a step of one device, with overlaps, and kernels outside of the step.

    ::

        us           0    10   20   30   40   50   60   70
        compute           ██████    ███            ██
        communication          █████████                ████
        idle                                ▒▒▒▒▒▒▒  ▒▒▒
    """
    process = Process("node0", 4_000)
    kernels = [(10, 22, "MatMul"), (30, 36, "Add"), (60, 64, "MatMul"), (20, 40, "nccl")]
    kernels += [(70, 78, "ncclSendRecv")]
    for number, (start, end, name) in enumerate(kernels, 1):
        times = start * US, end * US
        process.kernels.append((*times, 3, number, 2, name))
        process.calls.append((times[0] - 5 * US, times[0] - 4 * US, 4_000, number, "launch"))
    process.ranges.append((2 * US, 90 * US, 4_000, "ProfilerStep#50", True))
    return process


def test_idle_gives_the_numbers_of_mindstudio(tmp_path: Path, cli: CommandLine) -> None:
    """``TraceStepTimeDbParser`` of torch_npu defines Computing, Free, Preparing and the rest."""
    (path,) = write_ascend(tmp_path, [make_step()])
    report = bubbleviz.idle([path])
    (device,) = report.devices

    assert device.span_ns == 68 * US
    assert device.compute_ns == (12 + 6 + 4) * US
    assert device.exposed_communication_ns == (8 + 4 + 8) * US
    assert device.idle_ns == (20 + 6) * US
    assert device.steps[0].parts == StepParts(8 * US, 22 * US, 20 * US, 0, 26 * US)
    (rank,) = report.summarize().ranks
    assert rank.steps[0].parts == device.steps[0].parts

    text = tmp_path / "idle.txt"
    report.save(text)
    assert "Steps from their start on the host to their last work" in text.read_text("utf-8")
    division = "step: preparing 0.008 + compute 0.022 + exp. comm. 0.020 + idle 0.026 = 0.076 ms"
    assert division in cli("idle", str(path))[1]


def test_a_profile_has_utc_rank_devices_and_named_work(tmp_path: Path) -> None:
    process = make_step()
    process.copies.append((41 * US, 43 * US, 3, 9, 5))
    AscendWriter(tmp_path / "msprof_20250109.db", 7).write(process)
    path = str(tmp_path / "msprof_20250109.db")
    edit_database(
        Path(path),
        "CREATE TABLE GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER)",
        f"INSERT INTO GC_RECORD VALUES ({BEGIN_NS} + 5000, {BEGIN_NS} + 6000, {4000 << 32 | 4000})",
    )
    with find_reader(path).open_file(path, 1, unwatched) as file:
        profile = file.read(("*",))
        contents = file.inspect(("*",))

    source = profile.source
    assert (source.format, source.device, source.host) == ("ascend", "NPU", "node0")
    assert source.session_utc_ns == BEGIN_NS + 2 * US - 1
    assert profile.global_rank == 7
    assert [(device.device_id, device.name) for device in profile.devices] == [(3, "Ascend910B")]
    # The numbers of communication operations are no parts of their names.
    assert set(profile.activities.names) == {
        "MatMul",
        "Add",
        "hcom_allReduce_",
        "hcom_send_",
    }
    assert profile.copies is not None
    copies = profile.copies()
    assert (copies.activity.tolist(), copies.size.tolist()) == ([5], [64])
    assert copies.direction.tolist() == [Direction.HOST_TO_DEVICE]
    assert set(profile.ranges.names) == {"ProfilerStep#50", "gc: collection"}
    assert contents.readable
    assert contents.tables["communication operations"] == 2


def test_streams_of_communication_are_unknown(tmp_path: Path) -> None:
    (path,) = write_ascend(tmp_path, [make_step()])
    decoded = build_decoded(read_recording(str(path), unwatched))
    assert decoded.profile.streams is not None
    assert decoded.profile.streams().tolist() == [2, 2, 2, -1, -1]


def write_pair(folder: Path, groups: Mapping[str, tuple[int, ...]], n_ranks: int = 2) -> Path:
    """Write the databases of ranks in one all-reduce and one send per 100 us.

    Rank r enters each all-reduce ``10 r`` us late, and all ranks leave it together.
    """
    processes: list[Process] = []
    for rank in range(n_ranks):
        process = Process("node0", 4_000 + rank)
        for number in range(1, 21):
            begin = 100 * US * number
            is_send = number % 2 == 0
            times = begin + 10 * US * rank * (not is_send), begin + 50 * US
            name = "ncclSendRecv" if is_send else "nccl"
            process.kernels.append((*times, rank, number, 2, name))
            process.calls.append((begin - 9 * US, begin - 8 * US, 4_000 + rank, number, "launch"))
        processes.append(process)
    write_ascend(folder, processes, groups=groups)
    return folder


def test_collectives_have_communicators_bytes_and_waits(tmp_path: Path) -> None:
    groups = {GROUP: (0, 1)}
    communication = measure_communication(str(write_pair(tmp_path, groups)))

    totals = {total.name: total for total in find_totals(communication)}
    assert set(totals) == {"AllReduce", "Send"}
    reduced = totals["AllReduce"]
    label = format_communicator(reduced.communicator)
    assert label == "eth0_60000_0_1708156014257149 default_group [0-1]"
    assert (reduced.ranks, reduced.operations, reduced.bytes) == (2, 20, 20 * 4 * 1024)
    assert (reduced.duration_ns, reduced.waiting_ns) == (900 * US, 100 * US)
    assert hangs.list_late_ranks(communication.operations) == [LateRank(1, 10, 100 * US)]
    assert {*list_columns(communication, "rank", "peer")} == {
        (0, 1),
        (1, 0),
        (0, NONE),
        (1, NONE),
    }


def test_peers_are_unknown_in_larger_communicators(tmp_path: Path) -> None:
    folder = write_pair(tmp_path, {GROUP: (0, 1, 2)}, n_ranks=3)
    communication = measure_communication(str(folder))
    assert {total.name for total in find_totals(communication)} == {"AllReduce", "Send"}
    assert {*list_columns(communication, "peer")} == {(NONE,)}


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[1]",
        '{"G": 3}',
        '{"G": {"global_ranks": [0, 0]}}',
        '{"G": {"global_ranks": [true, 1]}}',
        '{"G": {"global_ranks": []}}',
        "[" * 100_000,
    ],
)
def test_invalid_groups_have_unknown_ranks(text: str, tmp_path: Path) -> None:
    (path, _) = write_pair(tmp_path, {}).iterdir()
    groups = text.replace("G", GROUP)
    edit_database(path, f"INSERT INTO META_DATA VALUES ('parallel_group_info', '{groups}')")
    collectives = build_decoded(read_recording(str(path), unwatched)).profile.collectives
    assert collectives is not None
    (group,) = collectives.groups
    assert (group.name, group.ranks) == ("eth0_60000_0_1708156014257149", ())
    assert {*collectives.rank.tolist(), *collectives.peer.tolist()} == {-1}


def test_impossible_sizes_are_unknown(tmp_path: Path) -> None:
    (path, _) = write_pair(tmp_path, {GROUP: (0, 1)}).iterdir()
    edit_database(
        path,
        "UPDATE COMMUNICATION_OP SET count = -5 WHERE opId = 1",
        "UPDATE COMMUNICATION_OP SET count = 1 << 60 WHERE opId = 2",
        "UPDATE COMMUNICATION_OP SET dataType = 65534 WHERE opId = 3",
        "UPDATE COMMUNICATION_OP SET groupName = NULL WHERE opId = 4",
    )
    collectives = build_decoded(read_recording(str(path), unwatched)).profile.collectives
    assert collectives is not None
    assert collectives.elements_out[:5].tolist() == [-1, -1, 1024, 1024, 1024]
    assert collectives.datatype[:5].tolist() == [4, 4, -1, 4, 4]
    assert collectives.group[:5].tolist() == [0, 0, 0, -1, 0]


def test_a_folder_of_rank_folders_is_read(tmp_path: Path, cli: CommandLine) -> None:
    """Summaries in the same folders are not read."""
    _, processes = plant_processes(tmp_path)
    run = tmp_path / "run"
    for rank, process in enumerate(processes):
        folder = run / f"node0_{rank}_20250109_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        write_ascend(folder, [process])
        with closing(sqlite3.connect(folder / "analysis.db")) as db:
            db.execute("CREATE TABLE StepTraceTime (step TEXT)")
    files = [file.path for file in find_profiles([str(run)])]
    assert [Path(file).name for file in files] == ["ascend_pytorch_profiler_0.db"] * 2
    assert find_profiles([str(Path(files[0]).parents[1])])[0].path == files[0]

    status, output, _ = cli("analyze", str(run), "-v")
    assert status == 0
    assert SECRET.encode() in Path(files[0]).read_bytes()
    assert SECRET not in output
    status, _, error = cli("analyze", str(Path(files[0]).with_name("analysis.db")))
    assert status == 1
    assert "neither an nsys export nor a profile from ROCm or Ascend" in error


def test_truncated_and_empty_databases_are_reported(tmp_path: Path) -> None:
    first, second = write_ascend(tmp_path, [make_step(), make_step()])
    third = tmp_path / "ascend_pytorch_profiler_2.db"
    third.touch()
    second.write_bytes(second.read_bytes()[:20_000])
    reasons = [note.reason for note in bubbleviz.idle(tmp_path).limitations]
    assert any(str(second) in reason and "truncated" in reason for reason in reasons)
    assert any(str(third) in reason and "empty" in reason for reason in reasons)
    first.unlink()
    with pytest.raises(ProfileError, match="truncated"):
        bubbleviz.idle(tmp_path)


def test_missing_tables_are_named_with_the_way_to_record_them(tmp_path: Path) -> None:
    (path,) = write_ascend(tmp_path / "old", [make_step()])
    edit_database(path, "ALTER TABLE TASK RENAME COLUMN startNs TO start")
    with pytest.raises(ProfileError, match=r"lacks TASK\.startNs"):
        bubbleviz.idle([path])
    (path,) = write_ascend(tmp_path, [make_step()])
    edit_database(path, "DROP TABLE CANN_API", "DELETE FROM PYTORCH_API")
    with pytest.raises(NothingToAnalyzeError, match=r"no CANN API calls were recorded.*ExportType"):
        bubbleviz.analyze([path])
    edit_database(path, "DROP TABLE COMPUTE_TASK_INFO", "DROP TABLE COMMUNICATION_OP")
    with pytest.raises(NothingToAnalyzeError, match="no work of devices was recorded"):
        bubbleviz.idle([path])


@pytest.mark.parametrize("column", ["startNs", "endNs", "deviceId", "connectionId"])
@pytest.mark.parametrize("value", ["NULL", "-5", "1 << 62", "'text'"])
def test_impossible_numbers_are_reported(column: str, value: str, tmp_path: Path) -> None:
    (path,) = write_ascend(tmp_path, [make_step()])
    edit_database(path, f"UPDATE TASK SET {column} = {value} WHERE rowid = 2")
    try:
        subjects = list_limitation_subjects(bubbleviz.idle([path]))
    except ProfileError as error:
        subjects = {str(error)}
    # Work whose launch is unknown is counted in the report itself.
    assert subjects or column == "connectionId"


def test_devices_of_old_operations_are_guessed_only_if_there_are_several(tmp_path: Path) -> None:
    process = make_step()
    start, end, _, number, stream, name = process.kernels[0]
    process.kernels[0] = (start, end, 2, number, stream, name)
    (path,) = write_ascend(tmp_path, [process], has_devices=False)
    decoded = build_decoded(read_recording(str(path), unwatched))
    assert [note.what for note in decoded.profile.limitations] == ["work without a device"]
    work = decoded.profile.activities
    assert work.ranks[:, 1].tolist() == [2, 3]
    assert np.bincount(work.rank).tolist() == [1, 4]
    # The numbers are removed from names if there are no types.
    assert "hcom_allReduce_" in work.names


def test_traces_in_text_form_are_refused_with_the_option_to_use(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([{"ph": "M", "name": "process_name", "pid": 1}]))
    with pytest.raises(ProfileError, match=r"ExportType\.Db"):
        bubbleviz.idle([path])
