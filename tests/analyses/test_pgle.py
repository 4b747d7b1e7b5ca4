"""Instruction costs: planted JAX runs with known costs, and sources of wrong costs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from bubbleviz.analyses.pgle import measure_costs
from bubbleviz.analyses.pgle.comparison import compare_costs, format_comparison_csv
from bubbleviz.analyses.pgle.files import encode_costs, read_costs
from bubbleviz.analyses.pgle.instructions import GRAPHS, OVERLAP, PAIRS
from bubbleviz.errors import NothingToAnalyzeError, UsageError
from tests.support.command_line import CommandLine
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.xla_runs import FORMS, NCCL, Run, list_costs, make_steps


def test_without_instructions_nothing_is_measured(tmp_path: Path) -> None:
    outside_run, compiling = Run(), Run()
    with outside_run.range("F0.0.0"):
        outside_run.launch(5)
    outside_run.thunk("fusion.1")
    with compiling.range("XlaCompile:#module=jit_step#"), compiling.module():
        compiling.thunk("fusion.1", 10)
    for number, (run, complaint) in enumerate(
        (
            (Run(), "no CUDA kernels were recorded"),
            (outside_run, "no XLA instruction has GPU work"),
            (compiling, "no instruction was recorded completely"),
        )
    ):
        with pytest.raises(NothingToAnalyzeError, match=complaint):
            measure_costs(run.written(tmp_path, f"{number}.sqlite"))
    path = write_profile(
        tmp_path, [K(5, 9, 1)], [C(1, 2, 1)], [R(0, 3, "XlaModule:#hlo_module=jit_step#")]
    )
    with pytest.raises(NothingToAnalyzeError, match="contains no names of XLA instructions"):
        measure_costs(path)


# Tests with known truth.


def test_one_module_is_chosen_if_there_are_several(tmp_path: Path) -> None:
    run = Run()
    for _ in range(2):
        with run.module("jit_init", 1):
            run.thunk("fusion.1", 10)
        with run.module("jit_step", 7):
            run.thunk("fusion.1", 20)
            run.thunk("fusion.2", 30)
        with run.module("jit_step", 9):
            run.thunk("fusion.1", 40)
    path = run.written(tmp_path)
    shared = "instructions with the same name in several modules"

    together = measure_costs(path, aggregate="max")
    assert list_costs(together) == {"fusion.1": 0.040, "fusion.2": 0.030}
    assert shared in list_limitation_subjects(together)
    assert [label for label, *_ in together.modules] == [
        "jit_step(7)",
        "jit_step(9)",
        "jit_init(1)",
    ]
    assert list_costs(measure_costs(path, modules=["jit_init"])) == {"fusion.1": 0.010}
    costs = measure_costs(path, modules=["jit_step(7)"])
    assert list_costs(costs) == {"fusion.1": 0.020, "fusion.2": 0.030}
    assert shared not in list_limitation_subjects(costs)
    assert (
        list_costs(measure_costs(path, aggregate="max", modules=["jit_step"]))["fusion.1"] == 0.040
    )
    with pytest.raises(UsageError, match=r"jit_nothing.*contain jit_init\(1\), jit_step\(7\)"):
        measure_costs(path, modules=["jit_nothing"])


def test_executions_that_are_cut_or_that_compile_are_left_out(tmp_path: Path) -> None:
    run = Run()
    run.thunk("fusion.1", 9_999)
    with run.range("TSL:XlaCompileBackend:#module=jit_step#"), run.module("autotune", 0):
        run.thunk("fusion.1", 8_888)
    for _ in range(3):
        with run.module():
            run.thunk("fusion.1", 10)
    row = len(run.ranges)
    with run.module():
        run.thunk("fusion.1", 7_777)
    run.ranges[row] = R(run.ranges[row].start, None, run.ranges[row].name)
    costs = measure_costs(run.written(tmp_path), aggregate="max")

    assert list_costs(costs) == {"fusion.1": 0.010}
    assert (costs.cut, costs.compilation, costs.warm_up) == (2, 1, 1)


def test_without_ranges_of_modules_each_instruction_counts_its_executions(tmp_path: Path) -> None:
    run = Run()
    for took in (900, 10, 20):
        run.thunk("fusion.1", took)
    for took in (800, 7):
        run.thunk("fusion.2", took, form=FORMS[3])
    costs = measure_costs(run.written(tmp_path), aggregate="max")

    assert list_costs(costs) == {"fusion.1": 0.020, "fusion.2": 0.007}
    all_of_them = measure_costs(run.written(tmp_path), aggregate="max", skip=0)
    assert list_costs(all_of_them) == {"fusion.1": 0.900, "fusion.2": 0.800}
    but_two = measure_costs(run.written(tmp_path), aggregate="max", skip=2)
    assert list_costs(but_two) == {
        "fusion.1": 0.020,
        "fusion.2": 0.800,
    }  # runs twice in total
    assert [label for label, *_ in costs.modules] == ["jit_step(7)"]


def test_the_default_percentile_is_that_of_jax(tmp_path: Path) -> None:
    # As in xla/python/aggregate_profile_test.cc, the 90th percentile of 0, 10, .. 100 is 90.
    run = Run()
    for took in (7, *range(0, 101, 10)):
        with run.module():
            run.thunk("custom-call", took)
            run.thunk("psum.2", took, kernel=NCCL)
    path = run.written(tmp_path)

    assert list_costs(measure_costs(path)) == {"custom-call": 0.090, "psum.2": 0.090}
    # A separate rule may apply to collectives.
    # Collectives are detected by the kernel and not by the name.
    costs = measure_costs(path, aggregate="min", aggregate_collectives="max")
    assert list_costs(costs) == {"custom-call": 0.0, "psum.2": 0.1}


# Tests of sources of wrong costs.


@pytest.mark.parametrize(("shared_ns", "warned"), [(0, False), (10, False), (11, True)])
def test_collectives_that_overlap_compute_are_reported(
    shared_ns: int, warned: bool, tmp_path: Path
) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("all-gather-start.1", 1_000, kernel=NCCL, stream=8)
            run.free[0, 7] = run.free[0, 8] - shared_ns
            run.thunk("fusion.2", 500)
            run.thunk("fusion.2", 5_000, device=1)  # compute on another device does not overlap it
            run.free[0, 8] = run.free[0, 7]
            run.now = max(run.now, run.free[0, 7])
    costs = measure_costs(run.written(tmp_path))

    # A share of exactly one hundredth passes.
    assert (OVERLAP in list_limitation_subjects(costs)) == warned


PAIR = "reduce-scatter-start.1 reduce-scatter-done.9 fusion.3"


@pytest.mark.parametrize(
    ("instructions", "expected_counts"),
    [
        (PAIR, []),
        *((PAIR.replace("reduce-scatter", kind), []) for kind in ("async", "collective-permute")),
        (PAIR.replace(" ", " fusion.2 "), [2]),
        ("all-gather-start.1 fusion.2 all-gather-done.9", [2]),
        # The asynchronous pairs cross each other.
        ("all-gather-start.1 async-start.1 all-gather-done.2 async-done.2", [4]),
        # The two implementations differ by design.
        ("send.1 recv.2 send-done.3 recv-done.4", []),
    ],
)
def test_pairs_with_something_in_between_are_reported(
    instructions: str, expected_counts: list[int], tmp_path: Path
) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            for op in instructions.split():
                run.thunk(op, 100, kernel=NCCL)
            with run.range("Thunk:#hlo_op=command_buffer.1#"):
                run.launch(100, call="cudaGraphLaunch_v10000")
    costs = measure_costs(run.written(tmp_path))

    assert [n.count for n in costs.limitations if n.what == PAIRS] == expected_counts
    # CUDA graphs hide instructions.
    assert [n.count for n in costs.limitations if n.what == GRAPHS] == [1]


# Tests of the command and of comparisons.


def test_the_command_writes_text_and_binary(tmp_path: Path, cli: CommandLine) -> None:
    path = make_steps(4).written(tmp_path)
    content = path.read_bytes()
    expected = {"all-gather-start.2": 0.54, "fusion.1": 1.002}

    text, binary = tmp_path / "costs.pbtxt", tmp_path / "costs.pb"
    code, out, err = cli("pgle", path, "-o", text)
    assert (code, err) == (0, "")
    assert "2 instructions, including 1 collective" in out
    assert "cost: p90 over executions and devices (6 executions" in out
    assert "--xla_gpu_enable_latency_hiding_scheduler=false" in out
    assert f"--xla_gpu_pgle_profile_file_or_directory_path={text}\n" in out
    assert cli("pgle", path, "-o", binary)[0] == 0
    assert read_costs(str(text)) == read_costs(str(binary)) == expected
    assert cli("pgle", path, "--pbtxt", "-")[:2] == (0, text.read_text())
    assert path.read_bytes() == content
    assert {file.name for file in tmp_path.iterdir()} == {"jax.sqlite", text.name, binary.name}


def test_nothing_is_replaced_without_force(tmp_path: Path, cli: CommandLine) -> None:
    path, file = make_steps(2).written(tmp_path), tmp_path / "costs.pbtxt"
    file.write_text("mine")

    code, out, err = cli("pgle", path, "-o", file)
    assert (code, out, file.read_text()) == (1, "", "mine")
    assert "--force" in err
    assert cli("pgle", path, "-o", file, "--force")[0] == 0
    assert file.read_text() != "mine"
    assert cli("pgle", path, "--pb", path, "-f")[0] == 1

    # Without an output file, costs are printed.
    # Entries that XLA does not read are not written.
    code, out, err = cli("pgle", path)
    assert (code, err) == (0, "")
    table_rows = [line.split() for line in out.splitlines() if line.startswith("fusion.1")]
    assert table_rows == [["fusion.1", "1.001", "1", "compute"]]
    code, _, err = cli("pgle", path, "-o", tmp_path / "costs.txt")
    assert (
        code,
        err.endswith("unknown suffix; the name must end in one of .csv, .pbtxt, .pb\n"),
    ) == (2, True)


def test_the_command_compares_two_files(tmp_path: Path, cli: CommandLine) -> None:
    path, file, table = make_steps(2).written(tmp_path), tmp_path / "a.pb", tmp_path / "off.csv"
    # The measured costs are 0.540 us and 1.001 us.
    estimates = {"fusion.1": 0.5, "=gone": 3.0, "all-gather-start.2": 2.54}
    file.write_bytes(encode_costs(estimates, "pb"))
    code, out, err = cli("pgle", path, "--against", file, "--csv", table)

    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.startswith(("fusion.", "all-g"))]
    assert rows == [
        ["all-gather-start.2", "2.540", "0.540", "0.213", "-2.000", "1"],
        ["fusion.1", "0.500", "1.001", "2.002", "+0.501", "1"],
    ]
    assert "sum of absolute errors: 2.501 us" in out
    assert "estimated, but not in the profile: 1 instruction, 3.000 us (=gone)" in out
    read = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["instruction"] for row in read] == ["all-gather-start.2", "fusion.1"]
    assert float(read[1]["ratio"]) == pytest.approx(2.002)

    # Fingerprints of modules are removed.
    # Names break ties between equal differences.
    costs = measure_costs(path)
    for estimates, names in (
        ({"90ab::fusion.1": 1.0, "12cd::fusion.1": 2.0}, ["fusion.1"]),
        ({"fusion.1": 1.001, "all-gather-start.2": 0.54}, ["all-gather-start.2", "fusion.1"]),
        ({"fusion.1": 0.0}, ["fusion.1"]),
        ({}, []),
    ):
        compared, _, unestimated = compare_costs(costs.instructions, estimates)
        assert [own.name for own, _ in compared] == names
        assert len(unestimated) == 2 - len(names)
    assert (
        format_comparison_csv(compare_costs(costs.instructions, {"fusion.1": 0.0})).count(",,") == 1
    )
    # If no instruction can be compared, this is reported.
    file = tmp_path / "estimates.pbtxt"
    for content in ("", 'costs { name: "other" cost_us: 7 }\n'):
        file.write_text(content)
        code, out, _ = cli("pgle", path, "--against", file)
        assert code == 0
        assert "no instruction is in both the estimates and the profile" in out
        assert "sum of absolute errors: -\n" in out
        assert "largest error first" not in out


def test_limitations_go_to_standard_error(tmp_path: Path, cli: CommandLine) -> None:
    run = Run()
    for _ in range(2):
        with run.module():
            run.thunk("all-gather-start.1", 1_000, kernel=NCCL, stream=8)
            run.thunk("fusion.2", 1_000)
            run.thunk("all-gather-done.1")
    code, out, err = cli("pgle", run.written(tmp_path), "--pbtxt", "-")

    assert code == 0
    costs = 'costs {{ name: "{}" cost_us: 1.0 }}'.format
    assert set(out.splitlines()) == {costs("all-gather-start.1"), costs("fusion.2")}
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["bubbleviz", "warning", "collectives overlap compute"],
        ["bubbleviz", "warning", "asynchronous collectives (2 times)"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aggregate", "p101"], "must be one of"),
        (["--aggregate-collectives", "most"], "must be one of"),
        (["--csv", "x.csv"], "--against"),
        (["--module", "jit_other"], "jit_step(7)"),
        (["--skip", "-1"], "--skip"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, cli: CommandLine
) -> None:
    code, out, err = cli("pgle", make_steps(2).written(tmp_path), *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_hostile_names_are_inert_everywhere(tmp_path: Path, cli: CommandLine) -> None:
    names = ["<script>x", "a\nb\x1b[2J", "=1+1", '" } costs { name: "', "z" * 10_000, "größe"]
    run = Run()
    for _ in range(2):
        with run.module("<b>\n" + "m" * 10_000):
            for name in names:
                run.thunk(name, 1_000)
    path, file = run.written(tmp_path), tmp_path / "costs.pbtxt"
    assert cli("pgle", path, "-o", file)[0] == 0
    _, output, _ = cli("pgle", path)
    code, out, _ = cli("pgle", path, "--against", file, "--csv", "-")

    assert code == 0
    assert read_costs(str(file)) == dict.fromkeys(names, 1.0)
    assert all(c.isprintable() or c == "\n" for c in output)
    assert max(map(len, output.splitlines())) < 250
    cells = {row["instruction"] for row in csv.DictReader(io.StringIO(out))}
    assert not any(cell.startswith("=") for cell in cells)
