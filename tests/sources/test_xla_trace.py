"""XLA's trace JSON: it tells what the xplane file of the same run tells."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz import errors
from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.model.profile import Profile
from bubbleviz.sources.paths import find_profiles
from tests.support.xla_files import E, L, P, space, trace_json
from tests.support.xla_profiles import (
    DATA,
    REAL,
    gpu,
    named,
    profile,
    ratios,
    read_or_refused,
    tpu,
    written,
)

PAIRS = {
    "jax_cpu4": "jax_cpu4.trace.json.gz",
    "tracelens_jax08_attention": "tracelens_jax08_attention.trace_viewer.json.gz",
}


def traced(folder: Path, planes: list[P], name: str = "host0.trace.json.gz") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(trace_json(planes)))
    return path


def rows(found: Profile) -> list[tuple[int, str, int, int]]:
    """Return device, name, start and end of all that ran."""
    work = found.activities
    names = [work.names[n] if n >= 0 else "" for n in work.name_id.tolist()]
    device = work.ranks[work.rank, 1].tolist()
    return sorted(zip(device, names, work.start_ns.tolist(), work.end_ns.tolist(), strict=True))


@pytest.mark.parametrize("planes", [tpu(), gpu()], ids=["TPU", "GPU"])
def test_both_formats_of_a_planted_run_give_one_report(planes: list[P], tmp_path: Path) -> None:
    planes_file, trace = written(tmp_path, planes), traced(tmp_path, planes)
    xplane, json_trace = bubbleviz.analyze(planes_file), bubbleviz.analyze(trace)

    assert rows(profile(planes_file)) == rows(profile(trace))
    assert ratios(xplane) == ratios(json_trace)
    assert xplane.operations.start_ns.tolist() == json_trace.operations.start_ns.tolist()
    costs = [measure_costs(path, skip=0).instructions for path in (planes_file, trace)]
    assert costs[0] == costs[1]


@REAL
@pytest.mark.parametrize("name", PAIRS)
def test_both_formats_of_a_real_run_agree(name: str) -> None:
    xplane, json_trace = profile(DATA / f"{name}.xplane.pb"), profile(DATA / PAIRS[name])
    ours, theirs = rows(xplane), rows(json_trace)

    # What is cut to nanoseconds there is rounded here.
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    apart = np.array([row[2:] for row in ours]) - np.array([row[2:] for row in theirs])
    assert np.abs(apart).max() <= 1
    thunks = [
        Counter({n: c for n, c in named(found.ranges).items() if n.startswith("Thunk")})
        for found in (xplane, json_trace)
    ]
    assert thunks[0] == thunks[1]
    modules = [
        sum(c for n, c in named(found.ranges).items() if n.startswith("XlaModule"))
        for found in (xplane, json_trace)
    ]
    assert modules[0] == modules[1]


def test_a_trace_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole, path = trace_json(tpu(1)), tmp_path / "a.trace.json"
    counts = []
    for length in np.linspace(200, len(whole), 40).astype(int).tolist():
        path.write_bytes(whole[:length])
        found = read_or_refused(path)
        counts.append(0 if found is None else len(found.activities))
        if found is not None and length < len(whole) - 4:
            assert any("end of the trace" in note.what for note in found.limitations)
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert 0 < counts[20] < counts[-1]


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
    content = json.loads(trace_json(tpu(1)))
    content["traceEvents"].append(event)
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps(content))

    assert rows(profile(path)) == rows(profile(written(tmp_path, tpu(1))))


def test_processes_without_a_name_are_counted(tmp_path: Path) -> None:
    content = json.loads(trace_json(tpu(1)))
    content["traceEvents"] = [
        e for e in content["traceEvents"] if e.get("name") != "process_name"
    ] + [{"ph": "M", "pid": 9, "name": "process_name", "args": {"name": "/host:CPU"}}]
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps(content))

    with pytest.raises(errors.NothingToAnalyseError):
        profile(path)


def test_a_pair_of_files_counts_once(tmp_path: Path) -> None:
    for host in ("host1", "host0"):
        written(tmp_path, tpu(1), f"{host}.xplane.pb")
        traced(tmp_path, tpu(1), f"{host}.trace.json.gz")
    traced(tmp_path, tpu(1), "host2.trace.json.gz")

    assert [Path(found.path).name for found in find_profiles([str(tmp_path)])] == [
        "host0.xplane.pb",
        "host1.xplane.pb",
        "host2.trace.json.gz",
    ]


def test_a_directory_that_jax_logs_to(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2025_01_01"
    run.mkdir(parents=True)
    path = written(run, tpu(1))

    assert [found.path for found in find_profiles([str(tmp_path)])] == [str(path)]
    (run.parent / "2025_01_02").mkdir()
    with pytest.raises(errors.InputError, match="2 runs of the profiler; name one, such as"):
        find_profiles([str(tmp_path)])


def test_no_environment_is_ever_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bubbleviz.cli.app import main

    secret = P("Task Environment", (), {"HF_TOKEN": "hush", "profile_start_time": 1 << 60})
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space([*tpu(), secret, P("/host:CPU", [L("t", [E("x", 0, 1)])])], ["h"]))
    outputs = [f"--{kind}={tmp_path / f'x.{kind}'}" for kind in ("svg", "csv", "json", "text")]

    assert main(["analyze", str(path), *outputs]) == 0
    assert main(["inspect", str(path)]) == 0
    output = capsys.readouterr().out + "".join(p.read_text() for p in tmp_path.glob("x.*"))
    assert "hush" not in output
    assert "HF_TOKEN" not in output
