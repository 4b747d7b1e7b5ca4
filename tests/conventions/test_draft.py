"""Drafts of naming conventions, suggested from the names in a profile."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import load_convention
from bubbleviz.conventions.globs import is_glob_match
from bubbleviz.conventions.name_words import generate_drafts
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.model.phases import Phase
from bubbleviz.render.text.terminal import WIDTH
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database, read_columns
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import FIXTURES

FIXTURE = FIXTURES / "1f1b" / "node0.sqlite"


def suggest(counts: dict[str, int]) -> str | None:
    """Return the most likely draft for some names, or None if no name contains a phase."""
    return next(iter(generate_drafts(counts)), None)


#: Names, and the phase and microbatch that a draft reads from each name.
MEANINGS = {
    "fwd mb=3": (Phase.F, 3),
    "stage 2 forward microbatch 7": (Phase.F, 7),
    "bwd[12]": (Phase.BW, 12),
    "dgrad 4": (Phase.B, 4),
    "bwdA_4": (Phase.B, 4),
    "bwdW_4": (Phase.W, 4),
    "it's a wgrad 4?*": (Phase.W, 4),
    "optimizer step": (Phase.OPTIMIZER, -1),
    "recv_forward_5": (Phase.RECV_F, 5),
    "forward_step[5]": (Phase.F, 5),
    "step 7 backward 5": (Phase.BW, 5),
    "backward_pass(buffer_id=1, micro_batch_id=5)": (Phase.BW, 5),
    "backward_for_input_5": (Phase.B, 5),
    "backward weight microbatch 5": (Phase.W, 5),
    "Forward B=5 S=2048": (Phase.F, 5),
    "W-5": (Phase.W, 5),
    "forward c1 m5": (Phase.F, 5),
    "send_forward_recv_backward_5": (Phase.SEND_RECV, 5),
    "opt.step": (Phase.OPTIMIZER, -1),
    # In these names, the numbers count something else than microbatches.
    "forward (model.cu:12)": (Phase.F, -1),
    "layer 3 forward": (Phase.F, -1),
    "transformer.h.7.forward": (Phase.F, -1),
    "forward block_5": (Phase.F, -1),
    "expert7 backward": (Phase.BW, -1),
    "fwd on gpu 2": (Phase.F, -1),
    "backward fp16": (Phase.BW, -1),
    "forward of line 30": (Phase.F, -1),
    "train.py:88 forward": (Phase.F, -1),
    "forward 0x7f31": (Phase.F, -1),
    "forward @ 1712312.55": (Phase.F, -1),
    "LlamaDecoderLayer_3.forward": (Phase.F, -1),
    "self_attn backward 3": (Phase.BW, -1),
    "forward(batch=4": (Phase.F, -1),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_draft_recognizes_the_names_it_was_made_from(name: str, tmp_path: Path) -> None:
    names = parse_range_names([name], _load_draft({name: 3}, tmp_path))

    assert (names.phase[0], names.microbatch[0]) == MEANINGS[name]


#: Operators, lines of source code, and modules, which are not operations.
NONE: tuple[str, ...] = (
    "train.py(120): forward",
    "aten::conv2d_forward",
    "MmBackward0, op_id = 17",
    "Setup",
)
NONE += ("autograd::engine::evaluate_function: AddmmBackward0, seq = 3", "aten::mm, op_id = 3")
NONE += ("cudnnConvolutionForward 3", "cub::DeviceReduce::Forward 2", "FeedForward 3")
NONE += ("cuDNN:cudnnConvolutionForward_3", "flash_attn_fwd", "layer_norm_backward")
NONE += ("load_checkpoint 3", "forward_backward 3", "model.layers.7")


@pytest.mark.parametrize("names", [(), *((name,) for name in NONE), NONE])
def test_names_of_other_things_give_no_draft(names: tuple[str, ...]) -> None:
    assert suggest(dict.fromkeys(names, 3)) is None


def _load_draft(counts: dict[str, int], folder: Path) -> Convention:
    """Return the draft for some names, loaded from a file."""
    file = folder / "mine.toml"
    file.write_text(suggest(counts) or "", encoding="utf-8")
    return load_convention(file)


def test_a_draft_is_printed_as_a_file_that_loads(tmp_path: Path, cli: CommandLine) -> None:
    """The names, and therefore the regular expressions, are wider than the terminal."""
    name = "trainer/interleaved.schedule/model.part/stage0/{} microbatch=# (a part)"
    run = _plant_renamed(tmp_path, F=name.format("forward"), B=name.format("backward"))
    mine = tmp_path / "mine.toml"

    # Nested ranges with the same meaning are not separate operations.
    with closing(sqlite3.connect(run)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")]
        inner = {"text": "'forward_func'", "start": "start + 1", "end": '"end" - 1'}
        values = ", ".join(inner.get(column, f'"{column}"') for column in columns)
        query = f"INSERT INTO NVTX_EVENTS SELECT {values} FROM NVTX_EVENTS WHERE text GLOB '*{{}}*'"
        database.execute(query.format("/forward"))
    printed = cli.printed("inspect", str(run), "-o", str(mine))
    _, first, below = cli.printed("inspect", str(run), "-v").partition('name = "mine"')

    assert f"bubbleviz inspect {run} -o mine.toml\n" in printed
    assert 'name = "mine"' not in printed
    assert mine.read_text().strip() == (first + below).strip()
    assert max(map(len, below.splitlines())) > WIDTH
    report = bubbleviz.analyze([run], convention=[str(mine)])
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    message = cli.refused("inspect", str(FIXTURE), "-o", str(tmp_path / "x.toml"), code=1)
    assert "the range names are recognized, so no draft is needed" in message


@pytest.mark.parametrize(
    "name", ["fwd mb=3, op_id = 12", "fwd mb=3, seq = 5", "fwd mb=3, seq = 7, op_id = 9"]
)
def test_text_that_emit_nvtx_appends_to_a_name_is_not_part_of_a_draft(
    name: str, tmp_path: Path
) -> None:
    convention = _load_draft({name: 3}, tmp_path)
    assert parse_range_names([name, "fwd mb=4"], convention).microbatch.tolist() == [3, 4]
    assert is_glob_match(convention.globs[0], name)


def _plant_renamed(folder: Path, **names: str) -> Path:
    """Return the example with different names for F and B, where ``#`` is the microbatch number."""
    run = folder / "run.sqlite"
    run.write_bytes(FIXTURE.read_bytes())
    _rename(run, **names)
    return run


def _rename(run: Path, **names: str) -> None:
    """Give F and B other names, where ``#`` is the microbatch number."""
    with closing(sqlite3.connect(run)) as database, database:
        rows = database.execute("SELECT rowid, text FROM NVTX_EVENTS WHERE text GLOB '[FB][0-9]*'")
        for rowid, text in rows.fetchall():
            microbatch = text[1:].partition(".")[0]
            name = names[text[0]].replace("#", microbatch)
            database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE rowid = ?", (name, rowid))


def test_a_draft_is_tried_before_it_is_shown(tmp_path: Path, cli: CommandLine) -> None:
    run = _plant_renamed(tmp_path, F="forward pass #, seq = 5", B="backward pass #, op_id = 7")
    inspection = bubbleviz.inspect(run)
    assert inspection.suggestion is not None
    assert inspection.trial is not None
    operations = dict(inspection.trial.operations)
    assert (operations["F"], operations["BW"]) == (96, 96)
    assert inspection.trial.attributed > 0.9
    assert inspection.trial.bubble == pytest.approx(3 / 11)
    printed = cli.printed("inspect", str(run))
    assert "tried on this profile: 96 F, 96 BW" in printed
    assert "bubble ratio (schedule): 27.27 %" in printed


@pytest.mark.parametrize(
    "names",
    [
        {"F": "work #", "B": "work #"},
        {"F": "aten::forward, seq = #", "B": "AddmmBackward0, seq = #"},
        {"F": "forward #", "B": "work #"},
        {"F": "step #", "B": "step #"},
    ],
    ids=["no words", "operators", "forward only", "steps only"],
)
def test_without_a_working_draft_a_command_that_works_is_named(
    names: dict[str, str], tmp_path: Path, cli: CommandLine
) -> None:
    run = _plant_renamed(tmp_path, **names)
    inspection = bubbleviz.inspect(run)
    assert inspection.suggestion is None
    assert inspection.trial is None
    assert f"bubbleviz idle {run}" in " ".join(cli.printed("inspect", str(run)).split())


@pytest.mark.parametrize("communication", [False, True])
@pytest.mark.parametrize("name", ["forward pass", "layer_#_forward"])
def test_forwards_of_inference_are_drafted(name: str, communication: bool, tmp_path: Path) -> None:
    """All compute time belongs to forwards, so no backward can be missing."""
    planting = Planting(
        inference=True,
        optimizer_ns=-1,
        layers=(100,) * 8,
        layer_counts=(2,) * 4,
        layer_names="layer_{}_forward",
        communication=communication,
    )
    plant(planting, tmp_path)
    run = tmp_path / "node0.sqlite"
    enclosing = "work" if "layer" in name else name
    edit_database(run, f"UPDATE NVTX_EVENTS SET text = '{enclosing}' WHERE text GLOB 'F[0-9]*'")

    draft, ratio = _try_draft(run, tmp_path)

    # The 16 microbatches of both iterations pass four stages without a backward.
    assert f"such as '{name.replace('#', '0')}'" in draft
    assert ratio == pytest.approx(3 / (16 + 3))


@pytest.mark.parametrize(
    ("names", "first_parts"),
    [
        (("fwd 0", "fwd 1", "fwd 0", "fwd 1"), [0, 2]),
        (("fwd 0", "fwd 0", "fwd 1", "fwd 0"), [0, 3]),
        (("fwd 0", "fwd 1", "bwd 1", "bwd 0", "bwd 1", "bwd 0"), [0, 2, 4]),
    ],
)
def test_layers_show_where_the_next_operation_starts(
    names: tuple[str, ...], first_parts: list[int], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    pattern = """
        [[pattern]]
        match = '^(?P<phase>fwd|bwd) (?P<layer>[0-9]+)$'
        part = true
        phases = {fwd = "F", bwd = "BW"}
    """
    mine.write_text(f"name = 'mine'\n{pattern}")
    times = range(0, 100 * len(names), 100)
    path = write_profile(
        tmp_path,
        [K(start + 10, start + 90, n) for n, start in enumerate(times)],
        [C(start + 1, start + 2, n) for n, start in enumerate(times)],
        [R(start, start + 5, name) for start, name in zip(times, names, strict=True)],
    )

    operations = bubbleviz.analyze(path, convention=mine).operations

    starts_ns = operations.start_ns - operations.start_ns[0]
    assert starts_ns.tolist() == [100 * part for part in first_parts]


def test_numbers_in_transfer_names_mean_the_same_as_in_names_of_work() -> None:
    names = [
        f"{name}{microbatch}.{chunk}.0"
        for name in ("fwd ", "bwd ", "RECV_BACKWARD.")
        for microbatch in range(8)
        for chunk in range(2)
    ]

    tried = [
        parse_range_names(["fwd 3.1.0", "RECV_BACKWARD.3.1.0"], convention)
        for convention in generate_drafts(dict.fromkeys(names, 2)).values()
    ]

    readings = [
        reading
        for reading in tried
        if reading.phase[1] == Phase.RECV_B and reading.microbatch[0] >= 0
    ]
    assert any(reading.chunk.tolist() == [1, 1] for reading in readings)
    for reading in readings:
        assert reading.chunk[0] == reading.chunk[1]
        assert reading.microbatch[0] == reading.microbatch[1]


def _insert_copies(run: Path, glob: str, **columns: str) -> None:
    """Insert a copy of each range that matches ``glob``, with some columns replaced."""
    copied = read_columns(run)["NVTX_EVENTS"]
    values = ", ".join(columns.get(name, f'"{name}"') for name in copied)
    names = ", ".join(f'"{name}"' for name in copied)
    selection = f"SELECT {values} FROM NVTX_EVENTS WHERE text GLOB '{glob}'"
    edit_database(run, f"INSERT INTO NVTX_EVENTS ({names}) {selection}")


def _try_draft(run: Path, folder: Path) -> tuple[str, float | None]:
    """Return a draft and the ratio of its trial, after comparing the trial with an analysis."""
    inspection = bubbleviz.inspect(run)
    assert not inspection.analyzable
    assert inspection.suggestion is not None
    assert inspection.trial is not None
    mine = folder / "mine.toml"
    command = f"{run} -o mine.toml, then run bubbleviz analyze {run} --convention mine.toml; the"
    with pytest.raises(bubbleviz.BubblevizError, match=re.escape(f"bubbleviz inspect {command}")):
        bubbleviz.analyze(run)
    mine.write_text(inspection.suggestion, encoding="utf-8")
    report = bubbleviz.analyze(run, convention=mine)
    ratio = report.summary.bubble_ratio[report.headline].mean
    assert (report.headline, ratio) == (inspection.trial.ratio, inspection.trial.bubble)
    spans = report.operations.phase[report.operations.has_span == 1]
    counts = [(p.label, int((spans == p).sum())) for p in Phase]
    assert inspection.trial.operations == tuple(pair for pair in counts if pair[1])
    return inspection.suggestion, ratio


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("forward_step[#]", "backward_step[#]"),
        # A built-in convention matches only one of the two passes.
        # It reads more numbers from that pass than the draft reads from the other pass.
        ("F#.0.0", "my_backward #"),
        ("F#.0.0", "backward_step"),
        ("fwd mb=#", "B#.0.0"),
        ("PP:0F#", "PP bwd #"),
        ("DeepSpeedEngine.forward", "engine_bwd"),
        ("execute_context_#(2048)_generation_3(3)", "my backward #"),
        ("_exec_forward_pass", "_exec_backward_pass"),
        ("fwd # 0", "bwd # 0"),
        ("fwd 0 #", "bwd 0 #"),
        ("forward(batch=4)", "backward(batch=4)"),
        ("forward 0x7f#", "backward 0x7f#"),
        ("compute_loss", "accelerator.backward"),
        ("F-#", "B-#"),
        ("train.py:88 forward", "train.py:97 backward"),
        ("forward_one_chunk #", "backward_one_chunk #"),
        ("pipe fwd chunk #", "pipe bwd chunk #"),
        ("pipe fwd chunk # 3.5us", "pipe bwd chunk # 4.5us"),
        ("forward 12% chunk #", "backward 80% chunk #"),
        ("forward\nmb #", "backward\nmb #"),
        ("forward\u202emb #", "backward\u202emb #"),
        ('it\'s forward\t"x" #', "it's backward\x1b\\d #"),
    ],
)
def test_a_draft_gives_the_ratio_of_the_run(forward: str, backward: str, tmp_path: Path) -> None:
    run = _plant_renamed(tmp_path, F=forward, B=backward)

    suggestion, ratio = _try_draft(run, tmp_path)
    assert ratio == pytest.approx(3 / 11)
    assert suggestion.replace("\n", "").isprintable()


#: Patterns of names that a library uses for ranges inside other ranges.
INSIDE = [
    # The library gives every second forward a different name with different numbers.
    {"fwd *[02468]": "model forward 0"},
    {"fwd *": "layer_3_forward", "bwd *": "layer_3_backward"},
]


@pytest.mark.parametrize("inner_ranges", INSIDE)
def test_ranges_inside_operations_are_left_out_of_a_draft(
    inner_ranges: dict[str, str], tmp_path: Path
) -> None:
    run = _plant_renamed(tmp_path, F="fwd #", B="bwd #")
    for glob, name in inner_ranges.items():
        _insert_copies(run, glob, start="start + 1", end='"end" - 1', text=f"'{name}'")
    assert _try_draft(run, tmp_path)[1] == pytest.approx(3 / 11)


def test_a_rank_in_an_iteration_name_is_not_its_number(tmp_path: Path) -> None:
    run = _plant_renamed(tmp_path, F="fwd #", B="bwd #")
    name_expression = "'iteration_' || (globalTid >> 24 & 3) || '_7'"
    edit_database(run, f"UPDATE NVTX_EVENTS SET text = {name_expression} WHERE text = 'Optimizer'")
    assert _try_draft(run, tmp_path)[1] is not None


def test_layers_of_several_microbatches_in_a_row_give_no_draft(tmp_path: Path) -> None:
    run = _plant_renamed(tmp_path, F="layer_3_forward", B="layer_3_backward")
    # Without transfers between operations, the end of a microbatch is unknown.
    edit_database(run, "DELETE FROM NVTX_EVENTS WHERE text GLOB '[SR]E[NC][DV]_*'")
    assert bubbleviz.inspect(run).suggestion is None


#: Beginnings of names.
#: Some are longer than the part that a message shows.
SHAPES = ("saxpy", "CommonPjRtLoadedExecutable::ExecutePrepare", "b" * 90, "Setup, part " * 9)


@pytest.mark.parametrize("names", [SHAPES[:1], SHAPES, SHAPES[::-1], ("forward pass", *SHAPES)])
def test_a_refusal_shows_each_name_by_itself(
    names: tuple[str, ...], tmp_path: Path, cli: CommandLine
) -> None:
    kernels = [K(20 * n + 3, 20 * n + 9, n) for n in range(len(names))]
    calls = [C(20 * n + 1, 20 * n + 2, n) for n in range(len(names))]
    ranges = [R(20 * n, 20 * n + 12, text) for n, text in enumerate(names)]
    path = write_profile(tmp_path, kernels, calls, ranges)

    refusal = cli.refused("analyze", str(path), code=1)

    assert " … " not in refusal
    for name in names:
        displayed_name = name if len(name) <= 40 else f"{name[:39].rstrip()}…"
        assert f"{displayed_name!r} (1)" in refusal
    # No draft of these names contains both forward and backward.
    assert "mine.toml" not in refusal


#: Names, and the groups that their draft must have.
#: A number before a unit is not an index.
NUMBERS = {
    ("forward 0.832 ms", "forward 0.917 ms"): "",
    ("forward 0.05", "forward 1.25"): "",
    ("forward 3.5 s", "forward 4.5 s"): "",
    ("forward 12 us", "forward 13 us"): "",
    ("forward 512 MB", "forward 256 MB"): "",
    ("forward 2 GiB/s", "forward 3 GiB/s"): "",
    ("forward 80%", "forward 90%"): "",
    ("forward 2 x 1024", "forward 4 x 1024"): "",
    ("forward step 12 ms", "forward step 13 ms"): "",
    ("forward 3 512 MB", "forward 4 512 MB"): "forward (?P<microbatch>[0-9]+) [0-9]+ MB",
    ("forward m3 0.25 ms", "forward m4 0.75 ms"): "forward m(?P<microbatch>[0-9]+) ",
    ("forward 3 s2", "forward 4 s2"): "forward (?P<microbatch>[0-9]+) s[0-9]+",
    ("forward 3.0.1", "forward 3.1.1"): "forward (?P<microbatch>[0-9]+)",
    ("forward 3.1", "forward 4.1"): "forward (?P<microbatch>[0-9]+)",
    ("forward 2.10", "forward 3.9"): "forward (?P<microbatch>[0-9]+)",
    tuple(f"fwd chunk {chunk} mb {mb}" for chunk in (0, 1) for mb in range(4)): (
        "fwd chunk (?P<chunk>[0-9]+) mb (?P<microbatch>[0-9]+)$"
    ),
}


@pytest.mark.parametrize("names", NUMBERS, ids=lambda names: names[0])
def test_numbers_count_unless_they_have_a_unit(names: tuple[str, ...]) -> None:
    draft = suggest(dict.fromkeys(names, 3))

    assert draft is not None
    assert NUMBERS[names] in draft
    assert NUMBERS[names] or "(?P<" not in draft


#: Names as written by trainers, module hooks and tracers, with microbatch {m} and layer {l}.
LAYERS = [
    "layer {l} forward",
    "model.layers.{l}.forward",
    "fwd_layer_{l}",
    "forward(layer_idx={l})",
    "transformer.h.{l} fwd",
    "DecoderLayer_{l} forward",
    "GPTLayer-{l}-forward",
    "forward L{l}",
    "TransformerLayer forward {l}",
    "forward_{l}_layer",
    "forward {l}th layer",
    "lyr{l}_fwd",
    "forward pp_stage {l}",
    "forward depth {l}",
    "encoder.block.{l}.fwd",
    "fwd model.layers.{l}",
    "forward layer_number: {l}",
    "forward expert {l}",
    "Sequential.{l}.forward",
    "forward mb {m} layer {l}",
    "forward {m} l{l}",
    "fwd.{m}.{l}.layer",
    "layer {l} forward {m}",
    "fwd microbatch {m} block {l}",
    "forward mb={m} layer={l}",
    "{l} layer forward {m}",
    "forward layers {l} mb {m}",
    "model.layers.{l}.forward microbatch {m}",
]


@pytest.mark.parametrize("form", LAYERS)
def test_numbers_of_layers_are_never_microbatches(form: str) -> None:
    """No draft reads layer numbers as microbatches, but microbatch numbers are read."""
    forward = [form.format(m=m, l=layer) for m in range(4) for layer in range(16, 24)]
    backward = [n.replace("forward", "backward").replace("fwd", "bwd") for n in forward]
    names = list(dict.fromkeys((*forward, *backward)))
    read = [
        parse_range_names(names, draft)
        for draft in generate_drafts(dict.fromkeys(names, 3)).values()
    ]

    assert read
    for reading in read:
        assert set(reading.microbatch.tolist()) <= {-1, 0, 1, 2, 3}
    if " mb" in form or "microbatch" in form:
        assert set(read[0].microbatch.tolist()) == {0, 1, 2, 3}
