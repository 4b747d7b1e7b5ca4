"""XLA's xplane files: planted runs, recognition of work, real files, and damaged bytes."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz import errors
from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.cli.app import main
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.profile import Profile
from bubbleviz.sources.paths import find_profiles
from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file
from tests.support.notes import count_limitations, list_limitation_subjects
from tests.support.places import CHECKOUT
from tests.support.xla_files import E, L, P, build_space_type, make_space, make_trace_json
from tests.support.xla_profiles import (
    LENGTH,
    MICROBATCHES,
    STAGES,
    STEPS,
    T_B,
    T_F,
    T_SEND,
    count_names,
    list_ratios,
    make_gpu,
    make_op,
    make_tpu,
    read_or_refused,
    read_profile_of,
    write_planes,
)

#: Busy time: each operation is T_SEND shorter than its slot, and so is the complete run.
BUSY = MICROBATCHES * (T_F + T_B - 2 * T_SEND)
RATIO = 1 - BUSY / (LENGTH - T_SEND)


@pytest.mark.parametrize("refs", [True, False], ids=["referred", "in place"])
@pytest.mark.parametrize("planes", [make_tpu(), make_gpu()], ids=["TPU", "GPU"])
def test_a_planted_pipeline_has_its_ratio(planes: list[P], refs: bool, tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_planes(tmp_path, planes, refs=refs))

    assert report.convention == "jax-xla"
    assert len(report.ranks) == STAGES
    assert len(report.iterations) == STEPS
    assert [round(ratio or 0, 9) for ratio in list_ratios(report)] == [round(RATIO, 9)] * STEPS


def test_without_launches_no_idle_time_is_attributed_to_the_host(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_planes(tmp_path, make_tpu()))

    assert len(report.bubbles)
    assert Cause.HOST not in report.bubbles.cause
    assert (report.operations.launched_ns == -1).all()
    assert [note for note in report.limitations if note.what == "launches"]
    assert "launches" not in list_limitation_subjects(
        bubbleviz.analyze(write_planes(tmp_path, make_gpu(), "g.xplane.pb"))
    )


def test_steps_are_iterations_if_each_module_has_one_pass(tmp_path: Path) -> None:
    planes = []
    for plane in make_tpu():
        steps, modules, *rest = plane.lines
        half = [
            E(f"jit_{name}({number})", m.start + share + 1, m.start + share + LENGTH // 3 - 10)
            for m in modules.events
            for number, (name, share) in enumerate((("forward", 0), ("backward", LENGTH // 3)))
        ]
        planes.append(replace(plane, lines=[steps, L("XLA Modules", half, 2), *rest]))
    report = bubbleviz.analyze(write_planes(tmp_path, planes))

    assert [iteration.name for iteration in report.iterations] == ["4", "5", "6"]
    assert [round(ratio or 0, 9) for ratio in list_ratios(report)] == [round(RATIO, 9)] * STEPS


def test_hosts_of_one_run_are_merged(tmp_path: Path) -> None:
    utc = 1_750_000_000_000_000_000
    for host in range(2):
        planes = [
            replace(plane, name=f"/device:TPU:{number}")
            for number, plane in enumerate(make_tpu()[2 * host : 2 * host + 2])
        ]
        environment = P("Task Environment", (), {"profile_start_time": utc})
        path = tmp_path / f"h{host}.xplane.pb"
        path.write_bytes(make_space([*planes, environment], [f"h{host}"]))
    report = bubbleviz.analyze(tmp_path)

    assert [rank.host for rank in report.ranks] == ["h0", "h0", "h1", "h1"]
    assert [round(ratio or 0, 9) for ratio in list_ratios(report)] == [round(RATIO, 9)] * STEPS


def test_a_loop_counts_by_what_it_runs(tmp_path: Path) -> None:
    ops = [E("while.1", 0, 100), E("dot.2", 0, 40), E("add.3", 40, 90), E("dot.4", 100, 130)]
    work = read_profile_of(
        write_planes(tmp_path, [P("/device:TPU:0", [L("XLA Ops", ops)])])
    ).activities

    rows_of_work = zip(
        work.name_id.tolist(), work.start_ns.tolist(), work.end_ns.tolist(), strict=True
    )
    assert [(work.names[n], start, end) for n, start, end in rows_of_work] == [
        ("dot.2", 0, 40),
        ("add.3", 40, 90),
        ("dot.4", 100, 130),
    ]


def test_derived_lines_of_a_gpu_count_for_nothing(tmp_path: Path) -> None:
    lines = [
        L("Stream #3(Kernel)", [E("gemm", 0, 10)], 3),
        L("Stream #4(MemcpyH2D,Kernel)", [E("MemcpyH2D", 0, 5), E("relu", 5, 6)], 4),
        *(
            L(name, [E("gemm", 0, 10)], number)
            for number, name in enumerate(
                ("XLA Ops", "XLA Modules", "Steps", "Framework Ops", "Source code"), 10
            )
        ),
    ]
    activities = read_profile_of(write_planes(tmp_path, [P("/device:GPU:0", lines)])).activities

    assert (len(activities), activities.kernels, activities.names) == (3, 2, ("gemm", "relu"))


def test_transfers_that_overlap_instructions_are_separate_activities(tmp_path: Path) -> None:
    lines = [
        L("XLA Ops", [E("all-gather-start.1", 0, 1), E("dot.2", 1, 9), E("dot.3", 9, 12)], 1),
        L("Async XLA Ops", [E("all-gather-start.1", 0, 10), E("copy-start.4", 2, 5)], 2),
    ]
    activities = read_profile_of(write_planes(tmp_path, [P("/device:TPU:0", lines)])).activities

    assert (len(activities), activities.kernels) == (5, 4)
    assert (activities.start_ns[4], activities.end_ns[4]) == (2, 5)
    # Only the user may know that this operation is communication.
    assert activities.names[activities.name_id[4]] == "copy-start.4"


def test_cpus_take_the_place_of_devices(tmp_path: Path) -> None:
    facts: Mapping[str, int | str] = {"hlo_op": "dot.1", "hlo_module": "jit_f", "run_id": -5}
    threads = [
        L("a", [E("dot.1", 0, 10, {**facts, "device_ordinal": 0})], -7),
        L(
            "b",
            [E("dot.1", 2, 12, {**facts, "device_ordinal": 1}), E("end: dot.1", 12, 13)],
            1 << 40,
        ),
    ]
    cpu_profile = read_profile_of(
        write_planes(tmp_path, [P("/host:CPU", threads, {"process_id": 9})])
    )

    assert cpu_profile.activities.ranks.tolist() == [[9, 0], [9, 1]]
    assert cpu_profile.activities.names == ("dot.1",)
    assert count_names(cpu_profile.ranges)["XlaModule:#hlo_module=jit_f#"] == 2
    assert list_limitation_subjects(cpu_profile) >= {"devices", "launches"}


def test_launches_of_one_thread_distinguish_executions(tmp_path: Path) -> None:
    facts: Mapping[str, int | str] = {"hlo_module": "m", "program_id": 2}
    ops = ["a", "a", "b", "a", "b"]
    kernels = [
        E("k", n * 10, n * 10 + 5, {**facts, "hlo_op": o, "correlation_id": n})
        for n, o in enumerate(ops)
    ]
    calls = [make_op("cuLaunchKernel", n * 2, n * 2 + 1, correlation_id=n) for n in range(len(ops))]
    planes = [
        P("/device:GPU:0", [L("Stream #1(Kernel)", kernels)]),
        P("/host:CPU", [L("t", calls, 4)]),
    ]
    ranges = read_profile_of(write_planes(tmp_path, planes)).ranges
    modules = ranges.take(np.array(["XlaModule" in ranges.names[n] for n in ranges.name_id]))
    assert sorted(zip(modules.start_ns, modules.end_ns, strict=True)) == [(0, 5), (6, 9)]

    executions = L("other", [E("m:XLA GPU module", 0, 3.5), E("m:XLA GPU module", 3.5, 10)], 9)
    planes[1] = P("/host:CPU", [L("t", calls, 4), executions])
    ranges = read_profile_of(write_planes(tmp_path, planes)).ranges
    modules = ranges.take(np.array(["XlaModule" in ranges.names[n] for n in ranges.name_id]))
    assert sorted(zip(modules.start_ns, modules.end_ns, strict=True)) == [(0, 3), (4, 9)]


def test_scopes_can_name_microbatches(tmp_path: Path) -> None:
    guide = (CHECKOUT / "bubbleviz" / "guides" / "traces.md").read_text(encoding="utf-8")
    naming = tmp_path / "scopes.toml"
    example = next(
        t for t in guide.split("```toml\n")[1:] if t.startswith('name = "scopes"')
    ).partition("```")[0]
    naming.write_text(example, encoding="utf-8")
    ops: list[E] = []
    paths: dict[str, dict[str, int | str]] = {}
    for number in range(4):
        for name, path in (("f", f"jvp(mb{number})"), ("b", f"transpose(jvp(mb{number}))")):
            start = 100 * number + (500 if name == "b" else 0)
            ops += [
                E(f"{name}.{number}", start, start + 40),
                E(f"{name}x.{number}", start + 40, start + 90),
            ]
            paths |= {op.name: {"tf_op": f"jit(step)/{path}/dot:"} for op in ops[-2:]}
    plane = P("/device:TPU:0", [L("XLA Ops", ops)], {}, paths)
    report = bubbleviz.analyze(write_planes(tmp_path, [plane]), convention=naming)

    table = report.operations
    assert sorted(zip(table.microbatch, table.start_ns, table.end_ns, strict=True)) == sorted(
        (number, start, start + 90)
        for number in range(4)
        for start in (100 * number, 100 * number + 500)
    )


def test_times_are_cut_to_nanoseconds(tmp_path: Path) -> None:
    ops = [E("a", 1.9, 2.7), E("b", 2.7, 3.2)]
    plane = P("/device:TPU:0", [L("XLA Ops", ops, timestamp=100)])
    activities = read_profile_of(write_planes(tmp_path, [plane])).activities

    assert list(zip(activities.start_ns.tolist(), activities.end_ns.tolist(), strict=True)) == [
        (101, 102),
        (102, 103),
    ]


def test_times_in_utc_count_from_the_start(tmp_path: Path) -> None:
    utc = 1_750_000_000_000_000_000
    lines = [L("XLA Ops", [E("a", 5, 9)], timestamp=utc + 100)]
    plain = read_profile_of(write_planes(tmp_path, [P("/device:TPU:0", lines)]))
    environment = P("Task Environment", (), {"profile_start_time": utc, "secret": "token"})
    with_utc = read_profile_of(
        write_planes(tmp_path, [P("/device:TPU:0", lines), environment], "b.xplane.pb")
    )

    assert (plain.source.session_utc_ns, plain.activities.start_ns[0]) == (utc + 100, 5)
    assert (with_utc.source.session_utc_ns, with_utc.activities.start_ns[0]) == (utc, 105)


def test_an_empty_recording_is_reported(tmp_path: Path) -> None:
    for planes in ([P("/host:CPU")], [P("/device:TPU:0", [L("XLA Ops", [])])]):
        with pytest.raises(errors.NothingToAnalyzeError, match="no kernels or device instructions"):
            bubbleviz.analyze(write_planes(tmp_path, planes))


SMALL = [
    P("/host:CPU", [L("t", [make_op("x", 0, 9, correlation_id=1), E("y" * 300, 1, 2)], 3)]),
    replace(make_tpu(1)[0], lines=[L("XLA Ops", [E("fusion.1", 0, 5), E("fusion.2", 5, 9)])]),
]


def test_a_trace_cut_anywhere_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path, content, counts = tmp_path / "a.trace.json", make_trace_json(make_tpu(1)), []
    path.write_bytes(content)
    everything = len(read_profile_of(path).activities)
    for length in np.linspace(200, len(content), 40).astype(int).tolist():
        path.write_bytes(content[:length])
        cut_profile = read_or_refused(path)
        counts.append(0 if cut_profile is None else len(cut_profile.activities))
        if cut_profile is not None and length < len(content) - 4:
            assert "the end of the trace" in list_limitation_subjects(cut_profile)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, everything)
    assert set(counts) - {0, everything}


def test_planes_without_an_end_are_refused(tmp_path: Path) -> None:
    path, content = tmp_path / "cut.xplane.pb", make_space(SMALL, ["h"])
    for length in range(40, len(make_space(SMALL[:1]))):
        path.write_bytes(content[:length])
        with pytest.raises(
            errors.ProfileError, match=r"is cut short, damaged, or not an XLA profile"
        ):
            read_profile_of(path)


def count_events_slowly(path: Path) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Return the number and total duration (ps) of the events of each line, read by protobuf."""
    space = build_space_type().FromString(path.read_bytes())
    return {
        (plane.name.decode(), line.name.decode()): (
            len(line.events),
            sum(event.duration_ps for event in line.events),
        )
        for plane in space.planes
        for line in plane.lines
    }


@pytest.mark.real_files
def test_a_real_run_on_a_gpu() -> None:
    gpu_profile = read_profile_of(get_real_file("jax/tracelens_jax08_attention.xplane.pb"))
    lines = count_events_slowly(Path(gpu_profile.source.path))
    streams = [total for (_, line), total in lines.items() if line.startswith("Stream")]
    length_ns = gpu_profile.activities.end_ns - gpu_profile.activities.start_ns

    assert gpu_profile.source.host == "tw003"
    assert len(gpu_profile.activities) == sum(count for count, _ in streams) == 105
    assert math.isclose(int(length_ns.sum()), sum(ps for _, ps in streams) / 1000, abs_tol=105)
    assert gpu_profile.activities.ranks.tolist() == [[0, 0]]
    modules = sum(
        n for name, n in count_names(gpu_profile.ranges).items() if name.startswith("XlaModule")
    )
    recorded = sum(
        n for name, n in count_names(gpu_profile.ranges).items() if name.endswith(":XLA GPU module")
    )
    assert modules == recorded == 81


@pytest.mark.real_files
def test_a_real_run_on_cpus() -> None:
    cpu_profile = read_profile_of(get_real_file("jax/jax_cpu4.xplane.pb"))

    assert cpu_profile.activities.ranks.tolist() == [[4279, device] for device in range(4)]
    assert Counter(
        np.array(cpu_profile.activities.names)[cpu_profile.activities.name_id].tolist()
    ) == {
        "ppermute.3": 12,
        "wrapped_tanh": 12,
        "ynn_fusion": 12,
        "ynn_fusion.1": 12,
    }
    assert count_names(cpu_profile.ranges)["XlaModule:#hlo_module=jit_f,program_id=6#"] == 12
    assert {f"train#step_num={n}#" for n in range(3)} <= set(count_names(cpu_profile.ranges))

    with pytest.raises(
        errors.NothingToAnalyzeError,
        match=r"no range name is recognized as forward .* no device plane",
    ):
        bubbleviz.analyze(get_real_file("jax/jax_cpu4.xplane.pb"))


@pytest.mark.parametrize("kind", [make_tpu, make_gpu], ids=["TPU", "GPU"])
@pytest.mark.parametrize(
    ("shift", "longer"),
    [(10**14, 0), (-(10**14), 0), (0, 10**14), (9 * 10**15, 0), (-(10**10), 10**10)],
    ids=["late", "early", "ends late", "months", "starts early"],
)
def test_events_with_bad_offsets_are_left_out_and_counted(
    kind: Any, shift: int, longer: int, tmp_path: Path
) -> None:
    def damaged(events: Sequence[E]) -> list[E]:
        event = events[5]
        moved_event = replace(event, start=event.start + shift, end=event.end + shift + longer)
        return [*events[:5], moved_event, *events[6:]]

    def planes(change: Callable[[Sequence[E]], list[E]]) -> list[P]:
        return [
            replace(
                plane,
                lines=[
                    replace(line, events=change(line.events))
                    if line.name in {"XLA Ops", "Stream #7(Kernel)"} and plane.name.endswith(":1")
                    else line
                    for line in plane.lines
                ],
            )
            for plane in kind()
        ]

    report = bubbleviz.analyze([write_planes(tmp_path, planes(damaged))])
    folder = tmp_path / "without"
    folder.mkdir()
    without = write_planes(folder, planes(lambda events: [*events[:5], *events[6:]]))
    assert list_ratios(report) == list_ratios(bubbleviz.analyze([without]))
    counts = count_limitations(report)
    assert counts["events outside the capture"] == 1


PAIRS = {
    "jax_cpu4": "jax_cpu4.trace.json.gz",
    "tracelens_jax08_attention": "tracelens_jax08_attention.trace_viewer.json.gz",
}


def traced(folder: Path, planes: list[P], name: str = "host0.trace.json.gz") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(make_trace_json(planes)))
    return path


def list_activity_rows(profile: Profile) -> list[tuple[int, str, int, int]]:
    """Return (device, name, start, end) of all activities, sorted."""
    work = profile.activities
    names = [work.names[n] if n >= 0 else "" for n in work.name_id.tolist()]
    device = work.ranks[work.rank, 1].tolist()
    return sorted(zip(device, names, work.start_ns.tolist(), work.end_ns.tolist(), strict=True))


@pytest.mark.parametrize("planes", [make_tpu(), make_gpu()], ids=["TPU", "GPU"])
def test_both_formats_of_a_planted_run_give_one_report(planes: list[P], tmp_path: Path) -> None:
    planes_file, trace = write_planes(tmp_path, planes), traced(tmp_path, planes)
    xplane, json_trace = bubbleviz.analyze(planes_file), bubbleviz.analyze(trace)

    assert list_activity_rows(read_profile_of(planes_file)) == list_activity_rows(
        read_profile_of(trace)
    )
    assert list_ratios(xplane) == list_ratios(json_trace)
    assert xplane.operations.start_ns.tolist() == json_trace.operations.start_ns.tolist()
    costs = [measure_costs(path, skip=0).instructions for path in (planes_file, trace)]
    assert costs[0] == costs[1]


@pytest.mark.real_files
@pytest.mark.parametrize("name", PAIRS)
def test_both_formats_of_a_real_run_agree(name: str) -> None:
    xplane = read_profile_of(get_real_file(f"jax/{name}.xplane.pb"))
    json_trace = read_profile_of(get_real_file(f"jax/{PAIRS[name]}"))
    ours, theirs = list_activity_rows(xplane), list_activity_rows(json_trace)

    # One format truncates times to nanoseconds, and the other format rounds them.
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    differences_ns = np.array([row[2:] for row in ours]) - np.array([row[2:] for row in theirs])
    assert np.abs(differences_ns).max() <= 1
    thunks = [
        Counter({n: c for n, c in count_names(found.ranges).items() if n.startswith("Thunk")})
        for found in (xplane, json_trace)
    ]
    assert thunks[0] == thunks[1]
    modules = [
        sum(c for n, c in count_names(found.ranges).items() if n.startswith("XlaModule"))
        for found in (xplane, json_trace)
    ]
    assert modules[0] == modules[1]


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "pid": 1, "tid": 1, "name": "a"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1e300, "dur": 1, "name": "a"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": -5, "name": "a"},
        {"ph": "X", "pid": "p", "tid": None, "ts": 1, "dur": 1, "name": "a"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"run_id": 10**30}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"step_num": "x"}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "\ud800"},
        {"ph": "M", "pid": 1, "name": "process_name"},
        {"ph": "X"},
        [],
        None,
    ],
    ids=str,
)
def test_strange_events_spoil_nothing(event: object, tmp_path: Path) -> None:
    content = json.loads(make_trace_json(make_tpu(1)))
    content["traceEvents"].append(event)
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps(content))

    assert list_activity_rows(read_profile_of(path)) == list_activity_rows(
        read_profile_of(write_planes(tmp_path, make_tpu(1)))
    )


def test_processes_without_a_name_are_counted(tmp_path: Path) -> None:
    content = json.loads(make_trace_json(make_tpu(1)))
    content["traceEvents"] = [
        e for e in content["traceEvents"] if e.get("name") != "process_name"
    ] + [{"ph": "M", "pid": 9, "name": "process_name", "args": {"name": "/host:CPU"}}]
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps(content))

    with pytest.raises(errors.NothingToAnalyzeError):
        read_profile_of(path)


def test_a_pair_of_files_counts_once(tmp_path: Path) -> None:
    for host in ("host1", "host0"):
        write_planes(tmp_path, make_tpu(1), f"{host}.xplane.pb")
        traced(tmp_path, make_tpu(1), f"{host}.trace.json.gz")
    traced(tmp_path, make_tpu(1), "host1.trace_viewer.json.gz")
    traced(tmp_path, make_tpu(1), "host2.trace.json.gz")
    traced(tmp_path, make_tpu(1), "perfetto_trace.json.gz")  # of all hosts
    (tmp_path / "a.pt.trace.json").write_text('{"traceEvents": []}')
    copyfile(tmp_path / "host0.trace.json.gz", tmp_path / "a.pt.trace.json.gz")

    assert [Path(input_file.path).name for input_file in find_profiles([str(tmp_path)])] == [
        "a.pt.trace.json",
        "host0.xplane.pb",
        "host1.xplane.pb",
        "host2.trace.json.gz",
    ]


@pytest.mark.parametrize("command", ["analyze", "idle"])
def test_one_run_in_two_formats_is_refused(command: str, tmp_path: Path, cli: CommandLine) -> None:
    plane = write_planes(tmp_path, make_tpu(1), "host0.xplane.pb")
    trace = traced(tmp_path, make_tpu(1), "host0.trace_viewer.json.gz")

    message = cli.refused(command, str(plane), str(trace), code=1)

    assert f"{trace} and {plane} contain the same run in two formats; pass only {plane}" in message


def test_a_directory_that_jax_logs_to(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2025_01_01"
    run.mkdir(parents=True)
    path = write_planes(run, make_tpu(1))

    assert [input_file.path for input_file in find_profiles([str(tmp_path)])] == [str(path)]
    (run.parent / "2025_01_02").mkdir()
    with pytest.raises(
        errors.InputError, match="2 runs in subfolders; pass the folder of one run, such as"
    ):
        find_profiles([str(tmp_path)])


def test_no_environment_is_ever_reported(tmp_path: Path, cli: CommandLine) -> None:

    secret = P("Task Environment", (), {"HF_TOKEN": "hush", "profile_start_time": 1 << 60})
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(
        make_space([*make_tpu(), secret, P("/host:CPU", [L("t", [E("x", 0, 1)])])], ["h"])
    )
    outputs = [f"--{kind}={tmp_path / f'x.{kind}'}" for kind in ("svg", "csv", "json", "text")]

    assert main(["analyze", str(path), *outputs]) == 0
    output = cli.printed("inspect", str(path)) + "".join(
        p.read_text() for p in tmp_path.glob("x.*")
    )
    assert "hush" not in output
    assert "HF_TOKEN" not in output
