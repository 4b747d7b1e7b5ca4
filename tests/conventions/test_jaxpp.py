"""Profiles of JaxPP, whose range names contain the stage, and usually no microbatch."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.recognition import recognize_conventions
from bubbleviz.model.phases import Phase
from tests.planting import Planting, plant
from tests.planting.orders import make_plan
from tests.planting.programs import make_barrier, simulate
from tests.support.stage_times import make_durations
from tests.support.xla_files import E, L, P, make_space

#: Names of the tasks as ranges, with the microbatch, and as XLA modules in domain TSL.
RANGE, NUMBERED = "{task}_{stage}", "{task}_{stage}__{microbatch}"
MODULE = "TSL:XlaModule:#prefix=jit({task}_{stage}),hlo_module=jit_{task}_{stage},program_id=7#"
_OPERATION = re.compile(r"([FBW])([0-9]+)\.([0-9]+)\.0")


def plant_jaxpp(folder: Path, schedule: str, form: str) -> float:
    """Write one profile per rank with the names of JaxPP, and return the true ratio."""
    planting = Planting(
        schedule=schedule, files="rank", barrier=True, transfer_ns=20_000, communication=False
    )
    truth = plant(planting, folder)
    splits = schedule == "zb-h1"
    tasks = {"F": "fwd", "B": "bwdA" if splits else "bwd", "W": "bwdW"}
    for rank in range(planting.stages):
        with closing(sqlite3.connect(folder / f"rank{rank}.sqlite")) as database, database:
            rows = database.execute("SELECT rowid, text FROM NVTX_EVENTS WHERE text NOT NULL")
            for rowid, text in rows.fetchall():
                name = f"after_loop_{rank}_42" if text.startswith("Optimizer") else text
                if match := _OPERATION.fullmatch(text):
                    phase, microbatch, chunk = match.groups()
                    stage = int(chunk) * planting.stages + rank
                    name = form.format(task=tasks[phase], stage=stage, microbatch=microbatch)
                database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE rowid = ?", (name, rowid))
    ratio = truth.iterations[0].bubble_ratio["schedule"]
    assert ratio is not None
    return ratio


@pytest.mark.parametrize("form", [RANGE, NUMBERED, MODULE], ids=["range", "numbered", "module"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1"])
def test_planted_ratios_are_measured(schedule: str, form: str, tmp_path: Path) -> None:
    ratio = plant_jaxpp(tmp_path, schedule, form)

    report = bubbleviz.analyze(tmp_path)

    assert report.convention == "jaxpp"
    assert report.bubble_ratio == pytest.approx(ratio, abs=1e-9)
    assert report.schedule is not None
    assert report.schedule.name == schedule
    assert [rank.stage for rank in report.ranks] == [0, 1, 2, 3]


def test_weight_gradients_get_the_microbatches_of_their_backwards(tmp_path: Path) -> None:
    plant_jaxpp(tmp_path, "zb-h1", RANGE)

    operations = bubbleviz.analyze(tmp_path).operations

    for phase in (Phase.F, Phase.B, Phase.W):
        rows = (operations.phase == phase) & (operations.rank == 1) & (operations.iteration == 0)
        assert operations.microbatch[rows].tolist() == list(range(8))


def test_the_first_stage_may_compute_all_gradients_at_once(tmp_path: Path) -> None:
    """JaxPP does not split the backwards of the first stage, and calls all of them bwdA_0."""
    ratio = plant_jaxpp(tmp_path, "zb-h1", RANGE)
    with closing(sqlite3.connect(tmp_path / "rank0.sqlite")) as database, database:
        database.execute(
            "UPDATE NVTX_EVENTS AS b SET end = (SELECT MIN(w.end) FROM NVTX_EVENTS AS w "
            "WHERE w.text = 'bwdW_0' AND w.start >= b.end) WHERE text = 'bwdA_0'"
        )
        database.execute("DELETE FROM NVTX_EVENTS WHERE text = 'bwdW_0'")

    report = bubbleviz.analyze(tmp_path)

    assert report.bubble_ratio == pytest.approx(ratio, abs=1e-9)
    phases = report.operations.phase[report.operations.rank == 0]
    assert set(phases.tolist()) == {Phase.F, Phase.BW, Phase.OPTIMIZER}
    assert report.schedule is not None
    assert report.schedule.name == "zb-h1"
    assert report.schedule.exact


@pytest.mark.parametrize(("schedule", "backward"), [("1f1b", "bwd"), ("zb-h1", "bwdA")])
def test_modules_of_an_xla_profile_are_tasks(schedule: str, backward: str, tmp_path: Path) -> None:
    """Instructions inside the modules have paths, too, but these name only parts of the tasks."""
    durations = make_durations(30_000, 20_000, 25_000, optimizer_ns=40_000)
    simulation = simulate(
        [make_plan(schedule, 4, 8)] * 2, durations, optimizer=True, gate=make_barrier(4)
    )
    tasks = {Phase.F: "fwd", Phase.B: backward, Phase.BW: backward, Phase.W: "bwdW"}
    planes = []
    for device in range(4):
        rows = simulation.take(simulation.device == device)
        modules, instructions, paths = [], [], {}
        columns = (rows.virtual_stage, rows.phase, rows.start_ns + 5000, rows.end_ns + 5000)
        for stage, phase, start_ns, end_ns in zip(*map(np.ndarray.tolist, columns), strict=True):
            task = f"{tasks.get(phase, 'after_loop')}_{stage}"
            modules.append(E(f"jit_{task}({phase})", start_ns, end_ns))
            instructions.append(E(f"fusion.{phase}", start_ns, end_ns))
            paths[f"fusion.{phase}"] = {"tf_op": f"jit({task})/jvp(layer)/dot:"}
        lines = [L("XLA Modules", modules, 2), L("XLA Ops", instructions, 3)]
        planes.append(P(f"/device:TPU:{device}", lines, {"device_type_string": "TPU v5"}, paths))
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(make_space(planes))

    report = bubbleviz.analyze(path)

    first = simulation.take((simulation.iteration == 0) & np.isin(simulation.phase, list(tasks)))
    window_ns = first.end_ns.max() - first.start_ns.min()
    ratio = 1 - (first.end_ns - first.start_ns).sum() / (4 * window_ns)
    assert report.convention == "jaxpp"
    assert report.schedule is not None
    assert report.schedule.name == schedule
    assert report.iterations[0].ratios["schedule"].value == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("names", "is_recognized"),
    [
        (["fwd_0", "bwd_0"], False),
        (["fwd_0", "fwd_1", "bwd_0", "bwd_1"], False),
        (["fwd_0", "bwd_0", "after_loop_0"], True),
        (["fwd_0", "bwdA_0", "bwdW_0"], True),
        (["fwd_0__3", "bwd_0__3"], True),
    ],
)
def test_ambiguous_names_need_evidence(names: list[str], is_recognized: bool) -> None:
    """Without other names of JaxPP, the number may be a microbatch."""
    recognized = recognize_conventions(dict.fromkeys(names, 8))

    assert recognized == ((built_in()["jaxpp"],) if is_recognized else ())
