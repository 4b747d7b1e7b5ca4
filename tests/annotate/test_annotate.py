"""Annotation of frameworks that name no operations: recorded ranges, recorders and removal.

The frameworks are fakes with the relevant signatures (tests/fakes). test_real_frameworks.py runs
the real frameworks.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz import annotate
from bubbleviz.annotate import ranges, wrapping
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.conventions.recognition import recognize_conventions
from bubbleviz.errors import BubblevizError, UsageError
from bubbleviz.model.phases import Phase
from tests.support.places import FAKES
from tests.support.pytorch import run_python


class Recorder(ranges.Recorders):
    """Records one line per opened range, indented by the number of enclosing ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.open_now: list[str] = []

    def open(self, name: str, **_: object) -> tuple[Any, ...]:
        self.lines.append("  " * len(self.open_now) + name.removeprefix("bubbleviz:"))
        self.open_now.append(name)
        return (name,)

    def close(self, opened: tuple[Any, ...]) -> None:
        assert self.open_now.pop() == opened[0], "ranges close in the order in which they opened"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(ranges, "_recorders", recorder)
    monkeypatch.setattr(ranges._recorders, "next_iteration", 0)
    return recorder


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FAKES))
    loaded = set(sys.modules)
    yield
    for handle in list(wrapping._wrapped_frameworks.values()):
        handle.remove()
    for name in set(sys.modules) - loaded:
        if name.split(".")[0] in ("megatron", "deepspeed"):
            del sys.modules[name]


def test_frameworks_are_found_by_name() -> None:
    assert annotate.supported() == ("deepspeed", "megatron", "torch", "torch_pipelining")
    assert set(annotate.supported()) < set(dir(annotate))
    with pytest.raises(
        AttributeError,
        match="no function 'horovod'; the supported frameworks are deepspeed, megatron",
    ):
        annotate.horovod()


@pytest.mark.parametrize("name", annotate.supported())
def test_a_missing_framework_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("deepspeed", "megatron", "torch"):
        monkeypatch.setitem(sys.modules, root, None)

    with pytest.raises(annotate.AnnotationError, match="cannot import its module") as error:
        getattr(annotate, name)(*[None] * (name == "torch"))

    assert isinstance(error.value, BubblevizError)
    assert isinstance(error.value, RuntimeError)
    assert "\n" not in str(error.value)


def test_the_phases_are_those_of_reports() -> None:
    assert set(ranges.PHASES) == {phase.label for phase in Phase}


NUMBER = st.none() | st.integers(0, 999_999_999)
NUMBERS = ("microbatch", "chunk", "stage", "sequence")
SECOND = ("second_microbatch", "second_chunk", "second_stage")


@given(
    phase=st.sampled_from(ranges.PHASES),
    numbers=st.fixed_dictionaries(dict.fromkeys((*NUMBERS, *SECOND), NUMBER)),
)
def test_every_name_is_read_with_the_intended_meaning(
    phase: str, numbers: dict[str, int | None]
) -> None:
    name = annotate.phase(phase, **numbers).name
    native = built_in()["bubbleviz"]

    read = parse_range_names([name], native)

    assert Phase(int(read.phase[0])).label == phase
    if numbers["microbatch"] is not None or numbers["second_microbatch"] is None:
        expected = {k: -1 if n is None else n for k, n in numbers.items()}
        assert {k: int(getattr(read, k)[0]) for k in numbers} == expected
    other_conventions = [c for c in built_in().values() if c is not native]
    assert not parse_range_names([name], *other_conventions).is_understood[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": "forward"}, r"annotate.phase\('forward'\): the phase must be one of F, B, W, BW"),
        ({"name": "F", "microbatch": -1}, "mb=-1 must be an integer"),
        ({"name": "F", "chunk": 10**9}, "chunk=1000000000 must be an integer"),
        ({"name": "F", "stage": 1.5}, r"stage=1\.5 must be an integer"),
        ({"name": "F", "sequence": "0"}, "sequence='0' must be an integer"),
        ({"name": "F", "microbatch": [1]}, "numbers must be integers"),
    ],
)
def test_operations_that_cannot_be_named_are_refused(
    arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        annotate.phase(**arguments)
    with pytest.raises(UsageError, match="iteration=-1 must be an integer"):
        annotate.iteration(-1)


F, BW, R1 = "bubbleviz:F mb=0 stage=0", "bubbleviz:BW mb=0 stage=0", "bubbleviz:R mb=1"
TORCH, OPTIMIZER = {"PP:0F0": 100, "PP:0B0": 100}, "bubbleviz:Optimizer"


@pytest.mark.parametrize(
    ("counts", "followed"),
    [
        ({F: 8, BW: 8}, ["bubbleviz"]),
        ({F: 8, BW: 8, "PP:0F0": 8, "PP:0B0": 8}, ["bubbleviz"]),
        (dict.fromkeys((F, BW, "Optimizer", "F0.0.0", "B0.0.0", "W0.0.0"), 8), ["bubbleviz"]),
        (TORCH | {OPTIMIZER: 100}, ["torch-pipelining", "bubbleviz"]),
        (TORCH | {"bubbleviz:iteration 3": 100}, ["torch-pipelining", "bubbleviz"]),
        # A few bubbleviz ranges are among the ranges of a framework.
        (TORCH | {R1: 3, "bubbleviz:F mb=1": 1}, ["torch-pipelining", "bubbleviz"]),
        (TORCH, ["torch-pipelining"]),
        ({OPTIMIZER: 8}, []),
    ],
)
def test_names_written_for_bubbleviz_take_precedence_over_a_frameworks(
    counts: dict[str, int], followed: list[str]
) -> None:
    assert [c.name for c in recognize_conventions(counts)] == followed


def test_ranges_nest_and_close(recorded: Recorder) -> None:
    outer = annotate.phase("F", microbatch=1, chunk=0)
    with annotate.iteration(7), outer, annotate.phase("RECV_F", microbatch=1):
        pass
    with pytest.raises(ZeroDivisionError), annotate.phase("W"):
        _ = 1 / 0

    assert recorded.lines == ["iteration 7", "  F mb=1 chunk=0", "    RECV_F mb=1", "W"]
    assert recorded.open_now == []


def test_a_range_is_also_a_decorator(recorded: Recorder) -> None:
    @annotate.phase("Optimizer")
    def step(times: int) -> int:
        """Step."""
        return step(times - 1) + 1 if times else 0

    @annotate.iteration()
    def train() -> int:
        return step(2)

    assert [train(), train()] == [2, 2]
    assert (step.__name__, step.__doc__) == ("step", "Step.")
    assert recorded.lines == ["iteration 0", "  Optimizer", "iteration 1", "  Optimizer"]


def test_the_outermost_iteration_and_optimizer_count(recorded: Recorder) -> None:
    for _ in range(2):
        outer, inner = annotate.iteration(), annotate.iteration()
        forward = annotate.phase("F")
        with outer, annotate.phase("Optimizer"), inner, annotate.phase("Optimizer"), forward:
            pass
    with annotate.iteration(40):
        pass
    with annotate.iteration():
        pass

    once = ["  Optimizer", "    F"]
    assert recorded.lines == [
        "iteration 0",
        *once,
        "iteration 1",
        *once,
        "iteration 40",
        "iteration 41",
    ]


def test_an_iteration_names_the_rank_of_the_run(
    recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    with annotate.iteration(5):
        pass
    distributed.is_initialized = lambda: False
    with annotate.iteration():
        pass

    assert recorded.lines == ["iteration 5 rank=3", "iteration 6"]
    read = parse_range_names(["bubbleviz:iteration 5 rank=3"], built_in()["bubbleviz"])
    assert (int(read.iteration[0]), int(read.rank[0])) == (5, 3)


class FakeTorch(ModuleType):
    """The parts of PyTorch that annotation needs.

    ``log`` receives the calls of NVTX and the profiler.
    """

    def __init__(self, *, built_for_gpus: bool, has_nvtx: bool = True) -> None:
        super().__init__("torch")
        self.log: list[str] = []
        self.profiling: str | None = None
        log = self.log

        def push(name: str) -> None:
            if not has_nvtx:
                raise RuntimeError("NVTX functions not installed")
            log.append(f"push {name}")

        class Record:
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self) -> None:
                log.append(f"enter {self.name}")

            def __exit__(self, *_: object) -> None:
                log.append(f"exit {self.name}")

        nvtx = SimpleNamespace(range_push=push, range_pop=lambda: log.append("pop"))
        self.cuda = SimpleNamespace(nvtx=nvtx)
        self.version = SimpleNamespace(cuda="13.0" if built_for_gpus else None, hip=None)
        self.profiler = SimpleNamespace(record_function=Record)
        self.autograd = SimpleNamespace(_profiler_enabled=lambda: self.profiling is not None)
        kinds = SimpleNamespace(NVTX="NVTX", KINETO="KINETO")
        self._C = SimpleNamespace(
            _autograd=SimpleNamespace(_profiler_type=lambda: self.profiling),
            _profiler=SimpleNamespace(ActiveProfilerType=kinds),
        )


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTorch]:
    def load(*, built_for_gpus: bool, has_nvtx: bool = True, package: bool = False) -> FakeTorch:
        torch = FakeTorch(built_for_gpus=built_for_gpus, has_nvtx=has_nvtx)
        nvtx = ModuleType("nvtx")
        nvtx.push_range = lambda name: torch.log.append(f"package push {name}")  # type: ignore[attr-defined]  # a fake
        nvtx.pop_range = lambda: torch.log.append("package pop")  # type: ignore[attr-defined]  # a fake
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "nvtx", nvtx if package else None)
        ranges._load_nvtx_package.cache_clear()
        monkeypatch.setattr(ranges, "_recorders", ranges.Recorders())
        return torch

    return load


@pytest.mark.parametrize(
    ("torch", "profiling", "got"),
    [
        ({"built_for_gpus": True}, None, ["push {}", "pop"]),
        ({"built_for_gpus": True}, "KINETO", ["push {}", "enter {}", "exit {}", "pop"]),
        ({"built_for_gpus": True}, "NVTX", ["push {}", "pop"]),
        ({"built_for_gpus": True, "package": True}, None, ["push {}", "pop"]),
        ({"built_for_gpus": False}, None, []),
        ({"built_for_gpus": False}, "KINETO", ["enter {}", "exit {}"]),
        ({"built_for_gpus": False, "package": True}, None, ["package push {}", "package pop"]),
        ({"built_for_gpus": True, "has_nvtx": False}, None, []),
        ({"built_for_gpus": True, "has_nvtx": False}, "KINETO", ["enter {}", "exit {}"]),
    ],
)
def test_every_recorder_gets_the_range(
    loaded: Callable[..., FakeTorch], torch: dict[str, bool], profiling: str | None, got: list[str]
) -> None:
    fake = loaded(**torch)
    fake.profiling = profiling
    names = [f"bubbleviz:F mb={microbatch}" for microbatch in range(2)]
    for microbatch in range(2):
        with annotate.phase("F", microbatch=microbatch):
            pass

    assert fake.log == [line.format(name) for name in names for line in got]


def test_a_profiler_that_starts_or_stops_inside_a_range_gets_all_or_nothing_of_it(
    loaded: Callable[..., FakeTorch],
) -> None:
    torch = loaded(built_for_gpus=False)
    with annotate.phase("F"):
        torch.profiling = "KINETO"
    with annotate.phase("B"):
        torch.profiling = None

    assert torch.log == ["enter bubbleviz:B", "exit bubbleviz:B"]


def test_pytorch_may_be_loaded_after_the_first_range(
    loaded: Callable[..., FakeTorch], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = loaded(built_for_gpus=True)
    with monkeypatch.context() as hidden:
        hidden.delitem(sys.modules, "torch")
        with annotate.phase("F"):
            pass
    with annotate.phase("W"):
        pass

    assert torch.log == ["push bubbleviz:W", "pop"]


class Framework:
    def step(self, number: int, *, extra: int = 0) -> int:
        return number + extra // (number != 13)


def annotated(to: wrapping.Annotations) -> None:
    number = to.get_argument(Framework.step, "number")
    to.wrap(Framework, "step", lambda a, k: annotate.phase("F", microbatch=number(a, k)))


def test_wrapping_is_undone(recorded: Recorder) -> None:
    original = Framework.step
    with wrapping.wrap_once("Framework", annotated) as handle:
        assert wrapping.wrap_once("Framework", annotated) is handle
        assert Framework().step(3, extra=4) == 7
        assert Framework().step(number=5) == 5
    assert Framework().step(4) == 4
    assert Framework.step is original
    assert not handle.active
    assert recorded.lines == ["F mb=3", "F mb=5"]

    with wrapping.wrap_once("Framework", annotated) as second_wrapping:
        assert second_wrapping is not handle
        second_wrapping.remove()
        second_wrapping.remove()
    assert Framework.step is original


def test_functions_that_others_wrapped_since_stay_wrapped(
    recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Framework, "step", Framework.step)
    with wrapping.wrap_once("Framework", annotated):
        ours = Framework.step

        @functools.wraps(ours)
        def theirs(self: Framework, number: int) -> int:
            return ours(self, number) * 10

        monkeypatch.setattr(Framework, "step", theirs)
    assert Framework().step(2) == 20
    assert recorded.lines == []


def test_errors_of_the_framework_pass_unchanged(recorded: Recorder) -> None:
    with wrapping.wrap_once("Framework", annotated), pytest.raises(ZeroDivisionError):
        Framework().step(13)
    with (
        wrapping.wrap_once("Framework", annotated),
        pytest.warns(RuntimeWarning, match="no range could be created"),
    ):
        assert Framework().step(10**9) == 10**9

    assert recorded.open_now == []


def test_training_continues_if_a_call_cannot_be_named(recorded: Recorder) -> None:
    def unable(to: wrapping.Annotations) -> None:
        to.wrap(Framework, "step", lambda args, _: annotate.phase("F", stage=args[0].stage_index))

    with wrapping.wrap_once("Framework", unable):
        with pytest.warns(RuntimeWarning, match=r"Framework.step \(Attr"):
            assert Framework().step(3) == 3
        assert Framework().step(4) == 4  # and it warns no more, because warnings are errors here
    assert recorded.lines == []


def test_a_missing_method_or_parameter_is_reported_and_nothing_stays_wrapped() -> None:
    def lacks_method(to: wrapping.Annotations) -> None:
        annotated(to)
        to.wrap(Framework, "leap", wrapping.make_range_factory(annotate.iteration))

    def lacks_parameter(to: wrapping.Annotations) -> None:
        annotated(to)
        to.get_argument(Framework.step, "microbatch")

    original = Framework.step
    with pytest.raises(
        annotate.AnnotationError, match=r"Framework has no .*Framework\.leap, which"
    ):
        wrapping.wrap_once("Framework", lacks_method)
    with pytest.raises(annotate.AnnotationError, match=r"step has no parameter microbatch, which"):
        wrapping.wrap_once("Framework", lacks_parameter)

    assert Framework.step is original


@pytest.mark.usefixtures("fakes")
def test_megatron_without_optimizer_classes_is_annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setitem(sys.modules, "megatron.core.optimizer.optimizer", None)

    assert annotate.megatron().active


@pytest.mark.usefixtures("fakes")
def test_a_renamed_function_is_reported_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: Any = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    monkeypatch.setattr(sys.modules["megatron.core"], "__version__", "0.99.1", raising=False)
    monkeypatch.delattr(schedules, "backward_step")

    with pytest.raises(annotate.AnnotationError) as error:
        annotate.megatron()

    assert str(error.value) == (
        "annotate: Megatron-Core 0.99.1 has no megatron.core.pipeline_parallel.schedules."
        "backward_step, which its ranges require; install a version from 0.5 to 0.19, or add "
        "ranges yourself with annotate.phase and annotate.iteration"
    )


def _megatron(rank: int = 0, ranks: int = 1, *, tells: bool = True) -> Any:
    annotate.megatron()
    schedules: Any = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    state.rank, state.ranks, schedules.tells = rank, ranks, tells
    return schedules


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("tells", [True, False])
def test_megatron_1f1b_gets_the_right_ranges(recorded: Recorder, tells: bool) -> None:
    schedules = _megatron(rank=1, ranks=3, tells=tells)

    schedules.forward_backward_pipelining_without_interleaving(num_microbatches=2)

    assert recorded.lines == [
        "iteration 0",
        "  RECV_F mb=0 stage=1",
        "  F mb=0 stage=1",
        "  SEND_F mb=0 stage=1",
        "  RECV_F mb=1 stage=1",
        "  F mb=1 stage=1",
        "  SEND_RECV mb=1 stage=1 mb2=0 stage2=1",
        "  BW mb=0 stage=1",
        "  SEND_B mb=0 stage=1",
        "  RECV_B mb=1 stage=1",
        "  BW mb=1 stage=1",
        "  SEND_B mb=1 stage=1",
    ]


@pytest.mark.usefixtures("fakes")
def test_megatron_counts_anew_in_each_batch(recorded: Recorder) -> None:
    schedules = _megatron(tells=False)
    optimizers: Any = importlib.import_module("megatron.core.optimizer")
    optimizer = optimizers.ChainedOptimizer([optimizers.DistributedOptimizer()] * 2)

    for forward_only in (True, False):
        schedules.forward_backward_no_pipelining(2, forward_only=forward_only)
    optimizer.step()

    assert recorded.lines == [
        "iteration 0",
        "  F mb=0 stage=0",
        "  F mb=1 stage=0",
        "iteration 1",
        "  F mb=0 stage=0",
        "  BW mb=0 stage=0",
        "  F mb=1 stage=0",
        "  BW mb=1 stage=0",
        "Optimizer",
    ]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("tells", [True, False])
def test_megatron_interleaved_and_overlapped_steps_get_the_right_ranges(
    recorded: Recorder, tells: bool
) -> None:
    schedules = _megatron(rank=1, ranks=2, tells=tells)

    order = ["F0", "F0", "F1", "B1", "F1B0", "B0", "B1"]
    schedules.forward_backward_pipelining_with_interleaving(
        order, model=[None, None], num_microbatches=2
    )

    first, second = "chunk=0 stage=1", "chunk=1 stage=3"
    assert recorded.lines == [
        "iteration 0",
        f"  RECV_F mb=0 {first}",
        f"  F mb=0 {first}",
        f"  SEND_RECV mb=0 {first} mb2=1 chunk2=0 stage2=1",
        f"  F mb=1 {first}",
        f"  SEND_RECV mb=1 {first} mb2=0 chunk2=1 stage2=3",
        f"  F mb=0 {second}",
        f"  RECV_F mb=1 {second}",
        f"  BW mb=0 {second}",
        f"  FB mb=1 {second} mb2=0 chunk2=0 stage2=1",
        f"    RECV_F mb=1 {second}",
        f"    RECV_B mb=0 {first}",
        f"  BW mb=1 {first}",
        f"  BW mb=1 {second}",
    ]


@pytest.mark.usefixtures("fakes")
def test_megatron_runs_before_its_groups_exist_and_after_removal(recorded: Recorder) -> None:
    schedules = _megatron()
    importlib.import_module("megatron.core.parallel_state").initialized = False  # type: ignore[attr-defined]  # a fake
    schedules.forward_backward_no_pipelining(1)
    annotate.megatron().remove()
    schedules.forward_backward_no_pipelining(1)

    assert recorded.lines == ["iteration 0", "  F mb=0", "  BW mb=0"]


def _instructions(text: str) -> list[Any]:
    """Return the instructions of ``F0 B1 SF0 R``, each with its buffer."""
    schedule: Any = importlib.import_module("deepspeed.runtime.pipe.schedule")
    kinds = {
        "F": schedule.ForwardPass,
        "B": schedule.BackwardPass,
        "SA": schedule.SendActivation,
        "RA": schedule.RecvActivation,
        "SG": schedule.SendGrad,
        "RG": schedule.RecvGrad,
        "T": schedule.ReduceTiedGrads,
        "R": schedule.ReduceGrads,
        "O": schedule.OptimizerStep,
        "C": schedule.CommitP2P,
    }
    steps = []
    for word in text.split():
        name = word.rstrip("0123456789")
        numbers = dict(zip(("buffer_id", "phase"), map(int, word[len(name) :]), strict=False))
        steps.append((kinds[name], numbers))
    return steps


@pytest.mark.usefixtures("fakes")
def test_deepspeed_counts_microbatches_whatever_buffers_they_use(recorded: Recorder) -> None:
    engines: Any = importlib.import_module("deepspeed.runtime.pipe.engine")
    order = "RA0 F0 SA0 RA1 F1 SA1 RG0 B0 SG0 RA0 F0 SA0 RG1 B1 SG1 RG0 B0 SG0 T R O"
    engine = engines.PipelineEngine(1, 3, [_instructions(order), _instructions("F0 F1")])
    table = engines.PipelineEngine._INSTRUCTION_MAP
    with annotate.deepspeed():
        assert engine.train_batch() == 7
        assert engine.eval_batch(None) == 7
    assert engines.PipelineEngine._INSTRUCTION_MAP is table

    def on(*names: str) -> list[str]:
        return [f"  {name} stage=1" for name in names]

    assert recorded.lines == [
        "iteration 0",
        *on("RECV_F mb=0", "F mb=0", "SEND_F mb=0", "RECV_F mb=1", "F mb=1", "SEND_F mb=1"),
        *on("RECV_B mb=0", "BW mb=0", "SEND_B mb=0", "RECV_F mb=2", "F mb=2", "SEND_F mb=2"),
        *on("RECV_B mb=1", "BW mb=1", "SEND_B mb=1", "RECV_B mb=2", "BW mb=2", "SEND_B mb=2"),
        *on("COLLECTIVE", "COLLECTIVE", "Optimizer"),
        "iteration 1",
        *on("F mb=0", "F mb=1"),
    ]


@pytest.mark.usefixtures("fakes")
def test_deepspeed_with_two_stages_per_rank_gets_no_names(recorded: Recorder) -> None:
    engines: Any = importlib.import_module("deepspeed.runtime.pipe.dualpipev")
    with annotate.deepspeed():
        engines.DualPipeVEngine(1, 4, [_instructions("F00 F10 B11 B00")]).train_batch()

    assert recorded.lines == ["iteration 0"]


_OPTIMIZERS = """
import torch
from bubbleviz.annotate import ranges
from bubbleviz.annotate.frameworks import torch_pipelining

class Recorder:
    depth, lines = 0, []
    def open(self, name):
        self.lines.append("  " * self.depth + name.removeprefix("bubbleviz:"))
        self.depth += 1
        return (name,)
    def close(self, opened):
        self.depth -= 1

class Failing(torch.optim.SGD):
    fails = False
    def step(self, closure=None):
        if self.fails:
            raise MemoryError
        return super().step(closure)

def made(kind):
    return kind([torch.nn.Parameter(torch.ones(1))], lr=0.1)

def tried(optimizer):
    try:
        optimizer.step()
    except MemoryError:
        recorder.lines.append("raised")

ranges._recorders = recorder = Recorder()
early = made(Failing)
scheduled = made(torch.optim.AdamW)
torch.optim.lr_scheduler.ConstantLR(scheduled)
with torch_pipelining.annotate():
    early.fails = True
    tried(early)
    assert recorder.depth == 0
    early.fails = False
    early.step()
    scheduled.step()
    class Late(Failing):
        def step(self, closure=None):
            made(Failing).step()
            return super().step(closure)
    late = made(Late)
    torch.optim.lr_scheduler.ConstantLR(late)
    late.fails = True
    tried(late)
    late.fails = False
    late.step()
assert recorder.depth == 0
for optimizer in (scheduled, late, made(torch.optim.SGD)):
    optimizer.step()
print(*recorder.lines, sep="\\n")
"""


@pytest.mark.frameworks
def test_every_optimizer_step_is_a_range_even_after_one_that_raised() -> None:
    raised = ["Optimizer", "raised"]
    assert run_python("-c", _OPTIMIZERS).splitlines() == [
        *raised,
        "Optimizer",
        "Optimizer",
        *raised,
        "Optimizer",
    ]


_STEPS = """
import os
import sys
import torch
from torch import distributed, nn
from torch.multiprocessing import spawn
from bubbleviz import annotate

def train(rank, kind, store, folder):
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    annotations = annotate.torch(model, record=folder) if folder else None
    losses = []
    for _ in range(3):
        for _ in range(2):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        with torch.no_grad():
            losses.append(model(torch.ones(1, 8)).sum().item())
    if annotations:
        annotations.remove()
    model(torch.randn(4, 8)).sum().backward()
    if rank == 1:
        print(losses, flush=True)
    distributed.destroy_process_group()
    # Gloo's threads outlive their group and can abort the interpreter while it shuts down.
    os._exit(0)

if __name__ == "__main__":
    spawn(train, tuple(sys.argv[1:]), nprocs=2)
"""


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_pytorch_steps_are_recorded_and_train_the_same(kind: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(_STEPS)
    plain = run_python(script, kind, tmp_path / "store", "")
    recorded = run_python(script, kind, tmp_path / "another", folder)
    report = bubbleviz.analyze(folder)

    assert recorded == plain != ""
    assert [rank.stage for rank in report.ranks] == [0, 0]
    assert [it.name for it in report.iterations if it.complete] == ["0", "1", "2"]
    names = [name.removeprefix("bubbleviz:") for name in report.operations.names]
    counts = Counter(names[name] for name in report.operations.name_id.tolist())
    assert counts.pop("COLLECTIVE") >= 12
    step = ("F mb=0 stage=0", "BW mb=0 stage=0", "F mb=1 stage=0", "BW mb=1 stage=0", "Optimizer")
    assert counts == dict.fromkeys(step, 6)
    # In each iteration, two microbatches of two ranks wait for each other.
    assert (report.operations.busy_ns < report.operations.end_ns - report.operations.start_ns).any()


def test_a_step_in_a_single_call_is_a_forward_and_its_backward(tmp_path: Path) -> None:
    with annotate.record(tmp_path, rank=0):
        for _ in range(2):
            with annotate.step():
                pass
    report = bubbleviz.analyze(tmp_path)
    assert [iteration.complete for iteration in report.iterations] == [True, True]


def test_generators_and_coroutines_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None:
        pass

    for function in (generator, coroutine):
        with pytest.raises(
            UsageError, match=r"is a generator or a coroutine, which runs after the call"
        ):
            annotate.phase("F")(function)
