"""Users can list additional communication kernels in a file, and all commands apply it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.analyses.pgle import measure_costs
from tests.support.command_line import CommandLine
from tests.support.nccl_runs import ALLREDUCE
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.xla_files import E, L, P
from tests.support.xla_profiles import write_planes
from tests.support.xla_runs import FORMS, Run

FUSED = "void acme::exchange_rows<float, 8>(float*, int)"


def write_additions(
    folder: Path, text: str = "communication = ['acme::exchange', '^mover']"
) -> str:
    file = folder / "ours.toml"
    file.write_text(text)
    return str(file)


def write_one_stage(folder: Path) -> str:
    """Write a forward, and a backward that communicates for 80 ns and computes for 10 ns."""
    kernels = [K(0, 10, 1), K(10, 90, 2, FUSED), K(90, 100, 3)]
    calls = [C(1, 2, 1), C(7, 8, 2), C(11, 12, 3)]
    return str(write_profile(folder, kernels, calls, [R(0, 5, "F0.0.0"), R(10, 15, "B0.0.0")]))


def test_nccl_lists_the_kernels_that_a_file_adds(tmp_path: Path, cli: CommandLine) -> None:
    kernels = [K(100, 400, 1, ALLREDUCE), K(500, 900, 2, FUSED), K(900, 950, 3)]
    file = write_profile(tmp_path, kernels, [C(1, 2, 1), C(3, 4, 2), C(5, 6, 3)])
    ours = write_additions(tmp_path)

    plain = cli.json("nccl", str(file), "--json", "-")
    added = cli.json("nccl", str(file), "--json", "-", "--convention", ours)

    assert [total["name"] for total in plain["totals"]] == ["AllReduce"]
    assert [(total["name"], total["duration_ns"]) for total in added["totals"]] == [
        ("acme::exchange_rows", 400),
        ("AllReduce", 300),
    ]
    # The added kernels do not belong to NCCL, so NCCL records no ranges for them.
    outside_ranges = [
        note for note in added["limitations"] if "outside of NCCL ranges" in note["what"]
    ]
    assert [note["count"] for note in outside_ranges] == [1]


def test_without_nccl_the_remedy_is_named(tmp_path: Path, cli: CommandLine) -> None:
    message = cli.refused("nccl", write_one_stage(tmp_path), code=1)
    assert "under communication in a TOML file, and pass the file with --convention" in message


@pytest.mark.parametrize(
    ("op", "kernel"), [("fusion.9", FUSED), ("mover.3", "gemm"), ("mover.3", FUSED)]
)
@pytest.mark.parametrize("form", FORMS[:3])
def test_pgle_applies_additions_to_kernels_and_instructions(
    tmp_path: Path, op: str, kernel: str, form: str
) -> None:
    run = Run()
    for _ in range(3):
        with run.module():
            run.thunk("fusion.1", 100, form=form)
            run.thunk(op, 50, kernel=kernel, form=form)
    file = run.written(tmp_path)

    plain = measure_costs(file)
    added = measure_costs(file, convention=write_additions(tmp_path))

    assert {cost.name: cost.collective for cost in plain.instructions} == {
        "fusion.1": False,
        op: False,
    }
    assert {cost.name: cost.collective for cost in added.instructions} == {
        "fusion.1": False,
        op: True,
    }


def write_run_with_transfers(folder: Path, name: str) -> str:
    """Write three steps of a TPU, each with a transfer that takes longer than the instructions."""
    stats: dict[str, int | str] = {"hlo_module": "jit_step", "program_id": 7}
    steps = range(0, 3000, 1000)
    ops = [
        E(
            op_name,
            step + start,
            step + end,
            {**stats, "run_id": step, "tf_op": f"jit(step)/{path}/dot"},
        )
        for step in steps
        for op_name, path, start, end in (
            (name, "jvp(layer)", 0, 1),
            ("dot.2", "jvp(layer)", 1, 90),
            ("dot.3", "transpose(jvp(layer))", 100, 300),
        )
    ]
    transfers = [E(name, at, at + 500, {**stats, "run_id": at}) for at in steps]
    modules = [E("jit_step(7)", at, at + 600, {**stats, "run_id": at}) for at in steps]
    lines = [L("XLA Modules", modules, 1), L("XLA Ops", ops, 2), L("Async XLA Ops", transfers, 3)]
    folder.mkdir(exist_ok=True)
    return str(write_planes(folder, [P("/device:TPU:0", lines)]))


@pytest.mark.parametrize("command", ["analyze", "idle", "pgle"])
def test_added_xla_transfers_count_like_built_in_names(
    tmp_path: Path, cli: CommandLine, command: str
) -> None:
    built_in = write_run_with_transfers(tmp_path / "known", "all-gather.4")
    added = write_run_with_transfers(tmp_path / "added", "mover.444444")
    options = ["--convention", write_additions(tmp_path)]
    options += ["--convention", "jax-xla"] if command == "analyze" else []
    outputs = []
    for file, name in ((built_in, "all-gather.4"), (added, "mover.444444")):
        code, out, err = cli(command, file, *options)
        assert code == 0
        # Only built-in names show the kind of collective.
        text = f"{out}{err}".replace("Overlap AllGather", "Overlap the collective")
        outputs.append(text.replace(file, "FILE").replace(name, "NAME"))

    # The lengths of the names affect the line breaks.
    outputs = [" ".join(text.split()) for text in outputs]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "command", ["nccl", "pgle", "idle", "inspect", "analyze", "compare", "view"]
)
def test_an_invalid_file_of_additions_is_refused(
    tmp_path: Path, cli: CommandLine, command: str
) -> None:
    ours = write_additions(tmp_path, "communication = ['(']")

    runs = [write_one_stage(tmp_path)] * (2 if command == "compare" else 1)

    assert "ours.toml: communication" in cli.refused(command, *runs, "--convention", ours)
