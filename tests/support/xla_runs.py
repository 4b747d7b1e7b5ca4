"""Small XLA runs, for tests of instruction costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bubbleviz.analyses.pgle.costs import Costs
from tests.support.nsys_exports import C, K, M, R, write_profile

NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

#: All formats of the names that XLA gives to ranges of instructions.
FORMS = (
    "Thunk:#hlo_op={}#",
    "TSL:Thunk:#hlo_op={}#",
    "Thunk:#hlo_op={},hlo_module=jit_step#",
    "Thunk:#hlo_op={},hlo_module=jit_step,program_id=7#",
    "Thunk:#name=jit(step)/jit(main)/jvp(a)/dot_general,hlo_op={}#",
    "TSL:Thunk:#name=jit(step)/{{}}/dot#1,hlo_op={},unique_hlo_op_id=41#",
    "Thunk:#name=a,hlo_op=b#,hlo_op={},unique_hlo_op_id=41#",
    "Thunk:#name=a,hlo_op=b,hlo_op={}#",
    "Thunk:#hlo_op={},unique_hlo_op_id=41#",
)


@dataclass
class Run:
    """Builder of a JAX run.

    Each call advances the host's clock, and devices run work in order.
    """

    kernels: list[K] = field(default_factory=list)
    calls: list[C] = field(default_factory=list)
    copies: list[M] = field(default_factory=list)
    ranges: list[R] = field(default_factory=list)
    now: int = 0
    free: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def tick(self) -> int:
        self.now += 10
        return self.now

    @contextmanager
    def range(self, name: str, tid: int = 1) -> Iterator[None]:
        row = len(self.ranges)
        self.ranges.append(R(self.tick(), None, name, tid))
        yield
        self.ranges[row] = R(self.ranges[row].start, self.tick(), name, tid)

    def launch(
        self,
        took: int,
        *,
        kernel: str | None = "gemm",
        device: int = 0,
        tid: int = 1,
        stream: int = 7,
        call: str = "cudaLaunchKernel",
    ) -> None:
        """Add a call, and the kernel or copy that it launches.

        The work starts once the call has ended and the stream is free.

        Args:
            took: Duration of the work.
            kernel: Name of the kernel, or None for a copy.
            device: Device of the work.
            tid: Thread of the call.
            stream: Stream of the work.
            call: Name of the call.
        """
        number = len(self.calls) + 1
        self.calls.append(C(self.tick(), self.tick(), number, tid, name=call))
        start = max(self.free[device, stream], self.now)
        self.free[device, stream] = start + took
        if kernel is None:
            self.copies.append(M(start, start + took, number, device=device, stream=stream))
        else:
            self.kernels.append(
                K(start, start + took, number, kernel, device=device, stream=stream)
            )

    @contextmanager
    def module(self, name: str = "jit_step", program: int = 7, tid: int = 1) -> Iterator[None]:
        with self.range(f"XlaModule:#hlo_module={name},program_id={program}#", tid):
            yield

    def thunk(
        self,
        op: str,
        *took: int,
        form: str = FORMS[0],
        kernel: str | None = "gemm",
        device: int = 0,
        tid: int = 1,
        stream: int = 7,
    ) -> None:
        """Add the range of an instruction, and one launch in it for each duration in ``took``."""
        with self.range(form.format(op), tid):
            for duration in took:
                self.launch(duration, kernel=kernel, device=device, tid=tid, stream=stream)

    def written(
        self, folder: Path, name: str = "jax.sqlite", without: tuple[str, ...] = ()
    ) -> Path:
        """Write the run as an nsys export without the given tables, and return its path."""
        return write_profile(
            folder,
            self.kernels,
            self.calls,
            self.ranges,
            copies=self.copies,
            without=without,
            name=name,
        )


def list_costs(costs: Costs) -> dict[str, float]:
    return {instruction.name: instruction.cost_us for instruction in costs.instructions}


def make_steps(count: int, cost: int = 1_000) -> Run:
    """Return a run of ``jit_step``.

    Step k costs ``cost`` + k, and step 0 costs ten times as much.
    """
    run = Run()
    for k in range(count):
        with run.module():
            run.thunk("fusion.1", (cost + k) * (10 if k == 0 else 1))
            run.thunk("all-gather-start.2", 500, 40, kernel=NCCL)
    return run
