"""XLA profiles of several processes in one file: planes with equal names are separate devices."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.errors import ProfileError
from tests.support.needs import get_real_file
from tests.support.xla_files import E, L, P, make_space, make_trace_json
from tests.support.xla_profiles import list_ratios, make_gpu, make_tpu, read_profile_of

#: (index, compute time, span) of a device.
_Device = tuple[int, int, int]


def _list_devices(path: Path) -> list[_Device]:
    ranks = bubbleviz.idle(path).ranks
    return [(rank.device_id, rank.compute_ns, rank.end_ns - rank.start_ns) for rank in ranks]


def _delay_last_kernels(planes: Sequence[P], delay_ns: int, pid: int) -> list[P]:
    """Return the planes of another process, whose last kernels take ``delay_ns`` longer."""
    delayed = []
    for plane in planes:
        lines = [
            replace(
                line,
                events=[
                    replace(event, start=event.start - (delay_ns if number else 0))
                    if line.name == "Stream #7(Kernel)" and number == len(line.events) - 1
                    else event
                    for number, event in enumerate(line.events)
                ],
            )
            for line in plane.lines
        ]
        stats = {**plane.stats, "process_id": pid} if plane.name == "/host:CPU" else plane.stats
        delayed.append(replace(plane, lines=lines, stats=stats))
    return delayed


@pytest.mark.parametrize("hosts", [["h"], []], ids=["named", "nameless"])
@pytest.mark.parametrize("pid", [4322, 4321], ids=["other pid", "same pid"])
def test_joined_xplane_files_are_devices_of_two_processes(
    hosts: list[str], pid: int, tmp_path: Path
) -> None:
    files = [tmp_path / "a.xplane.pb", tmp_path / "b.xplane.pb"]
    files[0].write_bytes(make_space(make_gpu(), hosts))
    files[1].write_bytes(make_space(_delay_last_kernels(make_gpu(), 700, pid), hosts))
    concatenated = tmp_path / "joined.xplane.pb"
    concatenated.write_bytes(b"".join(file.read_bytes() for file in files))

    assert _list_devices(concatenated) == _list_devices(files[0]) + _list_devices(files[1])
    labels = [rank.label for rank in bubbleviz.idle(concatenated).ranks]
    assert len(set(labels)) == len(labels)


def test_joined_files_keep_their_clocks(tmp_path: Path) -> None:
    """Times that are relative to a session start refer to the session of the same file."""
    utc = 1_750_000_000_000_000_000
    contents = []
    for number in range(2):
        environment = P("Task Environment", (), {"profile_start_time": utc + 5_000 * number})
        contents.append(make_space([*make_tpu(1), environment], ["h"]))
    concatenated = tmp_path / "joined.xplane.pb"
    concatenated.write_bytes(b"".join(contents))

    first, second = bubbleviz.idle(concatenated).ranks

    assert second.start_ns - first.start_ns == 5_000


def test_joined_files_of_two_hosts_are_refused(tmp_path: Path) -> None:
    concatenated = tmp_path / "joined.xplane.pb"
    concatenated.write_bytes(make_space(make_gpu(), ["a"]) + make_space(make_gpu(), ["b"]))

    with pytest.raises(
        ProfileError, match=r"contains recordings from 2 hosts.*pass the original files"
    ):
        bubbleviz.idle(concatenated)


def _make_events(planes: Sequence[P], offset: int | str) -> list[Any]:
    events = json.loads(make_trace_json(planes))["traceEvents"]
    return [
        {
            **event,
            "pid": event["pid"] + offset if isinstance(offset, int) else offset.format(**event),
        }
        for event in events
        if event
    ]


def _write(path: Path, events: Sequence[Any]) -> Path:
    document = {"metadata": {"highres-ticks": True}, "traceEvents": events}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("offsets", [(0, 1000), ("[rank 0] {pid}", "[rank 1] {pid}")])
def test_merged_trace_json_holds_devices_of_two_processes(
    offsets: tuple[int | str, ...], tmp_path: Path
) -> None:
    planes = [make_gpu(), _delay_last_kernels(make_gpu(), 700, 4322)]
    files = [
        _write(tmp_path / f"{number}.trace.json", _make_events(own, 0))
        for number, own in enumerate(planes)
    ]
    events = [
        e for own, offset in zip(planes, offsets, strict=True) for e in _make_events(own, offset)
    ]
    merged = _write(tmp_path / "merged.trace.json", events)

    assert _list_devices(merged) == _list_devices(files[0]) + _list_devices(files[1])


@pytest.mark.parametrize("planes", [make_tpu(2), make_gpu()], ids=["TPU", "GPU"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_events_does_not_matter(planes: list[P], seed: int, tmp_path: Path) -> None:
    events_in_order = _make_events(planes, 0)
    shuffled = random.Random(seed).sample(events_in_order, len(events_in_order))

    first = bubbleviz.analyze(_write(tmp_path / "written.trace.json", events_in_order))
    second = bubbleviz.analyze(_write(tmp_path / "shuffled.trace.json", shuffled))

    assert list_ratios(first) == list_ratios(second)
    assert None not in list_ratios(first)
    assert first.summary == second.summary
    for name in ("rank", "phase", "microbatch", "start_ns", "end_ns", "kernels"):
        columns = [getattr(report.operations, name).tolist() for report in (first, second)]
        assert columns[0] == columns[1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_events_of_an_xplane_does_not_matter(seed: int, tmp_path: Path) -> None:
    shuffled = [
        replace(
            plane,
            lines=[
                replace(line, events=random.Random(seed).sample(line.events, len(line.events)))
                for line in plane.lines
            ],
        )
        for plane in make_tpu(2)
    ]
    for name, planes in (("written", make_tpu(2)), ("shuffled", shuffled)):
        (tmp_path / f"{name}.xplane.pb").write_bytes(make_space(planes, ["h"]))

    first, second = (
        bubbleviz.analyze(tmp_path / f"{name}.xplane.pb") for name in ("written", "shuffled")
    )

    assert list_ratios(first) == list_ratios(second)
    assert None not in list_ratios(first)


def test_an_instruction_and_its_loop_may_start_and_end_together(tmp_path: Path) -> None:
    """Their nesting does not depend on the order of events in the file."""
    loop, inner = E("while.1", 0, 100), E("dot.2", 0, 100)
    names = []
    for number, ops in enumerate(([loop, inner], [inner, loop])):
        path = tmp_path / f"{number}.xplane.pb"
        path.write_bytes(make_space([P("/device:TPU:0", [L("XLA Ops", ops)])], ["h"]))
        names.append(read_profile_of(path).activities.names)

    assert names[0] == names[1] == ("dot.2",)


@pytest.mark.real_files
def test_published_trace_sorted_by_time() -> None:
    values = [
        list_ratios(bubbleviz.analyze(get_real_file(f"cases/{name}.trace.json")))
        for name in ("xla_as_written", "xla_sorted_by_time")
    ]

    assert values[0] == values[1]
    assert values[0] == pytest.approx([0.3755] * 3, abs=1e-4)
