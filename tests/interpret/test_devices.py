"""Devices: ranks are identified by (host, process, device), and GPUs have names."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.notes import count_limitations, join_limitations
from tests.support.nsys_exports import C, K, R, T, write_profile


@dataclass
class Rows:
    """Rows of an export that tests write operation by operation."""

    kernels: list[K] = field(default_factory=list)
    calls: list[C] = field(default_factory=list)
    ranges: list[R] = field(default_factory=list)
    correlation: int = 0

    def launch(
        self,
        time_ns: int,
        pid: int,
        tid: int,
        device: int,
        *,
        length: int = 100,
        name: str = "gemm",
    ) -> None:
        """Launch one kernel at ``time_ns + 20``, which runs from ``time_ns + 40`` on."""
        self.correlation += 1
        self.calls.append(C(time_ns + 20, time_ns + 30, self.correlation, tid=tid, pid=pid))
        self.kernels.append(
            K(time_ns + 40, time_ns + 40 + length, self.correlation, name, pid=pid, device=device)
        )

    def run(
        self,
        name: str,
        time_ns: int,
        *,
        pid: int = 1,
        tid: int = 1,
        device: int = 0,
        by: int | None = None,
    ) -> None:
        """Run one operation of 200 ns from ``time_ns`` on.

        Thread ``tid`` opens its range, and thread ``by`` (by default, ``tid``) launches its work.
        """
        self.ranges.append(R(time_ns, time_ns + 200, name, tid=tid, pid=pid))
        self.launch(time_ns, pid, tid if by is None else by, device)

    def step(
        self, time_ns: int, *, pid: int = 1, tid: int = 1, device: int = 0, chunk: int = 0
    ) -> None:
        """Run a forward, a backward and an optimizer for one microbatch."""
        self.run(f"F0.{chunk}.0", time_ns, pid=pid, tid=tid, device=device)
        self.run(f"B0.{chunk}.0", time_ns + 300, pid=pid, tid=tid, device=device)
        self.run("Optimizer", time_ns + 600, pid=pid, tid=tid, device=device)

    def write(self, folder: Path, threads: Sequence[T] = (), name: str = "profile.sqlite") -> Path:
        order = sorted(self.kernels, key=lambda k: k.start)
        return write_profile(
            folder, order, self.calls, self.ranges, threads=list(threads), name=name
        )


def work(report: Report) -> set[tuple[int, int, str, int, int, int]]:
    """Return (pid, device, phase, microbatch, chunk, start) of all compute with a span."""
    ranks = {rank.index: (rank.pid, rank.device_id) for rank in report.ranks}
    offset_ns = report.profiles[0].clock_offset_ns
    return {
        (*ranks[op.rank], op.phase, op.microbatch, op.chunk, op.start_ns - offset_ns)
        for op in report.operations
        if op.start_ns is not None
    }


def test_autograd_threads_launch_backwards_of_the_main_thread(tmp_path: Path) -> None:
    """One thread opens all ranges. Thread pt_autograd_d launches the backward on device d."""
    rows = Rows()
    for device in range(2):
        rows.run(f"F0.{device}.0", 300 * device, device=device)
    for device in (1, 0):
        rows.run(f"B0.{device}.0", 600 + 300 * (1 - device), device=device, by=20 + device)
    names = [T(1, "python3"), T(20, "pt_autograd_0"), T(21, "pt_autograd_1")]
    report = bubbleviz.analyze([rows.write(tmp_path, names)])

    assert {(o[1], o[2], o[5]) for o in work(report)} == {
        (0, "F", 40), (1, "F", 340), (1, "BW", 640), (0, "BW", 940),
    }  # fmt: skip
    assert report.profiles[0].cross_thread_kernels == 2


def test_a_backward_range_has_a_part_on_each_device(tmp_path: Path) -> None:
    """A range that launches on two devices has a part on each."""
    rows = Rows()
    rows.ranges += [R(0, 200, "F0.0.0"), R(300, 600, "B0.0.0")]
    for device in range(2):
        rows.launch(50 * device, 1, 1, device)
        rows.launch(300 + 50 * device, 1, 20 + device, device)
    names = [T(20, "pt_autograd_0"), T(21, "pt_autograd_1")]
    report = bubbleviz.analyze([rows.write(tmp_path, names)])

    assert {(o[1], o[2], o[5]) for o in work(report)} == {
        (0, "F", 40), (1, "F", 90), (0, "BW", 340), (1, "BW", 390),
    }  # fmt: skip


AMBIGUOUS = "kernels that may belong to the backward of several threads"
HELPERS = "kernels of helper threads while backward ran elsewhere"


def two_threads(devices: tuple[int, int]) -> Rows:
    """Return two threads that each run a forward, and then have backwards open at the same time."""
    rows = Rows()
    for n, device in enumerate(devices):
        rows.run(f"F{n}.0.0", 100 * n, tid=10 + n, device=device)
        rows.ranges.append(R(500, 900, f"B{n}.0.0", tid=10 + n))
    return rows


@pytest.mark.parametrize(("devices", "device"), [((0, 0), 0), ((0, 1), 2)])
def test_backwards_that_no_device_distinguishes_are_ambiguous_and_counted(
    devices: tuple[int, int], device: int, tmp_path: Path
) -> None:
    rows = two_threads(devices)
    rows.launch(600, 1, 20, device)
    rows.launch(650, 1, 20, device)
    report = bubbleviz.analyze([rows.write(tmp_path)])

    assert not {o for o in work(report) if o[2] == "BW"}
    assert report.profiles[0].ambiguous_kernels == count_limitations(report)[AMBIGUOUS] == 2
    assert report.profiles[0].cross_thread_kernels == 0
    (unknown,) = report.unattributed_kernels
    assert (unknown.count, unknown.gpu_ns) == (2, 200)
    assert unknown.where == "thread 20, while several threads ran backward"


@pytest.mark.parametrize("name", ["pt_data_worker", "pt_nccl_watchdg", "cuda-EvtHandlr"])
def test_a_helper_thread_launches_no_backward(name: str, tmp_path: Path) -> None:
    rows = Rows()
    rows.run("F0.0.0", 0)
    rows.run("B0.0.0", 300, by=20)
    rows.launch(310, 1, 30, 0, name="loader_kernel")
    names = [T(1, "python3"), T(20, "pt_autograd_0"), T(30, name)]
    report = bubbleviz.analyze([rows.write(tmp_path, names)])

    assert report.profiles[0].cross_thread_kernels == 1
    assert count_limitations(report)[HELPERS] == 1
    unattributed_kernels = report.unattributed_kernels
    assert [(k.name, k.count) for k in unattributed_kernels] == [("loader_kernel", 1)]
    assert name in unattributed_kernels[0].where


def test_users_can_add_names_of_helper_threads(tmp_path: Path) -> None:
    rows = Rows()
    rows.run("F0.0.0", 0)
    rows.run("B0.0.0", 300, by=20)
    rows.launch(310, 1, 30, 0)
    path = rows.write(tmp_path, [T(20, "pt_autograd_0"), T(30, "feeder")])
    mine = tmp_path / "mine.toml"
    mine.write_text(
        "helper_threads = ['^feeder']\n[[pattern]]\nglob = '[FB][0-9]*'\n"
        r"match = '^(?P<phase>[FB])(?P<microbatch>[0-9]+)\.'" + "\n",
        encoding="utf-8",
    )

    assert bubbleviz.analyze([path]).profiles[0].cross_thread_kernels == 2
    report = bubbleviz.analyze([path], convention=[str(mine)])
    assert report.profiles[0].cross_thread_kernels == 1
    assert count_limitations(report)[HELPERS] == 1


def test_the_cross_thread_rule_can_be_switched_off(tmp_path: Path, cli: CommandLine) -> None:
    rows = Rows()
    rows.run("F0.0.0", 0)
    rows.run("B0.0.0", 300, by=20)
    path = rows.write(tmp_path)

    on = cli.json("analyze", str(path), "--json", "-")["profiles"][0]
    off = cli.json("analyze", str(path), "--no-cross-thread", "--json", "-")["profiles"][0]

    assert (on["attributed_kernels"], on["cross_thread_kernels"]) == (2, 1)
    assert (off["attributed_kernels"], off["cross_thread_kernels"]) == (1, 0)


def gpu(path: Path, rows: Sequence[tuple[int, int, str, str | None, str | None]]) -> None:
    """Add GPU descriptions, given as (id, cuDevice, name, uuid, busLocation)."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT,"
            " busLocation TEXT, uuid TEXT, cuDevice INTEGER)"
        )
        db.executemany(
            "INSERT INTO TARGET_INFO_GPU (vmId, id, cuDevice, name, uuid, busLocation) "
            "VALUES (1, ?, ?, ?, ?, ?)",
            rows,
        )
        db.commit()


def seen_by(
    path: Path, rows: Sequence[tuple[int | None, int, int]], uuids: Sequence[str | None] = ()
) -> None:
    """Record the ids that processes use for GPUs as (gpuId, cudaId, pid), and UUIDs if given."""
    with closing(sqlite3.connect(path)) as db:
        extra = ", uuid TEXT" if uuids else ""
        db.execute(
            "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, "
            f"pid INTEGER NOT NULL{extra})"
        )
        values = [(*row, uuid) for row, uuid in zip(rows, uuids, strict=True)] if uuids else rows
        slots = ", ".join("?" * (4 if uuids else 3))
        db.executemany(f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ({slots})", values)
        db.commit()


def document(path: Path, cli: CommandLine) -> dict[tuple[int, int], tuple[object, ...]]:
    """Return the (uuid, pci) of each (pid, device) in the JSON report."""
    ranks = cli.json("analyze", path, "--json", "-")["ranks"]
    return {(r["pid"], r["device_id"]): (r["uuid"], r["pci"]) for r in ranks}


def two_processes(folder: Path) -> Path:
    rows = Rows()
    rows.step(0, pid=11, tid=11)
    rows.step(100, pid=12, tid=12)
    return rows.write(folder)


GPUS = (
    (0, 0, "NVIDIA H100", "GPU-0a", "0000:1b:00.0"),
    (1, 1, "NVIDIA H100", "GPU-1b", "0000:43:00.0"),
)


UNKNOWN, FIRST, SECOND = (None, None), ("GPU-0a", "0000:1b:00.0"), ("GPU-1b", "0000:43:00.0")


@pytest.mark.parametrize(
    ("gpus", "visible", "uuids", "found"),
    [
        ((), None, (), (UNKNOWN, UNKNOWN)),
        (GPUS, [(0, 0, 11), (1, 0, 12)], (), (FIRST, SECOND)),
        # Real exports of schema 3.24 have the column, but it contains only NULL.
        (GPUS, [(0, 0, 11), (1, 0, 12)], (None, None), (FIRST, SECOND)),
        # A table that lists only some processes, or none, does not affect the other processes.
        (GPUS, [(1, 0, 12)], (), (UNKNOWN, SECOND)),
        (GPUS, [], (), (FIRST, FIRST)),
        # TARGET_INFO_CUDA_DEVICE contains the UUID of a MIG instance.
        # TARGET_INFO_GPU contains the UUID of the GPU.
        (
            GPUS[:1],
            [(0, 0, 11), (0, 0, 12)],
            ("MIG-0a-1", "MIG-0a-2"),
            (("MIG-0a-1", FIRST[1]), ("MIG-0a-2", FIRST[1])),
        ),
        (
            GPUS[:1],
            [(None, 0, 11), (None, 0, 12)],
            ("MIG-0a-1", "MIG-0a-2"),
            (("MIG-0a-1", None), ("MIG-0a-2", None)),
        ),
        # Ids that nsys could not determine remain unknown.
        ([(0, 0, "GPU", None, None)], None, (), (UNKNOWN, UNKNOWN)),
        ([(0, 0, "GPU", "", None)], None, (), (UNKNOWN, UNKNOWN)),
        (
            [(0, 0, "GPU", "00000000-0000-0000-0000-000000000000", None)],
            None,
            (),
            (UNKNOWN, UNKNOWN),
        ),
    ],
)
def test_each_process_gets_the_gpu_that_it_sees(
    gpus: Sequence[tuple[int, int, str, str | None, str | None]],
    visible: Sequence[tuple[int | None, int, int]] | None,
    uuids: Sequence[str | None],
    found: tuple[object, object],
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    path = two_processes(tmp_path)
    if gpus:
        gpu(path, gpus)
    if visible is not None:
        seen_by(path, visible, uuids)
    report_document = document(path, cli)
    assert (report_document[11, 0], report_document[12, 0]) == found


def test_the_drivers_number_counts_if_no_process_gives_one(
    tmp_path: Path, cli: CommandLine
) -> None:
    """As in a real export, ``id`` 0 is ``cuDevice`` 3."""
    rows = Rows()
    rows.step(0, device=3)
    path = rows.write(tmp_path)
    order = (3, 2, 1, 0)
    gpu(path, [(i, c, "A100", f"GPU-{i}", f"0000:0{i}:00.0") for i, c in enumerate(order)])

    assert document(path, cli) == {(1, 3): ("GPU-0", "0000:00:00.0")}


def test_exports_of_2020_number_gpus_differently(tmp_path: Path, cli: CommandLine) -> None:
    rows = Rows()
    rows.step(0, device=1)
    path = rows.write(tmp_path)
    edit_database(
        path,
        "CREATE TABLE TARGET_INFO_GPU (deviceId INTEGER NOT NULL, name TEXT, busLocation TEXT)",
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'V100', '0000:1a:00.0'), "
        "(1, 'V100', '0000:1c:00.0')",
    )
    report = bubbleviz.analyze([path])

    assert [(r.uuid, r.gpu) for r in report.ranks] == [(None, "V100")]
    assert document(path, cli) == {(1, 1): (None, "0000:1c:00.0")}


@pytest.mark.parametrize("way", ["dropped", "null"])
def test_kernels_without_a_process_belong_to_the_only_one(way: str, tmp_path: Path) -> None:
    rows = Rows()
    rows.step(0, device=1)
    path = rows.write(tmp_path)
    then = bubbleviz.analyze([path])
    lose_process(path, way)
    now = bubbleviz.analyze([path])

    assert work(now) == work(then)
    assert now.iterations[0].ratios == then.iterations[0].ratios
    assert now.profiles[0].attributed_kernels == 3
    assert count_limitations(now)["the process of kernels"] == 3
    assert way == "null" or "globalPid" in join_limitations(now)


@pytest.mark.parametrize("way", ["dropped", "null"])
def test_kernels_of_several_processes_stay_unlinked_which_is_reported(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_processes(tmp_path)
    lose_process(path, way)

    report = bubbleviz.analyze([path])
    assert report.profiles[0].kernels == 6
    assert report.profiles[0].linked_kernels == 0
    assert count_limitations(report)["kernels without their launching call"] == 6
    assert count_limitations(report)["the process of kernels"] == 6
    assert all(i.ratios["schedule"].value is None for i in report.iterations)
    assert main(["analyze", str(path)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def lose_process(path: Path, way: str) -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    edit_database(
        path,
        f"ALTER TABLE {table} DROP COLUMN globalPid"
        if way == "dropped"
        else f"UPDATE {table} SET globalPid = NULL",
    )


@pytest.mark.parametrize("autograd", ["named", "unnamed"])
@pytest.mark.parametrize("devices", ["zero", "local"])
def test_backward_threads_of_planted_processes_give_the_planted_numbers(
    devices: str, autograd: str, tmp_path: Path
) -> None:
    base = Planting(stages=4, microbatches=4, watchdog=True)
    truth = plant(replace(base, devices=devices, autograd=autograd), tmp_path)
    report = bubbleviz.analyze([tmp_path / truth.files[0].path])

    assert [(r.pid, r.device_id, r.uuid) for r in report.ranks] == [
        (r.pid, r.device_id, r.uuid) for r in truth.ranks
    ]
    crossing = sum(o.kernels for o in truth.operations if o.phase in ("B", "BW"))
    assert report.profiles[0].cross_thread_kernels == crossing
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        for ratio, value in true.bubble_ratio.items():
            assert iteration.ratios[ratio].value == pytest.approx(value, abs=1e-9)
