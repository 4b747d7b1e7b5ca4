"""Names of activities and steps, and windows of steps."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.outputs import as_json
from bubbleviz.analyses.idle.page import format_output
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.errors import InputError, NothingToAnalyzeError, UsageError
from bubbleviz.model.window import parse_window
from bubbleviz.report.idle_summary import StepParts
from tests.support.idle_runs import (
    US,
    World,
    add_overheads,
    c,
    check_sums,
    get_only_rank,
    k,
    list_times,
    make_training,
    r,
    worlds,
    write_world,
)
from tests.support.nsys_exports import write_profile

#: Names of ranges and calls for each activity.
ACTIVITIES = {
    "data loading": (
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "## data_load ##",
        "next(train_iterator)",
        "Iterator::Model::Prefetch",
        "get_batch",
        "batch-generator",
    ),
    "tracing and compiling": (
        "TorchDynamo Cache Lookup",
        "XlaCompile:#module=jit_step#",
        "backend_compile",
        "cuModuleLoadData",
        "cuLibraryLoadData",
        "nvrtcCompileProgram",
    ),
    "waiting": (
        "cudaStreamSynchronize",
        "hipDeviceSynchronize",
        "cuCtxSynchronize",
        "ThunkExecutor::Execute (wait for completion)",
        "Rendezvous",
        "pthread_cond_timedwait",
        "poll",
    ),
    "transfer": (
        "cudaMemcpyAsync",
        "cuMemcpyHtoDAsync_v2",
        "TransferToDevice",
        "InfeedEnqueue",
        "DevicePut",
    ),
    "garbage collection": ("PythonRefManager::CollectGarbage",),
    "operators": (
        "jit_matmul:XLA GPU module",
        "aten::to, op_id = 4",
        "autograd::engine::evaluate_function: MmBackward0",
        "PjitFunction(train_step)",
    ),
    "allocation": ("cudaMalloc", "cuMemAllocAsync"),
    "launch": (
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "hipExtModuleLaunchKernel",
    ),
    "collective calls": ("ncclAllReduce", "nccl:all_reduce", "c10d::allreduce_"),
    "optimizer": ("Optimizer.step#AdamW.step", "## optimizer ##"),
    "API calls": ("cuKernelGetAttribute", "cudaEventRecord"),
    "Python": (
        "train.py(12): main",
        "<built-in method apply of FunctionMeta object at 0x5581>",
        "$profiler.py:91 start_trace",
    ),
    "file access": ("getc", "pread64", "fopen64"),
    "system calls": ("ioctl", "mmap64"),
    "host: custom_op": ("custom_op",),
    "host: read the config": ("read the config",),
    "host: Currency #": ("Currency 3",),
    "host: forward": ("forward",),
    "host: Loop": ("Loop",),
    "host: IO #": ("IO 12",),
    "host: FSDP::pre_forward (blocks.#)": ("FSDP::pre_forward (blocks.3)",),
    "host: (no name)": ("",),
}


@pytest.mark.parametrize(
    ("name", "activity"), [(name, own) for own, names in ACTIVITIES.items() for name in names]
)
def test_activities_are_recognized_by_name(name: str, activity: str) -> None:
    assert default_activities().copy().classify_range(name)[0] == activity


def test_every_activity_has_a_meaning_and_a_remedy() -> None:
    activities = default_activities()
    for name in {own.name for own in activities.activities}:
        activity = activities.find(name)
        assert activity is not None
        assert activity.meaning
        assert activity.advice


def test_activities_defined_by_the_user_come_first(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[[activity]]\nname = "tokeniser"\nstrength = 3\nmatch = ["^tok"]\nadvice = "cache it"\n',
        encoding="utf-8",
    )
    file = write_profile(
        tmp_path, [k(0, 10, 1), k(100, 110, 2)], [c(-9, 0, 1), c(70, 75, 2)], [r(20, 60, "tok")]
    )

    report = bubbleviz.idle(file, activities=mine)

    assert list_times(get_only_rank(report)) == {
        "tokeniser": 40,
        "no host trace": 20,
        "launch": 20,
        "stream or rank dependency": 10,
    }
    assert advice(report)[0].endswith('is "tokeniser": cache it')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"must contain only \[\[activity\]\] tables"),
        ("x", "is not valid TOML"),
        ("[[activity]]\nmatch = []", "name is missing"),
        ('[[activity]]\nname = "a"\nmatch = ["("]', "not a valid regular expression"),
        ('[[activity]]\nname = "a"\nmatch = [3]', "must be a list"),
        ('[[activity]]\nname = "a"\nmatch = "zz"', "must be a list"),
        (
            '[[activity]]\nname = "stream or rank dependency"\nmatch = ["zz"]',
            "'stream or rank dependency' is reserved",
        ),
        ('[[activity]]\nname = "a"\nstrength = 4', "strength must be 0, 1, 2 or 3"),
        ('[[activity]]\nname = "a"\nstrength = true', "strength must be an integer"),
        ('[[activity]]\nname = "a"\ncolor = "red"', "unknown key 'color'"),
        ('[[activity]]\nname = "a"\nadvice = 3', "advice must be a string"),
        ('other = 3\n[[activity]]\nname = "a"', "must contain only"),
    ],
)
def test_a_wrong_list_of_activities_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(text, encoding="utf-8")
    file = write_profile(tmp_path, [k(0, 10, 1)])

    with pytest.raises(UsageError, match=complaint):
        bubbleviz.idle(file, activities=mine)
    with pytest.raises(InputError, match="no such file"):
        bubbleviz.idle(file, activities=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["ProfilerStep#1", "ProfilerStep#2, op_id = 3"], ["ProfilerStep#1", "ProfilerStep#2"]),
        (["train#step_num=4#", "train#step_num=2#"], ["train#step_num=4#", "train#step_num=2#"]),
        (["train#name=a,step_num=4,b=c#", "x"], ["train#name=a,step_num=4,b=c#"]),
        (["train #2#step_num=5#", "x"], ["train #2#step_num=5#"]),
        (["train#step_num=5#, again", "x"], []),
        (["iter_0_7", "iter_0_8"], ["iter_0_7", "iter_0_8"]),
        (["epoch 1 step 9", "epoch 1 step 10"], ["epoch 1 step 9", "epoch 1 step 10"]),
        (["train", "train"], ["train", "train"]),
        (["layer 1", "layer 1"], ["layer 1", "layer 1"]),
        (["layer 2", "layer 1"], []),
        (["step 1", "else"], []),
        (["aten::mm", "aten::mm"], []),
        (["XlaModule:#hlo_module=jit_f#"] * 2, ["XlaModule:#hlo_module=jit_f#"] * 2),
        (["F" + "9" * 40, "F" + "8" * 40], []),
    ],
)
def test_ranges_are_recognized_as_steps(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    kernels, calls, ranges = make_training(names, [100, 100])

    rank = get_only_rank(bubbleviz.idle(write_profile(tmp_path, kernels, calls, ranges)))

    assert [step.name for step in rank.steps if step.name is not None] == expected


def test_the_user_can_name_the_steps(tmp_path: Path) -> None:
    kernels, calls, ranges = make_training(["a(1)", "a(2)", "b"], [100, 100, 100])
    ranges += [r(10, 50, "a(1)"), r(90, 120, "a(3)")]
    file = write_profile(tmp_path, kernels, calls, ranges)

    def names(step: str) -> list[str]:
        rank = get_only_rank(bubbleviz.idle(file, step=step))
        check_sums(rank)
        return [own.name for own in rank.steps if own.name is not None]

    # Of overlapping ranges, the outermost is used.
    # Ranges that begin before its end are skipped.
    assert names("a(1)") == ["a(1)"]
    assert names(r"a\(\d\)") == ["a(1)", "a(2)"]
    assert names("a.*|b") == ["a(1)", "a(2)", "b"]
    with pytest.raises(UsageError, match=r"no range on a launching thread .* has this name"):
        bubbleviz.idle(file, step="c")
    for step in ("a[", "a{99999999999999999999}"):
        with pytest.raises(UsageError, match="not a valid regular expression"):
            bubbleviz.idle(file, step=step)
    for step in ("[[a]", "[a--b]"):
        with pytest.raises(UsageError, match=r"step: .* is ambiguous \(possible "):
            bubbleviz.idle(file, step=step)


@settings(max_examples=25)
@given(worlds(), st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(-20, 60))
def test_steps_add_up(world: World, lengths: list[int], first_start: int) -> None:
    ranges, now = list(world.ranges), first_start
    for number, length in enumerate(lengths):
        ranges.append((now, now + length, 1, f"ProfilerStep#{number}"))
        now += length + number % 2
    with TemporaryDirectory() as folder:
        file = write_world(Path(folder), World(world.kernels, world.calls, ranges, world.overheads))
        if all(a == b for a, b, *_ in world.kernels):
            return
        report = bubbleviz.idle(file)

    for rank in report.ranks:
        check_sums(rank)
        parts = [step.parts for step in rank.steps if step.parts is not None]
        assert min((getattr(part, name) for part in parts for name in PARTS), default=0) >= 0
        # The times of steps do not overlap, and only preparing may be before the span.
        assert sum(part.total_ns - part.preparing_ns for part in parts) <= rank.span_ns


PARTS = (
    *("preparing_ns", "compute_ns", "exposed_communication_ns", "exposed_copy_ns"),
    "idle_ns",
)


def test_a_step_is_divided_until_its_last_work(tmp_path: Path) -> None:
    """The second step is launched while the first step's work runs. The third launches nothing.

    ::

        us     0    10   20   30   40   50   60   70
        steps  [   1    ][   2    ]    [   3    ]
        work        ██████   ██ ███  ██
        step        1        1  2    2
    """
    launches = [(2, 10, 22), (15, 28, 31), (22, 33, 40), (32, 44, 50)]
    file = write_profile(
        tmp_path,
        [k(start, end, n) for n, (_, start, end) in enumerate(launches)],
        [c(launch, launch + 1, n) for n, (launch, _, _) in enumerate(launches)],
        [r(0, 20, "step 1"), r(20, 40, "step 2"), r(55, 75, "step 3")],
    )
    first, second, third, *_ = get_only_rank(bubbleviz.idle(file, step="step .*")).steps
    assert first.parts == StepParts(10 * US, 15 * US, 0, 0, 6 * US)
    assert second.parts == StepParts(2 * US, 13 * US, 0, 0, 4 * US)
    assert third.parts is None
    windowed = bubbleviz.idle(file, step="step .*", window="time:0.000035s-1s")
    assert get_only_rank(windowed).steps[0].parts is None


def test_preparing_counts_as_part_of_a_single_step(tmp_path: Path) -> None:
    ranges = [r(0, 70, "ProfilerStep#3")]
    file = write_profile(tmp_path, [k(30, 50, 1), k(60, 90, 2)], [c(1, 2, 1), c(3, 4, 2)], ranges)
    cost = bubbleviz.idle(file, unprofiled_step="80us").profiling_cost
    assert cost is not None
    assert cost.profiled_ns == 90 * US


def test_a_window_of_steps_agrees_with_the_complete_report(tmp_path: Path) -> None:
    kernels, calls, ranges = make_training(
        [f"step {n}" for n in range(3, 8)], [100, 200, 60, 40, 80]
    )
    file = write_profile(tmp_path, kernels, calls, ranges)
    complete = get_only_rank(bubbleviz.idle(file))

    report = bubbleviz.idle(file, window=parse_window("iteration:4-5"))

    rank = get_only_rank(report)
    assert rank.steps == complete.steps[1:3]
    assert (rank.start_ns, rank.end_ns) == (100 * US, 360 * US)
    assert json.loads(as_json(report, 5))["window"] == "iteration:4-5"
    check_sums(rank)
    with pytest.raises(InputError, match=r"iteration:9: .* the capture contains iterations 3 to 7"):
        bubbleviz.idle(file, window=parse_window("iteration:9"))
    with pytest.raises(NothingToAnalyzeError, match="no device work in --window time:1s-"):
        bubbleviz.idle(file, window=parse_window("time:1s-"))


def test_the_page_names_steps_of_profiles_that_start_at_different_steps(tmp_path: Path) -> None:
    for device, names in enumerate((["step 1", "step 2"], ["step 2", "step 3"])):
        write_profile(tmp_path, *make_training(names, [100, 200]), name=f"{device}.sqlite")
    bubbleviz.idle(tmp_path).save(tmp_path / "idle.html")

    page = (tmp_path / "idle.html").read_text(encoding="utf-8")
    (packed,) = re.findall(r'id="document">([^<]+)<', page)
    document = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert document["idle"]["steps"] == ["step 1", "step 2", "step 3"]


def test_idle_compares_steps_with_an_unprofiled_step(tmp_path: Path) -> None:
    kernels, calls, ranges = make_training(["step 1", "step 2", "step 3"], [100, 100, 100])
    file = write_profile(tmp_path, kernels, calls, ranges)
    add_overheads(file, [(60, 70)])
    report = bubbleviz.idle(file, unprofiled_step="80us")
    cost = report.profiling_cost
    assert cost is not None
    assert (cost.steps, cost.profiled_ns) == (1, 100_000)
    assert cost.overhead_ns == pytest.approx(10_000 * cost.profiled_ns / report.ranks[0].span_ns)
    sentence = report.to_dict()["profiling_cost"]["sentence"]
    assert "Without the profiler, the idle share may be anything from" in sentence
    text = format_output(report, "text", 5)
    assert isinstance(text, str)
    assert f"! {sentence}" in " ".join(text.split())


def test_an_unprofiled_step_needs_steps(tmp_path: Path) -> None:
    file = write_profile(tmp_path, [k(0, 10, 1), k(20, 30, 2)], [c(0, 1, 1), c(2, 3, 2)], [])
    with pytest.raises(InputError, match="no ranges were recognized as steps"):
        bubbleviz.idle(file, unprofiled_step="80us")
