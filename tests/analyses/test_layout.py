"""Tables of layers: the meaning of their cells, and tables that are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.analyses.layout.inputs import measure_model
from bubbleviz.analyses.layout.layer_table import MeasuredModel, format_table, read_layers
from bubbleviz.analyses.layout.outputs import format_json
from bubbleviz.analyses.layout.report import find_layouts
from bubbleviz.analyses.layout.text import list_sections
from bubbleviz.errors import BubblevizError, MismatchError
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.schedules.layout.layers import LayerKind, Layout
from bubbleviz.schedules.plan import make_v_placement
from tests.planting import Planting, plant
from tests.support.torch_traces import write_traces

HEAD = "name,forward_ms,backward_ms"


def table(tmp_path: Path, text: str) -> str:
    file = tmp_path / "layers.csv"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_tables_are_read(tmp_path: Path) -> None:
    """A table needs only three columns. Cells with a unit are converted to bytes."""
    layers = read_layers(table(tmp_path, f"{HEAD}\nembedding,1,3\nlayers.0,2.5,5\nlm_head,1,1\n"))
    assert layers.layers.forward_ns.tolist() == [1_000_000, 2_500_000, 1_000_000]
    assert layers.layers.fused_ns.tolist() == [3_000_000, 5_000_000, 1_000_000]
    assert layers.layers.weight_ns.tolist() == [1_500_000, 2_500_000, 500_000]
    assert layers.layers.kinds == (LayerKind.EMBEDDING, LayerKind.TRANSFORMER, LayerKind.HEAD)
    assert (layers.split, layers.memory, layers.in_bytes) == (False, False, False)

    head = "name;forward_ms;backward_ms;weight_ms;memory;memory_weight;resident;transfer_ms;kind"
    layers = read_layers(table(tmp_path, f"{head}\nx;1;1;1;2GB;1GiB;3MB;0.5;mtp\n"))
    costs = layers.layers
    assert [costs.activation[0], costs.weight_activation[0], costs.resident[0]] == [2e9, 2**30, 3e6]
    assert costs.down_ns.tolist() == costs.up_ns.tolist() == [500_000]
    assert costs.kinds == (LayerKind.MTP,)
    assert (layers.split, layers.memory, layers.in_bytes) == (True, True, True)

    # A table that was written can be read back.
    head = "name,forward_ms,backward_ms,weight_ms,memory,transfer_ms"
    layers = read_layers(table(tmp_path, f"{head}\na,1.25,2,3,7,0.5\n=b,1,1,1,8,0\n"))
    text = format_table(layers.layers, {"stage:1f1b": [0, 1]}, in_bytes=True)
    model = read_layers(table(tmp_path, text))
    assert (layers.in_bytes, model.in_bytes) == (False, True)
    for name in layers.layers.column_names():
        assert getattr(model.layers, name).tolist() == getattr(layers.layers, name).tolist()
    assert model.layers.names == ("a", "'=b")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{HEAD}\na,x,1\n", "row 1, forward_ms: 'x' is not a time in milliseconds"),
        (f"{HEAD}\na,-1,1\n", "is not a time"),
        (f"{HEAD}\na,nan,1\n", "is not a time"),
        (f"{HEAD}\na,1,\n", "row 1, backward_ms"),
        (f"{HEAD},kind\na,1,1,tail\n", "kind: 'tail' is not one of"),
        (f"{HEAD},memory\na,1,1,many\n", "not an amount of memory"),
        (f"{HEAD},memory,memory_weight\na,1,1,1,2\n", "exceeds memory"),
        ("name,forward_ms\na,1\n", "has no column 'backward_ms'"),
        ("", "contains no layers, or has no column 'name'"),
        (f"{HEAD}\n", "contains no layers"),
        (f"{HEAD}\n" + "a,1,1\n" * 1001, "more than 1,000 layers"),
        (f"{HEAD},memory\na,1,2,1.5GB\nb,1,2,300\n", "row 2, memory: '300' is without a unit"),
        (
            f"{HEAD},memory,resident\na,1,2,300,0\nb,1,2,0,1.5GB\n",
            "row 2, resident: '1.5GB' is in bytes",
        ),
    ],
)
def test_files_that_are_not_tables_of_layers_are_refused(
    text: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(BubblevizError, match=error):
        read_layers(table(tmp_path, text))


LAYERS = (30, 100, 110, 90, 100, 105, 95, 100, 100, 120, 80, 260)
BASE = Planting(
    kernels=2, layers=LAYERS, layer_counts=(3, 3, 3, 3), transfer_ns=20_000, barrier=True
)
RUNS = {
    "1f1b": BASE,
    "backward on its own thread": replace(BASE, autograd="named"),
    "library ranges": replace(BASE, library_depth=3, text="registered"),
    "one file per rank": replace(BASE, files="rank", devices="zero"),
    "weights apart": replace(BASE, schedule="zb-h1", backward_ns=900_000),
    "V": replace(BASE, schedule="zb-v", stages=2, layer_names="layers.{}.mlp"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b", stages=2, layer_names="Layer {}"),
    "replicas": replace(BASE, replicas=2),
    "serving": replace(BASE, schedule="gpipe", inference=True, iterations=1, optimizer_ns=-1),
}


def planted(planting: Planting, folder: Path) -> MeasuredModel:
    plant(planting, folder)
    return measure_model([str(folder)])


def ms(model: MeasuredModel) -> list[list[float]]:
    return [(ns / 1e6).tolist() for ns in model.layers.times[:3]]


def test_backwards_without_layer_ranges_are_divided_like_forwards(tmp_path: Path) -> None:
    model = planted(replace(BASE, layer_backward=False), tmp_path / "forwards")
    forward, backward, _ = ms(model)
    assert forward == pytest.approx([layer / 100 for layer in LAYERS], rel=1e-4)
    assert backward == pytest.approx(forward, rel=1e-4)
    assert "proportional to its forward time" in model.assumptions[0]
    # Without layer ranges, the error message explains what to do.
    with pytest.raises(
        MismatchError, match="the forwards contain no layer ranges: annotate the layers"
    ):
        planted(Planting(), tmp_path / "none")


@pytest.mark.parametrize("name", RUNS)
def test_layers_take_the_planted_time(name: str, tmp_path: Path) -> None:
    planting = RUNS[name]
    model = planted(planting, tmp_path)

    whole_ns = (planting.forward_ns, planting.backward_ns, planting.weight_ns)
    if planting.inference:
        whole_ns = planting.forward_ns, 0, 0
        assert model.assumptions == ()
    for measured_ms, own_ns in zip(ms(model), whole_ns, strict=True):
        assert measured_ms == pytest.approx([own_ns / 1e8 * layer for layer in LAYERS], rel=1e-4)
    assert model.run_layout is not None
    assert model.run_layout.bounds == (0, 3, 6, 9, 12)
    if planting.schedule == "zb-v":
        assert model.run_layout.placement == make_v_placement(2)
    assert model.layers.names == tuple(f"layers.{number}" for number in range(12))
    assert model.microbatches == planting.microbatches
    assert model.split == (planting.schedule in {"zb-h1", "zb-v"})


@pytest.mark.parametrize("name", ["1f1b", "weights apart", "V", "interleaved", "serving"])
def test_the_best_layout_runs_as_predicted(name: str, tmp_path: Path) -> None:
    planting = RUNS[name]
    model = planted(planting, tmp_path / "before")
    schedules = [] if planting.inference else [planting.schedule]
    report = find_layouts(model, schedules=schedules)
    (row,), printed = report.rows, str(list(list_sections(report)))
    assert ("VLLM_PP_LAYER_PARTITION=4,3,3,2" in printed) == planting.inference
    assert row.best is not None
    assert row.baseline_ns is not None
    counts = tuple(len(stage) for stage in row.best.layout.stages)
    second_run = planted(replace(planting, layer_counts=counts), tmp_path / "after")

    assert row.is_current_layout
    assert row.proven
    assert row.baseline_ns == pytest.approx(model.ran_ns, rel=1e-4)
    assert row.best.makespan_ns == pytest.approx(second_run.ran_ns, rel=1e-4)
    assert row.best.makespan_ns < 0.96 * row.baseline_ns
    # The advice of ``analyze`` moves the same layers for the same saving.
    first, *_ = write_all_advice(bubbleviz.analyze(tmp_path / "before"))
    assert first.kind == "stage"
    assert re.search(r"Move layers\.\d from (virtual )?stage \d to (virtual )?stage \d", first.text)
    assert "at most" not in first.text
    assert first.saving_ns == pytest.approx(row.baseline_ns - row.best.makespan_ns, rel=0.003)


@pytest.mark.parametrize("modules", [False, True])
def test_layers_of_pytorch_traces_are_numbered_consecutively(modules: bool, tmp_path: Path) -> None:
    """Each process numbers its modules from 0; layers are numbered consecutively."""
    names = "nn.Module: TransformerLayer_{}"
    planting = replace(BASE, layer_names=names, layer_backward=False)
    plant(planting if modules else replace(BASE, autograd="named"), tmp_path / "nsys")
    traces = write_traces(tmp_path / "nsys" / "node0.sqlite", tmp_path, modules=modules)
    model = measure_model([str(trace) for trace in traces])

    assert ms(model)[0] == pytest.approx([layer / 100 for layer in LAYERS], rel=1e-4)
    assert model.layers.kinds == (LayerKind.TRANSFORMER,) * 12


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_moving_one_layer_takes_the_time_of_a_run_with_that_layout(
    name: str, tmp_path: Path
) -> None:
    planting = RUNS[name]
    report = find_layouts(planted(planting, tmp_path / "before"))
    assert report.single_moves is not None
    single = report.single_moves.single
    assert len(single.moves) == 6

    move = next(m for m in single.moves if (m.sender, m.receiver) == (3, 2))
    assert report.question.layers.names[move.layer] == "layers.9"
    after = planted(replace(planting, layer_counts=(3, 3, 4, 2)), tmp_path / "after")
    assert move.makespan_ns == pytest.approx(after.ran_ns, rel=1e-4)
    printed = render_plain_text(list_sections(report))
    assert f"Moving one layer to the next stage, {planting.schedule}: " in printed
    assert "what a move does to memory is unknown" in printed
    document = json.loads(format_json(report))["single_moves"]
    assert [entry["makespan_ns"] for entry in document["moves"]] == [
        m.makespan_ns for m in single.moves
    ]
    assert document["peak_memory"] is None


def test_moving_one_layer_moves_its_memory(tmp_path: Path) -> None:
    """1F1B keeps two microbatches on the first of two devices, and one on the second."""
    rows = "\n".join(f"layers.{number},1,2,{10 + number},100" for number in range(4))
    model = read_layers(table(tmp_path, f"{HEAD},memory,resident\n{rows}\n"))
    run = replace(model, ran="1f1b", stages=2, microbatches=4, run_layout=Layout((0, 1), (0, 3, 4)))
    moves = find_layouts(run).single_moves

    assert moves is not None
    single = moves.single
    assert single.peak_memory == (300 + 2 * (10 + 11 + 12), 100 + 13)
    (move,) = single.moves
    assert (move.layer, move.sender, move.receiver) == (2, 0, 1)
    assert move.peak_memory == (200 + 2 * (10 + 11), 200 + 12 + 13)
    # 1F1B of four microbatches: equal stages take (4 + 2 - 1) times F and backward of two layers.
    assert move.makespan_ns == 5 * 2 * 3_000_000


@pytest.mark.parametrize("ran", [None, "gpipe-of-another-kind"])
def test_moves_need_a_known_schedule(ran: str | None, tmp_path: Path) -> None:
    model = read_layers(table(tmp_path, f"{HEAD}\na,1,2\nb,1,2\n"))
    run = replace(model, ran=ran, stages=2, microbatches=4, run_layout=Layout((0, 1), (0, 1, 2)))

    assert find_layouts(run).single_moves is None
    # A stage with a single layer keeps its layer.
    known = find_layouts(replace(run, ran="1f1b"))
    assert known.single_moves is not None
    assert known.single_moves.single.moves == ()
    assert "Moving one layer" not in render_plain_text(list_sections(known))
