"""Stages that sleep: a small layer whose F, B and W take given times and no processor."""

from __future__ import annotations

import time
from typing import Any

import torch

_WIDTH = 4
_ROWS = 2


class Switch:
    """Whether stages sleep; they do not while a job is set up."""

    asleep = False


def _sleep(seconds: float) -> None:
    if Switch.asleep and seconds > 0:
        time.sleep(seconds)


class _Activation(torch.autograd.Function):  # type: ignore[misc]  # PyTorch has no types here
    """Takes T_F forwards, and T_B where the gradient of the input is computed."""

    @staticmethod
    def forward(ctx: Any, rows: Any, forward_s: float, backward_s: float) -> Any:
        ctx.backward_s = backward_s
        _sleep(forward_s)
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _sleep(ctx.backward_s)
        return gradients[0], None, None


class _Weight(torch.autograd.Function):  # type: ignore[misc]  # likewise
    """Takes T_W where the gradient of the weight is computed, and nothing forwards."""

    @staticmethod
    def forward(ctx: Any, weight: Any, weight_s: float) -> Any:
        ctx.weight_s = weight_s
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _sleep(ctx.weight_s)
        return gradients[0], None


class Stage(torch.nn.Module):  # type: ignore[misc]  # likewise
    """A layer; PyTorch runs its B and W apart, or both where the schedule does not split them.

    The first stage has an embedding below it, so that it has a B at all. PyTorch runs both halves
    of that stage's backward in its W.
    """

    def __init__(self, stage: int, times_ms: tuple[float, float, float]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1000 + stage)

        def weights() -> Any:
            drawn = torch.randn(_WIDTH, _WIDTH, generator=draw, dtype=torch.float64)
            return torch.nn.Parameter(drawn / 2)

        self.weight = weights()
        self.embedding = weights() if stage == 0 else None
        self._forward_s, self._backward_s, self._weight_s = (ms / 1e3 for ms in times_ms)

    def forward(self, rows: Any) -> Any:
        """Return the output of a microbatch."""
        if self.embedding is not None:
            rows = rows @ self.embedding
        rows = _Activation.apply(rows, self._forward_s, self._backward_s)
        return torch.tanh(rows @ _Weight.apply(self.weight, self._weight_s))


def batch(microbatches: int) -> tuple[Any, Any]:
    """Return inputs and targets, the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    shape = (_ROWS * microbatches, _WIDTH)
    inputs = torch.randn(shape, generator=draw, dtype=torch.float64)
    return inputs, torch.randn(shape, generator=draw, dtype=torch.float64)


def expected_gradients(stages: int, microbatches: int) -> dict[str, Any]:
    """Return the gradients of the model in one piece."""
    models = [Stage(stage, (0.0, 0.0, 0.0)) for stage in range(stages)]
    inputs, target = batch(microbatches)
    for rows, wanted in zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True):
        for model in models:
            rows = model(rows)  # noqa: PLW2901  # the output of one is the input of the next
        (torch.nn.functional.mse_loss(rows, wanted) / microbatches).backward()
    return {
        f"{stage}.{name}": weight.grad
        for stage, model in enumerate(models)
        for name, weight in model.named_parameters()
    }
