"""Strategies for small adversarial profiles, with ties, overlaps and missing data.

``soups()`` draws rows without any order: ranges overlap freely, calls are anywhere, and kernels may
run before their launch. ``schedules()`` draws runs that resemble training (iterations of F, B, W
and Optimizer on several processes) to test iterations, pairing and windows. These runs are then
damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.support.nsys_exports import PUSH_POP, START_END, C, K, M, R, T, write_profile

if TYPE_CHECKING:
    from pathlib import Path

COMPUTE_KERNELS = ("gemm", "elementwise", "flash_bwd", "Kernel", "my_nccl_like_kernel")
COMMUNICATION_KERNELS = (
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "NCCLKernel_AllGather",
    "void deep_ep::internode::dispatch()",
    "nvshmem_barrier",
)
#: Names of threads. Only launches on the first thread may belong to ranges of other threads.
THREAD_NAMES = ("pt_autograd_0", "python", "pt_data_worker", "pt_nccl_watchdg", "profiler")


@dataclass(frozen=True)
class Rows:
    """Rows of a profile before it is written."""

    kernels: tuple[K, ...] = ()
    calls: tuple[C, ...] = ()
    ranges: tuple[R, ...] = ()
    copies: tuple[M, ...] = ()
    fills: tuple[M, ...] = ()
    threads: tuple[T, ...] = ()

    def write(self, folder: Path, name: str = "profile.sqlite") -> Path:
        """Write the rows as an nsys export, and return its path."""
        return write_profile(
            folder,
            self.kernels,
            self.calls,
            self.ranges,
            copies=self.copies,
            fills=self.fills,
            threads=self.threads,
            name=name,
        )


def _draw_small(high: int) -> st.SearchStrategy[int]:
    return st.integers(0, high)


def draw_operation_names() -> st.SearchStrategy[str]:
    """Draw names of operations from a small set, so that parts and repetitions are common."""
    coordinates = st.tuples(_draw_small(2), _draw_small(1), st.sampled_from((0, 0, 0, 1)))
    work = st.builds(
        lambda letter, at: f"{letter}{at[0]}.{at[1]}.{at[2]}",
        st.sampled_from("FFFBBBWWR"),
        coordinates,
    )
    communication = st.builds(
        lambda way, pass_, at: f"{way}_{pass_}" + (f".{at[0]}.{at[1]}.{at[2]}" if at else ""),
        st.sampled_from(("SEND", "RECV")),
        st.sampled_from(("FORWARD", "BACKWARD", "POST_VALIDATION")),
        st.none() | coordinates,
    )
    joined_names = ("SEND_FORWARD.1.0.0_RECV_BACKWARD.0.0.0", "SEND_FORWARD_SEND_BACKWARD.0.0.0")
    single_names = ("Optimizer", "POST_VALIDATION", "post_validation_phase", "W_clear.0.0")
    more_names = st.sampled_from((*single_names, *joined_names))
    return st.one_of(work, work, work, communication, more_names)


def draw_other_names() -> st.SearchStrategy[str | None]:
    """Draw names that are not operation names, although some of them look similar."""
    words = "aten::mm F B pre_step F0.0 xF0.0.0 f0.0.0 B-1.0.0 SEND_FORWARD_RECV_BACKWARD iter_0"
    odd = ("F0.0.0 ", "F0.0.0\n", "F\N{ARABIC-INDIC DIGIT ZERO}.0.0", "", None)
    return st.sampled_from((*words.split(), *odd))


def marks() -> st.SearchStrategy[str]:
    return st.builds(lambda rank, n: f"iter_{rank}_{n}", _draw_small(1), _draw_small(3))


@st.composite
def soups(draw: st.DrawFn, *, horizon: int = 24) -> Rows:
    """Draw rows in the most arbitrary order that can occur in an export.

    Half of the calls start at an edge of a range. A kernel may have no call, or share its call with
    other kernels.
    """
    device_and_stream = st.tuples(
        st.integers(1, draw(st.integers(1, 2))), st.integers(1, draw(st.integers(1, 3)))
    )
    device = st.integers(0, draw(st.integers(0, 1)))
    ranges = draw(_draw_ranges(device_and_stream, horizon, draw(st.booleans())))
    calls = draw(
        st.lists(
            st.builds(
                lambda start, long, key, device_and_stream: C(
                    start, start + long, key, device_and_stream[1], device_and_stream[0]
                ),
                _draw_small(horizon),
                st.sampled_from((0, 0, 1, 1, 2, 4)),
                st.integers(0, 9),
                device_and_stream,
            ),
            min_size=draw(st.sampled_from((0, 1, 4, 8))),
            max_size=14,
        )
    )
    # Half of the calls start exactly at the edge of a range, which creates ties.
    edges = [(r.start, r.end) for r in ranges if r.end is not None] or [(0, 0)]
    for index in range(0, len(calls), 2):
        first, last = draw(st.sampled_from(edges))
        bounds = draw(st.sampled_from(((first, first), (last, last), (first, last), (first, 99))))
        start, end = bounds[0], max(bounds)
        calls[index] = replace(calls[index], start=start, end=end)
    kernels = [
        K(start, start + long, c.correlation, name, c.pid, where)
        for c in calls
        for start, long, name, where in draw(
            st.lists(
                st.tuples(
                    _draw_small(horizon),
                    st.sampled_from((0, 0, 1, 2, 3, 5, 8, horizon)),
                    st.sampled_from((*COMPUTE_KERNELS * 2, *COMMUNICATION_KERNELS)),
                    device,
                ),
                max_size=2,
            )
        )
    ]
    stray = st.sampled_from((None, 0, 1, 99))
    copied = st.one_of(stray, *([st.sampled_from([c.correlation for c in calls])] if calls else []))
    kernels += [
        replace(k, correlation=draw(stray), pid=draw(device_and_stream)[0])
        for k in draw(st.lists(st.sampled_from(kernels), max_size=2) if kernels else st.just([]))
    ]
    copies = st.builds(
        lambda start, long, key, device_and_stream, where: M(
            start, start + long, key, device_and_stream[0], where
        ),
        _draw_small(horizon),
        _draw_small(4),
        copied,
        device_and_stream,
        device,
    )
    return Rows(
        tuple(draw(st.permutations(kernels))),
        tuple(calls),
        tuple(ranges),
        tuple(draw(st.lists(copies, max_size=3))),
        tuple(draw(st.lists(copies, max_size=2))),
        tuple(
            draw(
                st.lists(
                    st.builds(
                        lambda device_and_stream, name: T(
                            device_and_stream[1], name, device_and_stream[0]
                        ),
                        device_and_stream,
                        _draw_thread_names(),
                    ),
                    max_size=3,
                )
            )
        ),
    )


def _draw_thread_names() -> st.SearchStrategy[str]:
    return st.sampled_from(THREAD_NAMES)


@st.composite
def _draw_ranges(
    draw: st.DrawFn, thread: st.SearchStrategy[tuple[int, int]], horizon: int, with_marks: bool
) -> list[R]:
    """Draw ranges of all kinds: nested, overlapping or duplicated, in any order."""
    names: st.SearchStrategy[str | None] = st.one_of(
        *[draw_operation_names()] * 8, draw_other_names(), *([marks()] * 2 if with_marks else [])
    )
    ranges = draw(
        st.lists(
            st.builds(
                lambda start, long, name, thread, kind, end_tid, registered: R(
                    start,
                    None if long < 0 else start + long,
                    name,
                    thread[1],
                    thread[0],
                    kind,
                    end_tid,
                    registered,
                ),
                _draw_small(horizon),
                st.sampled_from((-1, 0, 1, 2, 4, 8, 8, 12, horizon, horizon)),
                names,
                thread,
                st.sampled_from((PUSH_POP, PUSH_POP, PUSH_POP, START_END, START_END, 70, 71)),
                st.none() | st.integers(1, 3),
                st.booleans(),
            ),
            min_size=draw(st.sampled_from((0, 1, 4, 8))),
            max_size=14,
        )
    )
    if ranges:
        ranges += draw(st.lists(st.sampled_from(ranges), max_size=2))
    return draw(st.permutations(ranges))


@dataclass
class _Process:
    """Rows and clocks of one process of a schedule."""

    pid: int
    device: int
    kernels: list[K] = field(default_factory=list)
    calls: list[C] = field(default_factory=list)
    ranges: list[R] = field(default_factory=list)
    copies: list[M] = field(default_factory=list)
    host: int = 0
    gpu: int = 0
    key: int = 0

    def launch(self, draw: st.DrawFn, name: str, tid: int) -> None:
        """Launch a kernel or copy from a random thread after a short delay."""
        start = self.host = self.host + draw(_draw_small(1))
        self.host += draw(_draw_small(1))
        self.key += draw(st.sampled_from((1, 1, 1, 1, 0)))
        self.calls.append(C(start, self.host, self.key, tid, self.pid))
        self.gpu += draw(st.sampled_from((0, 0, 0, 1, 3)))
        end = self.gpu + draw(st.sampled_from((0, 1, 2, 5)))
        if name == "copy":
            self.copies.append(M(self.gpu, end, self.key, self.pid, self.device))
        else:
            self.kernels.append(K(self.gpu, end, self.key, name, self.pid, self.device))
        # A kernel may overlap the next one on another stream.
        self.gpu = draw(st.sampled_from((end, end, end, self.gpu)))

    def operation(self, draw: st.DrawFn, name: str, nested: str | None = None) -> None:
        """Open a range, launch work and close the range.

        A backward may launch on another thread.
        """
        start = self.host = self.host + draw(_draw_small(1))
        backward = name[0] in "BW" and draw(st.booleans())
        index = len(self.ranges)
        for _ in range(draw(st.sampled_from((0, 1, 1, 2, 3)))):
            kernel = draw(
                st.sampled_from((*COMPUTE_KERNELS[:2] * 4, *COMMUNICATION_KERNELS[:3], "copy"))
            )
            self.launch(draw, kernel, 2 if backward else 1)
        if nested is not None and draw(st.booleans()):
            self.operation(draw, nested)
            self.launch(draw, "gemm", 2 if backward else 1)
        self.host += draw(_draw_small(1))
        self.ranges.insert(index, R(start, self.host, name, 1, self.pid))


def _draw_iteration_names(draw: st.DrawFn, style: str, microbatches: int) -> list[str]:
    """Draw the names of one iteration in order: warm-up, then alternating F and B."""
    warmup = draw(st.integers(1, microbatches))
    forward = list(range(microbatches))
    backward = list(range(microbatches))
    order: list[str] = []
    chunk = draw(st.sampled_from((0, 0, 0, 1)))
    while backward:
        if forward and (len(backward) - len(forward) < warmup):
            order.append(f"F{forward.pop(0)}.{chunk}.0")
            continue
        done = backward.pop(0)
        order.append(f"B{done}.{chunk}.0")
        if style == "split":
            order.append(f"W{done}.{chunk}.0")
        if style == "recompute":
            order.insert(-1, f"R{done}.{chunk}.0")
    if style == "clear":
        order.append(f"W_clear.{chunk}.0")
    if style == "constant":
        order = [f"{name[0]}0.0.0" for name in order]
    if style == "evaluation":
        order = [name for name in order if name[0] == "F"]
    if style == "parts":
        order = [name for name in order for _ in range(draw(st.sampled_from((1, 1, 2))))]
    return order


STYLES = ("split", "split", "fused", "constant", "clear", "recompute", "evaluation", "parts")


@st.composite
def schedules(draw: st.DrawFn) -> Rows:
    """Draw a damaged training run on one to three processes; see :func:`_damage`."""
    style = draw(st.sampled_from(STYLES))
    iterations = draw(st.integers(1, 3))
    microbatches = draw(st.integers(1, 3))
    with_marks = draw(st.sampled_from((False, False, True)))
    with_step = draw(st.sampled_from((True, True, True, False)))
    validates = draw(st.sampled_from((False, False, True)))
    processes = [
        _Process(pid, draw(st.sampled_from((0, 0, 1))))
        for pid in range(1, draw(st.integers(1, 3)) + 1)
    ]
    for process in processes:
        process.gpu = draw(_draw_small(3))
        for number in range(iterations):
            count = draw(st.sampled_from((microbatches,) * 9 + (microbatches + 1,)))
            begin_ns = process.host
            mark = len(process.ranges)
            for index, name in enumerate(_draw_iteration_names(draw, style, count)):
                if index == 1 and validates and number:
                    process.operation(draw, "POST_VALIDATION")
                receive = "RECV_" + ("FORWARD" if name[0] == "F" else "BACKWARD") + name[1:]
                is_work = name[0] in "FB"
                process.operation(draw, name, receive if is_work and "." in receive else None)
            if with_step:
                process.operation(draw, "Optimizer")
            if with_marks:
                end = process.host - draw(_draw_small(1))
                process.ranges.insert(
                    mark,
                    R(begin_ns, max(begin_ns, end), f"iter_{process.pid}_{number}", 1, process.pid),
                )
            process.gpu = max(process.gpu, 0) + draw(_draw_small(2))
    rows = Rows(
        tuple(k for p in processes for k in p.kernels),
        tuple(c for p in processes for c in p.calls),
        tuple(r for p in processes for r in p.ranges),
        tuple(m for p in processes for m in p.copies),
        threads=tuple(T(2, "pt_autograd_0", p.pid) for p in processes),
    )
    return _damage(draw, rows)


def _damage(draw: st.DrawFn, rows: Rows) -> Rows:
    """Lose or duplicate rows, cut off the beginning or the end, shuffle, or change nothing."""
    damage = draw(st.sampled_from(("none", "none", "lose", "double", "begin", "end", "shuffle")))
    kernels, calls, ranges = list(rows.kernels), list(rows.calls), list(rows.ranges)
    if damage == "lose" and calls and ranges:
        calls.pop(draw(_draw_small(len(calls) - 1)))
        ranges.pop(draw(_draw_small(len(ranges) - 1)))
    if damage == "double" and calls and kernels:
        call = calls[draw(_draw_small(len(calls) - 1))]
        shift = draw(st.integers(-1, 1))
        begin_ns = max(0, call.start + shift)
        calls.append(replace(call, start=begin_ns, end=begin_ns + call.end - call.start))
        kernels.append(kernels[draw(_draw_small(len(kernels) - 1))])
    if damage == "begin":
        offset = draw(_draw_small(12))
        kernels = [k for k in kernels if k.start >= offset]
        calls = [c for c in calls if c.start >= offset]
        ranges = [r for r in ranges if r.start >= offset]
    if damage == "end":
        offset = draw(st.integers(4, 40))
        calls = [c for c in calls if c.end <= offset]
        ranges = [
            replace(r, end=None) if r.end is not None and r.end > offset else r
            for r in ranges
            if r.start <= offset
        ]
    if damage == "shuffle":
        kernels = draw(st.permutations(kernels))
        calls = draw(st.permutations(calls))
        ranges = draw(st.permutations(ranges))
    return replace(rows, kernels=tuple(kernels), calls=tuple(calls), ranges=tuple(ranges))
