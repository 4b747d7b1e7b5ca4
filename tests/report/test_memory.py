"""Memory of planted operations by stage, in bytes, also in saved reports."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.analyses.layout.inputs import measure_model
from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.panels import draw_theory
from bubbleviz.report.memory import PhaseMemory
from bubbleviz.report.run_times import measure_run_memory, measure_workload
from bubbleviz.report.saved import read_pipeline
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.view import View
from bubbleviz.schedules.plan_memory import set_memory
from tests.planting import Planting, plant
from tests.support.columnar_exports import write_columnar
from tests.support.command_line import CommandLine
from tests.support.memory_events import Allocations, plant_memory
from tests.support.places import FIXTURES
from tests.support.torch_traces import write_traces

MB = 1_000_000
BASE = Planting(stages=2, microbatches=4, devices="zero")
#: Planted allocations of each rank.
#: The last stage frees its output like an activation, in its backward.
TRUTH = (
    Allocations(held=50 * MB, kept=20 * MB, output=3 * MB, temporary=8 * MB, resident=400 * MB),
    Allocations(held=70 * MB, kept=10 * MB, temporary=2 * MB, resident=900 * MB),
)


def write_planted_traces(
    planting: Planting, folder: Path, layers: tuple[int, ...] = ()
) -> list[str]:
    """Write one trace per rank with planted allocations, and return the paths."""
    plant(planting, folder / "nsys")
    traces = write_traces(folder / "nsys" / "node0.sqlite", folder)
    for trace, truth in zip(traces, TRUTH, strict=True):
        plant_memory(trace, truth, layers)
    return [str(trace) for trace in traces]


def map_memory_by_kind(report: bubbleviz.Report) -> dict[tuple[int | None, str], PhaseMemory]:
    assert report.memory is not None
    return {(kind.virtual_stage, kind.phase): kind for kind in report.memory.operations}


def test_memory_is_read_if_it_is_recorded_and_requested(tmp_path: Path) -> None:
    plant(BASE, tmp_path / "nsys")
    traces = write_traces(tmp_path / "nsys" / "node0.sqlite", tmp_path)

    assert bubbleviz.analyze(traces, memory=True).memory is None
    assert bubbleviz.analyze(tmp_path / "nsys", memory=True).memory is None
    assert bubbleviz.analyze(write_planted_traces(BASE, tmp_path)).memory is None


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_activations_are_freed_by_b_or_kept_until_w(schedule: str, tmp_path: Path) -> None:
    traces = write_planted_traces(replace(BASE, schedule=schedule, microbatches=6), tmp_path)
    memory_of_kind = map_memory_by_kind(bubbleviz.analyze(traces, memory=True))

    for stage, truth in enumerate(TRUTH):
        forward = memory_of_kind[stage, Phase.F.label]
        assert forward.held_bytes == truth.held + truth.kept
        assert forward.kept_bytes == truth.kept + (truth.held if schedule == "1f1b" else 0)
        assert forward.n == 12
        backward = memory_of_kind.get((stage, Phase.BW.label))
        assert (schedule == "1f1b") == (backward is not None)
        assert backward is None or backward.held_bytes == 0


def test_peaks_and_resident_memory_are_reported(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_planted_traces(BASE, tmp_path), memory=True)
    assert report.memory is not None

    for peak, truth, max_microbatches in zip(report.memory.ranks, TRUTH, (2, 1), strict=True):
        assert peak.resident_bytes == truth.resident
        # Stage 0 of 1F1B stores two microbatches.
        # An output is freed when the next operation ends.
        activations = max_microbatches * (truth.held + truth.kept)
        assert activations + truth.resident <= peak.peak_bytes
        assert peak.peak_bytes <= activations + truth.resident + truth.temporary + 2 * truth.output


def test_the_table_prints_bytes(cli: CommandLine, tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    out = cli.printed("analyze", *traces, "--memory", "--what-if", "--memory-limit", "2GB")

    assert "Memory of a microbatch" in out
    table = out[out.index("Memory of a microbatch") :]
    row = next(line.split() for line in table.splitlines() if line.strip().startswith("1  "))
    assert row[:7] == ["1", "80.00", "MB", "80.00", "MB", "80.00", "MB"]
    assert "fits in 2.00 GB" in out
    assert "as measured, other schedules without delays except transfers" in " ".join(out.split())
    for limit in ("2", "80XB"):
        message = cli.refused("analyze", *traces, "--memory-limit", limit, code=2)
        assert (
            f"--memory-limit {limit}: must be an amount of memory with a unit, such as 80GB"
            in message
        )
    message = cli.refused("analyze", *traces, "--memory-limit", "80GB", code=2)
    assert message.endswith("only applies to simulated schedules; pass --what-if as well\n")
    words = "analyze", str(FIXTURES / "1f1b"), "--what-if", "--memory-limit"
    assert "Limits: memory limit 80GB has no effect" in cli.printed(*words, "80GB")


def test_stages_with_memory_to_spare_are_listed(cli: CommandLine, tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    report = bubbleviz.analyze(traces, memory=True)
    assert report.memory is not None
    first, last = report.memory.ranks
    out = cli.printed("analyze", *traces, "--memory", "-v")

    table = out[out.index("Peak memory by stage") :].splitlines()
    rows = [line.split() for line in table[3:5]]
    spare = f"{(last.peak_bytes - first.peak_bytes) / MB:.2f}"
    assert rows[0][-4:] == ["400.00", "MB", spare, "MB"]
    assert rows[1][-4:] == ["900.00", "MB", "0", "B"]
    assert "what moving one layer does to time and memory is unknown" in " ".join(out.split())
    first_screen = cli.printed("analyze", *traces, "--memory")
    assert "\n".join(table[:5]) in first_screen
    assert "Peak memory by stage" not in cli.printed("analyze", str(FIXTURES / "1f1b"), "-v")


def test_moves_of_a_layer_show_the_memory_of_both_devices(cli: CommandLine, tmp_path: Path) -> None:
    planting = replace(BASE, layers=(100, 100, 100, 100), layer_counts=(2, 2))
    traces = write_planted_traces(planting, tmp_path, layers=(30 * MB, 10 * MB))
    out = cli.printed("layout", *traces)

    assert "Moving one layer to the next stage, 1f1b: " in out
    assert "peak memory now by device  0: " in out
    assert "the weights of single layers are not recorded" in " ".join(out.split())

    # ``analyze`` prints the same times. It does not measure the activations of single layers.
    analyzed = cli.printed("analyze", *traces, "--memory", "-v")
    for line in ("layers.2  1 -> 0", "layers.1  0 -> 1"):
        times = [text[text.index(line) :].split()[:6] for text in (out, analyzed)]
        assert times[0] == times[1]


def test_a_run_without_memory_events_gives_a_warning(cli: CommandLine) -> None:
    code, _, errors = cli("analyze", str(FIXTURES / "1f1b"), "--memory")

    assert code == 0
    assert "--memory: the profiles contain no memory events" in errors
    assert cli("analyze", str(FIXTURES / "1f1b"))[2] == ""


def test_moves_name_virtual_stages_if_devices_have_several(
    cli: CommandLine, tmp_path: Path
) -> None:
    chunks = replace(BASE, schedule="interleaved-1f1b", chunks=2)
    planting = replace(chunks, layers=(100,) * 9, layer_counts=(2, 2, 3, 2))
    out = cli.printed("layout", *write_planted_traces(planting, tmp_path))

    table = out[out.index("Moving one layer to the next stage") :]
    assert table.splitlines()[2].split()[:3] == ["layer", "virtual", "stages"]


def test_other_schedules_need_the_memory_of_their_orders(tmp_path: Path) -> None:
    traces = write_planted_traces(replace(BASE, schedule="gpipe"), tmp_path)
    report = bubbleviz.analyze(traces, what_if=True, memory_limit="650MB")
    assert report.other_schedules is not None
    rows = {row.schedule: row for row in report.other_schedules.rows}

    # GPipe stores four microbatches on each stage. 1F1B stores two on one stage and one on the
    # other.
    assert rows["gpipe"].peak_bytes == pytest.approx(902e6 + 4 * 80e6, rel=0.01)
    assert rows["1f1b"].peak_bytes == pytest.approx(902e6 + 80e6, rel=0.01)
    assert rows["measured"].peak_bytes == pytest.approx(rows["gpipe"].peak_bytes, rel=0.01)
    assert not rows["1f1b"].fits
    roomy = bubbleviz.analyze(traces, what_if=True, memory_limit="1GB")
    assert roomy.other_schedules is not None
    fits = {row.schedule: row.fits for row in roomy.other_schedules.rows}
    assert (fits["1f1b"], fits["gpipe"], fits["dualpipe"]) == (True, False, False)


@pytest.mark.parametrize("limit", [None, "1.1GB"])
def test_the_picture_and_the_advice_choose_the_same_schedule(
    limit: str | None, tmp_path: Path
) -> None:
    """GPipe stores all microbatches, so any schedule fits in its memory, but few fit in 1.1 GB."""
    traces = write_planted_traces(replace(BASE, schedule="gpipe", microbatches=6), tmp_path)
    report = bubbleviz.analyze(traces, what_if=True, memory_limit=limit)
    advised = next(entry for entry in write_all_advice(report) if entry.kind == "schedule")
    what_if = report.other_schedules
    assert what_if is not None
    assert what_if.best is not None

    assert what_if.best.plan.name == advised.place
    title = f"{advised.place} at the measured times: the best in "
    assert title + ("as much memory" if limit is None else "1.") in draw_theory(report, View())
    fits = {row.schedule: row.fits for row in what_if.rows}
    assert fits[advised.place]


def test_a_saved_report_has_the_memory_limit(tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    for options, limit_bytes in (((), None), (("--memory-limit", "2GB"), 2e9)):
        file = tmp_path / f"{limit_bytes}.json"
        assert main(["analyze", *traces, "--what-if", *options, "--json", str(file)]) == 0
        assert json.loads(file.read_text())["what_if"]["limit_bytes"] == limit_bytes


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, "which fits in the same memory"), ("2GB", "which fits in 2.00 GB")],
)
def test_advice_names_the_memory_that_a_schedule_fits_in(
    tmp_path: Path, limit: str | None, expected: str
) -> None:
    report = bubbleviz.analyze(
        write_planted_traces(BASE, tmp_path), what_if=True, memory_limit=limit
    )
    advised = next(entry for entry in write_all_advice(report) if entry.kind == "schedule")

    assert advised.action.endswith(expected)


def test_a_saved_report_gives_bytes_to_a_workload(tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    file = tmp_path / "report.json"
    assert main(["analyze", *traces, "--memory", "--json", str(file)]) == 0
    section = json.loads(file.read_text())["memory"]
    run = read_pipeline(str(file))
    memory = measure_run_memory(run)

    assert [rank["resident_bytes"] for rank in section["ranks"]] == [400 * MB, 900 * MB]
    assert {(kind["virtual_stage"], kind["phase"]) for kind in section["operations"]} == {
        (0, "F"), (0, "BW"), (1, "F"), (1, "BW"),
    }  # fmt: skip
    assert memory is not None
    assert memory.activation == (70 * MB, 80 * MB)
    workload = measure_workload(run)
    in_bytes = set_memory(workload, memory, 2e9)
    assert in_bytes.activation == memory.activation
    assert in_bytes.limit == tuple(2e9 - resident for resident in memory.resident)
    assert all(
        truth.resident + truth.temporary
        <= resident
        <= truth.resident + truth.temporary + truth.output
        for resident, truth in zip(memory.resident, TRUTH, strict=True)
    )
    assert set_memory(workload, memory, None).limit is None
    with pytest.raises(UsageError, match=r"too small; device 1 always needs 902\.\d+ MB"):
        set_memory(workload, memory, 500e6)


def test_layers_have_the_memory_allocated_inside_their_ranges(tmp_path: Path) -> None:
    planting = replace(BASE, layers=(100, 100, 100, 100), layer_counts=(2, 2))
    model = measure_model(write_planted_traces(planting, tmp_path, layers=(30 * MB, 10 * MB)))

    # Allocations of the operation itself happen inside the range of its first layer.
    layer_bytes = [mb * MB for truth in TRUTH for mb in ((truth.held + truth.kept) / MB + 30, 10)]
    assert model.layers.activation == pytest.approx(layer_bytes)
    assert model.in_bytes
    question = model.make_question(None, None)
    assert question.current_layout is not None
    assert question.current_layout.bounds == (0, 2, 4)


def test_plans_keep_within_bytes(cli: CommandLine, tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    file = str(tmp_path / "report.json")
    assert main(["analyze", *traces, "--memory", "--json", file]) == 0
    for run in ([file], traces):
        plan = cli.json("plan", *run, "--memory-limit", "1GB", "--json", "-")
        # Stage 1 always needs 902 MB, plus 80 MB per microbatch.
        assert plan["workload"]["memory_in_bytes"]
        stage_bytes = [stage["memory"] for stage in plan["workload"]["virtual_stages"]]
        assert stage_bytes == [70e6, 80e6]
        limit = plan["workload"]["memory_limit"]
        assert limit[1] == pytest.approx(98e6, abs=1e6)
    message = cli.refused("plan", file, "--memory-limit", "4", code=2)
    assert "activations are in bytes; pass a size such as 80GB" in message


def write_memory_table(export: Path, traces: list[str]) -> None:
    """Write the memory events of traces into the export from which the traces were made."""
    rows = []
    for trace in traces:
        document = json.loads(gzip.decompress(Path(trace).read_bytes()))
        for event in document["traceEvents"]:
            if event["name"] == "[memory]":
                args = event["args"]
                kind = 2 if args["Device Type"] else 1
                freed = args["Bytes"] < 0
                rows.append((round(event["ts"] * 1000), event["pid"], args["Addr"],
                             abs(args["Bytes"]), kind, int(freed)))  # fmt: skip
    with closing(sqlite3.connect(export)) as connection, connection:
        host = connection.execute(
            "SELECT globalPid >> 48 FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ).fetchone()
        connection.execute(
            "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER "
            "NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT "
            "NULL, pc INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, "
            "memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER)"
        )
        connection.executemany(
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, 0, 1, ?, 0, ?, ?, ?, NULL, 0)",
            [(start, (host[0] << 48) + (pid << 24), *rest) for start, pid, *rest in rows],
        )


def test_the_memory_table_of_nsys_gives_the_same_memory(tmp_path: Path) -> None:
    traces = write_planted_traces(BASE, tmp_path)
    export = tmp_path / "nsys" / "node0.sqlite"
    write_memory_table(export, traces)
    report = bubbleviz.analyze(export, memory=True)

    for key, kind in map_memory_by_kind(bubbleviz.analyze(traces, memory=True)).items():
        nsys_kind = map_memory_by_kind(report)[key]
        assert (nsys_kind.held_bytes, nsys_kind.kept_bytes) == (kind.held_bytes, kind.kept_bytes)
        assert (nsys_kind.net_bytes, nsys_kind.above_bytes) == (kind.net_bytes, kind.above_bytes)
    assert report.memory is not None
    # nsys does not record allocations that precede the capture.
    assert [peak.resident_bytes for peak in report.memory.ranks] == [0, 0]
    directory = write_columnar(export, tmp_path)
    assert bubbleviz.analyze(directory, memory=True).memory == report.memory
