"""Devices of traces of PyTorch: GPUs, other accelerators, and hosts that are none."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.idle.outputs import as_json, sections
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.report import advice, title_of
from bubbleviz.cli.app import main
from tests.planting import Planting, plant
from tests.support import xla_profiles
from tests.support.torch_traces import traces_of
from tests.support.xla_files import E, L, P, space

Events = list[dict[str, Any]]


def _event(cat: str, name: str, start: float, dur: float, **more: Any) -> dict[str, Any]:
    fields = {"pid": 4711, "tid": 4711, "ts": start, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **fields, **more}


def _work(cat: str, start: float, dur: float, correlation: int, **args: Any) -> dict[str, Any]:
    arguments = {"correlation": correlation, **args}
    return _event(cat, "addmm", start, dur, pid=0, tid=3, args=arguments)


def _launch(cat: str, start: float, correlation: int) -> dict[str, Any]:
    return _event(cat, "runFunction", start, 1, args={"correlation": correlation})


def _trace(path: Path, events: Events, **facts: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}))
    return path


def _operators(*names: str) -> Events:
    return [_event("cpu_op", name, 10.0 * at, 6.0) for at, name in enumerate(names)]


#: Category of work, of calls, and what the device is called.
ACCELERATORS = [
    ("kernel", "cuda_runtime", "GPU"),
    ("kernel", "hip_runtime", "GPU"),
    ("kernel", "xpu_runtime", "XPU"),
    ("mtia_ccp_events", "mtia_runtime", "MTIA"),
    ("MTIA_CCP_EVENTS", "cuda_runtime", "MTIA"),
    ("kernel", "privateuse1_runtime", "accelerator"),
    ("kernel", "hpu_op", "accelerator"),
]


@pytest.mark.parametrize(("work", "call", "noun"), ACCELERATORS)
def test_devices_of_any_accelerator_are_devices(
    tmp_path: Path, work: str, call: str, noun: str
) -> None:
    # Busy for 30 of 100 us; the operators, which cover all of it, are no work of a device.
    events = [
        _event("cpu_op", "aten::linear", 0, 120),
        *(_launch(call, start - 2, number) for number, start in enumerate((10, 60, 100))),
        _work(work, 10, 10, 0, device=1),
        _work(work, 60, 10, 1, device=1),
        _work(work, 100, 10, 2, device=1),
    ]

    report = bubbleviz.idle(_trace(tmp_path / "a.json", events))

    (rank,) = report.ranks
    assert (rank.place, rank.device_id, rank.on_host) == (f"{noun} 1", 1, False)
    assert rank.label.endswith(f" {noun} 1")
    assert rank.duty_cycle == pytest.approx(0.3)
    assert title_of(report) == "1 device, idle for 70.00 % of the time"
    assert not report.limitations


@pytest.mark.parametrize(("pid", "device", "notes"), [(3, 3, 2), (70_000, 0, 2)])
def test_work_that_names_no_device_is_that_of_its_process(
    tmp_path: Path, pid: int, device: int, notes: int
) -> None:
    events = [
        *(_launch("mtia_runtime", start - 2, number) for number, start in enumerate((10, 60))),
        {**_work("mtia_ccp_events", 10, 10, 0), "pid": pid},
        {**_work("mtia_ccp_events", 60, 10, 1), "pid": pid},
    ]

    report = bubbleviz.idle(_trace(tmp_path / "a.json", events))

    assert [rank.place for rank in report.ranks] == [f"MTIA {device}"]
    assert ("devices of some kernels and copies", notes) in {
        (note.what, note.count) for note in report.limitations
    }


def test_the_same_run_on_another_accelerator_has_the_same_ratios(tmp_path: Path) -> None:
    plant(Planting(servers=1), tmp_path / "exports")
    exports = sorted((tmp_path / "exports").glob("*.sqlite"))
    traces = [path for export in exports for path in traces_of(export, tmp_path)]
    before = bubbleviz.analyze(traces)
    for trace in traces:
        text = gzip.decompress(trace.read_bytes()).decode()
        text = text.replace('"kernel"', '"mtia_ccp_events"').replace("cuda_runtime", "mtia_runtime")
        trace.write_bytes(gzip.compress(text.encode(), mtime=0))

    report = bubbleviz.analyze(traces)

    assert report.summary == before.summary
    assert [rank.label for rank in report.ranks] == [
        rank.label.replace("GPU", "MTIA") for rank in before.ranks
    ]


@pytest.mark.parametrize("names", [["aten::mm"], ["aten::mm", "aten::relu", "aten::add"]])
def test_a_host_is_a_host_and_has_no_duty_cycle(tmp_path: Path, names: list[str]) -> None:
    report = bubbleviz.idle(_trace(tmp_path / "a.json", _operators(*names), host_name="node7"))

    (rank,) = report.ranks
    assert (rank.label, rank.on_host, rank.duty_cycle) == ("node7 host", True, None)
    assert (report.devices, report.activities) == ((), ())
    assert (report.idle_ns, report.span_ns) == (0, 0)
    assert title_of(report) == ("1 host without a device: operators, and no work of any device")
    assert advice(report)[0].startswith("no work of any device was recorded")
    document = json.loads(as_json(report, 5))
    assert document["ranks"][0]["device"] == "host"
    assert document["ranks"][0]["duty_cycle"] is None
    assert document["ranks"][0]["compute_duty"] is None
    assert {step["duty_cycle"] for step in document["ranks"][0]["steps"]} == {None}
    assert "GPU" not in draw_idle(report)
    assert list(sections(report, 5))


def test_a_host_with_several_devices_of_its_own_is_one_host() -> None:
    data = os.environ.get("BUBBLEVIZ_DATA")
    if not data:
        pytest.skip("BUBBLEVIZ_DATA is not set: no real traces here")
    report = bubbleviz.idle(Path(data, "jax", "jax_cpu4.xplane.pb"))

    assert len(report.ranks) == 4
    assert title_of(report).startswith("1 host without a device")


def test_hosts_beside_devices_count_in_no_sum(tmp_path: Path) -> None:
    _trace(tmp_path / "host.json", _operators("aten::mm", "aten::relu"), host_name="alone")
    events = [
        *(_launch("cuda_runtime", start - 2, number) for number, start in enumerate((10, 60))),
        _work("kernel", 10, 10, 0, device=0),
        _work("kernel", 60, 10, 1, device=0),
    ]
    _trace(tmp_path / "gpu.json", events, host_name="with")

    report = bubbleviz.idle(tmp_path)

    assert sorted(rank.label for rank in report.ranks) == ["alone host", "with GPU 0"]
    assert (report.idle_ns, report.span_ns) == (40_000, 60_000)
    assert title_of(report) == ("1 device, idle for 66.67 % of the time; 1 host without a device")


def test_a_pipeline_on_hosts_is_measured_on_hosts(tmp_path: Path) -> None:
    events = []
    for number, name in enumerate(("Forward 0", "Forward 1", "Backward 0", "Backward 1")):
        events.append(_event("user_annotation", name, 100 * number, 90))
        events.append(_event("cpu_op", "aten::linear", 100 * number + 5, 80))

    report = bubbleviz.analyze(_trace(tmp_path / "a.json", events, host_name="node7"))

    assert [rank.label for rank in report.ranks] == ["node7 host"]


def test_a_run_of_xla_without_a_device_is_one_of_a_host(tmp_path: Path) -> None:
    facts: dict[str, int | str] = {"hlo_op": "dot.1", "hlo_module": "jit_f", "run_id": -5}
    threads = [
        L(name, [E("dot.1", at, at + 10, {**facts, "device_ordinal": at})], 7 + at)
        for at, name in enumerate("ab")
    ]
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(space([P("/host:CPU", threads, {"process_id": 9})]))

    report = bubbleviz.idle(file)

    assert [rank.place for rank in report.ranks] == ["host", "host 1"]
    assert [rank.duty_cycle for rank in report.ranks] == [None, None]
    assert report.devices == ()


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_devices_of_xla_are_named_by_what_they_are(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(xla_profiles.written(tmp_path, getattr(xla_profiles, kind)()))
    for command in ("analyze", "idle", "inspect"):
        assert main([command, path, "-v"]) == 0
        shown = capsys.readouterr().out.replace(path, "")
        assert f"{kind.upper()} 3" in shown
        assert ("GPU 3" in shown) == (kind == "gpu")
    main(["pgle", path])
    assert ("--xla_gpu" in capsys.readouterr().out) == (kind == "gpu")
