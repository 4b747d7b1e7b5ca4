"""Stages: small layers whose F, B and W sleep for given times."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from scripts.proving.jobs import Job

#: Width of a layer, and number of rows in a microbatch.
WIDTH = 4
ROWS = 2


class Worked(NamedTuple):
    """An interval in which a stage worked: it slept and computed its layers.

    Attributes:
        phase: F, B or W.
        stage: Virtual stage.
        microbatch: Zero-based index of the microbatch.
        start_ns: Start on the monotonic clock.
        end_ns: End on the monotonic clock.
    """

    phase: str
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int


class Switch:
    """State of all stages of this process: whether they sleep, and the log of their work.

    Attributes:
        asleep: Whether stages sleep and log their work. Stages are awake while a job is set up.
        worked: Log of this process's work.
        factors: Relative length of each microbatch, or () if all microbatches are equal.
    """

    asleep = False
    factors: tuple[float, ...] = ()
    worked: list[Worked] = []  # noqa: RUF012  # one process is one rank
    #: Arrival time of each output gradient in ns, keyed by (stage, microbatch).
    _came_ns: dict[tuple[int, int], int] = {}  # noqa: RUF012  # likewise

    @classmethod
    def comes(cls, position: tuple[int, int]) -> None:
        """Log the start of a backward."""
        cls._came_ns[position] = time.monotonic_ns()

    @classmethod
    def lasting(cls, seconds: float, position: tuple[int, int]) -> float:
        """Return the time that a microbatch takes in seconds, given the usual time."""
        return seconds * cls.factors[position[1]] if cls.factors else seconds

    @classmethod
    def sleep(cls, phase: str, seconds: float, position: tuple[int, int]) -> None:
        """Sleep during a backward, and log it from the arrival of its gradient onward."""
        if cls.asleep and seconds > 0:
            start_ns = cls._came_ns.pop(position, time.monotonic_ns())
            time.sleep(cls.lasting(seconds, position))
            cls.worked.append(Worked(phase, *position, start_ns, time.monotonic_ns()))


class _Activation(torch.autograd.Function):  # type: ignore[misc]  # PyTorch has no types here
    """Takes T_F in the forward pass, and T_B when the input gradient is computed."""

    @staticmethod
    def forward(
        ctx: Any, rows: Any, forward_s: float, backward_s: float, place: tuple[int, int]
    ) -> Any:
        ctx.backward_s, ctx.place = backward_s, place
        if Switch.asleep:
            time.sleep(Switch.lasting(forward_s, place))
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Switch.sleep("B", ctx.backward_s, ctx.place)
        return gradients[0], None, None, None


class _Weight(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """Takes T_W when the weight gradient is computed, and no time in the forward pass."""

    @staticmethod
    def forward(ctx: Any, weight: Any, weight_s: float, place: tuple[int, int]) -> Any:
        ctx.weight_s, ctx.place = weight_s, place
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Switch.sleep("W", ctx.weight_s, ctx.place)
        return gradients[0], None, None


class _Output(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """Logs the arrival of the output gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Any, place: tuple[int, int]) -> Any:
        ctx.place = place
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Switch.comes(ctx.place)
        return gradients[0], None


class Stage(torch.nn.Module):  # type: ignore[misc]  # likewise
    """A layer whose backward PyTorch runs as B and W, or as one operation if it is not split.

    The first stage also has an embedding, because it would have no B otherwise. PyTorch runs both
    halves of the first stage's backward in its W. The first number of each row is the microbatch,
    which passes through all stages unchanged.
    """

    def __init__(self, stage: int, times_ms: tuple[float, float, float]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1000 + stage)

        def weights() -> Any:
            values = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
            return torch.nn.Parameter(values / 2)

        self.weight = weights()
        self.embedding = weights() if stage == 0 else None
        self._stage = stage
        self._forward_s, self._backward_s, self._weight_s = (ms / 1e3 for ms in times_ms)

    def forward(self, rows: Any) -> Any:
        """Return the output of a microbatch."""
        begun = time.monotonic_ns()
        number = rows[..., :1].detach()
        # When PyTorch infers shapes, the rows do not contain microbatch numbers.
        place = (self._stage, 0 if number.is_meta else int(number.flatten()[0].item()))
        if self.embedding is not None:
            rows = rows @ self.embedding
        rows = _Activation.apply(rows, self._forward_s, self._backward_s, place)
        rows = torch.tanh(rows @ _Weight.apply(self.weight, self._weight_s, place))
        rows = _Output.apply(torch.cat((number, rows[..., 1:]), dim=-1), place)
        if Switch.asleep:
            Switch.worked.append(Worked("F", *place, begun, time.monotonic_ns()))
        return rows


def make_stages(job: Job, rank: int) -> dict[int, Stage]:
    """Return the stages of a rank, keyed by virtual stage."""
    return {
        number: Stage(
            number, (job.forward_ms[number], job.backward_ms[number], job.weight_ms[number])
        )
        for number, owner in enumerate(job.placement)
        if owner == rank
    }


def batch(microbatches: int) -> tuple[Any, Any]:
    """Return the inputs and targets, which are the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    shape = (ROWS * microbatches, WIDTH)
    inputs = torch.randn(shape, generator=draw, dtype=torch.float64)
    inputs[:, 0] = torch.arange(microbatches).repeat_interleave(ROWS)
    return inputs, torch.randn(shape, generator=draw, dtype=torch.float64)


def expected_gradients(stages: int, microbatches: int) -> dict[str, Any]:
    """Return the gradients of the undivided model."""
    models = [Stage(stage, (0.0, 0.0, 0.0)) for stage in range(stages)]
    inputs, target = batch(microbatches)
    for rows, target_rows in zip(
        inputs.chunk(microbatches), target.chunk(microbatches), strict=True
    ):
        for model in models:
            rows = model(rows)  # noqa: PLW2901  # the output of one is the input of the next
        (torch.nn.functional.mse_loss(rows, target_rows) / microbatches).backward()
    return {
        f"{stage}.{name}": weight.grad
        for stage, model in enumerate(models)
        for name, weight in model.named_parameters()
    }
