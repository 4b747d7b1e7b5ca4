"""Small XLA profiles, and paths of real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bubbleviz import errors
from bubbleviz.model.profile import Profile, Ranges
from bubbleviz.report.report import Report
from bubbleviz.sources.readers import find_reader
from tests.support.xla_files import E, L, P, make_space

FORWARD, BACKWARD = (
    "jit(step)/jvp(layer)/dot_general",
    "jit(step)/transpose(jvp(layer))/dot_general",
)
STAGES, MICROBATCHES, STEPS = 4, 6, 3
T_F, T_B, T_SEND = 10_000, 20_000, 1_000


def make_op(name: str, start: float, end: float, **stats: int | str) -> E:
    return E(name, start, end, stats)


def run_gpipe(stage: int, begin_ns: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield (name, path, start, end) for each instruction that a stage runs in a step of GPipe.

    A stage waits for its input in a collective-permute, which ends when the next operation starts.
    """
    unit_f, unit_b = T_F, T_B
    turn = begin_ns + (STAGES + MICROBATCHES - 1) * unit_f
    work = [
        ("fusion.1", FORWARD, begin_ns + (stage + i) * unit_f, unit_f) for i in range(MICROBATCHES)
    ]
    work += [
        ("fusion.2", BACKWARD, turn + (STAGES - 1 - stage + i) * unit_b, unit_b)
        for i in range(MICROBATCHES)
    ]
    last = begin_ns
    for number, (name, path, start, length) in enumerate(work):
        yield f"collective-permute.{number}", "", last, max(start, last)
        end = start + length - T_SEND
        yield name, path, start, (start + end) // 2
        yield name.replace("fusion", "dot"), path, (start + end) // 2, end
        last = end


LENGTH = (STAGES + MICROBATCHES - 1) * (T_F + T_B)


def make_tpu(stages: int = STAGES) -> list[P]:
    """Return a run of GPipe on TPUs, one plane per stage.

    Each plane has lines of steps, modules and instructions, and a derived line that repeats the
    events of the instructions.
    """
    planes = []
    for stage in range(stages):
        rows = [row for step in range(STEPS) for row in run_gpipe(stage, 5000 + step * 2 * LENGTH)]
        ops = [E(name, start, end) for name, _, start, end in rows]
        modules = [
            make_op("jit_step(7)", 5000 + k * 2 * LENGTH, 5000 + k * 2 * LENGTH + LENGTH, run_id=k)
            for k in range(STEPS)
        ]
        steps = [E(str(k + 4), m.start, m.end) for k, m in enumerate(modules)]
        paths = {name: {"tf_op": f"{path}:"} for name, path, _, _ in rows if path}
        lines = [
            L("Steps", steps, 1),
            L("XLA Modules", modules, 2),
            L("XLA Ops", ops, 3),
            L("Framework Ops", ops, 4),
        ]
        planes.append(P(f"/device:TPU:{stage}", lines, {"device_type_string": "TPU v5"}, paths))
    return planes


def make_gpu() -> list[P]:
    """Return the same run on GPUs. A separate thread per GPU launches its work in order."""
    planes, threads = [], []
    correlation = 0
    for stage in range(STAGES):
        kernels, calls = [], []
        for k in range(STEPS):
            for number, (name, path, start, end) in enumerate(
                run_gpipe(stage, 5000 + k * 2 * LENGTH)
            ):
                correlation += 1
                facts: Mapping[str, int | str] = {
                    "correlation_id": correlation,
                    "hlo_op": name,
                    "hlo_module": "jit_step",
                    "program_id": 7,
                    **({"name": path, "tf_op": "XlaModule:"} if path else {}),
                }
                sends = name.startswith("collective")
                kernel = "ncclDevKernel_SendRecv(x)" if sends else f"{name}_kernel"
                kernels.append(E(kernel, start, end, facts))
                launch_ns = 10 + k * 2 * LENGTH + number * 10
                calls.append(
                    make_op("cuLaunchKernel", launch_ns, launch_ns + 5, correlation_id=correlation)
                )
        lines = [L("Stream #7(Kernel)", kernels, 7), L("XLA Ops", kernels, 8)]
        planes.append(P(f"/device:GPU:{stage}", lines))
        threads.append(L(f"launcher {stage}", calls, 100 + stage))
    return [*planes, P("/host:CPU", threads, {"process_id": 4321})]


def write_planes(folder: Path, planes: list[P], name: str = "host0.xplane.pb", **how: Any) -> Path:
    path = folder / name
    path.write_bytes(make_space(planes, ["host0"], **how))
    return path


def read_profile_of(path: Path, globs: tuple[str, ...] = ("*",)) -> Profile:
    with find_reader(str(path)).open_file(str(path), 1, lambda _: None) as file:
        return file.read(globs)


def read_or_refused(path: Path) -> Profile | None:
    """Return a profile, or None if it is rejected with one sentence that names the file."""
    try:
        return read_profile_of(path)
    except errors.BubblevizError as error:
        sentence = str(error)
    assert str(path) in sentence
    assert "\n" not in sentence
    return None


def count_names(ranges: Ranges) -> Counter[str]:
    return Counter(ranges.names[number] for number in ranges.name_id.tolist())


def list_ratios(report: Report) -> list[float | None]:
    return [iteration.ratios["schedule"].value for iteration in report.iterations]
