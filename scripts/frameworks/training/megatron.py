"""Training with Megatron-Core's schedules on simple models that are not part of Megatron-Core.

Megatron-Core requires GPUs. Everything that it would place on a GPU is placed on the CPU instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from megatron.core import (  # type: ignore[import-not-found]  # a framework that only its users have
    parallel_state,
    pipeline_parallel,
    utils,
)
from megatron.core.enums import ModelType  # type: ignore[import-not-found]  # likewise
from megatron.core.transformer import (  # type: ignore[import-not-found]  # likewise
    TransformerConfig,
)
from torch import distributed
from torch.overrides import TorchFunctionMode

from bubbleviz import annotate
from scripts.frameworks.cases import OVERLAP, OWN_RANGES, Case
from scripts.proving.stages import ROWS, WIDTH, Stage, batch, make_stages


class _OnTheCpu(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not there to be checked
    """Creates all tensors on the CPU, even if a GPU is requested."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        options = dict(kwargs or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*args, **options)


class _Chunk(torch.nn.Module):  # type: ignore[misc]  # likewise
    """A stage. Megatron-Core sets the input with ``set_input_tensor`` before the call."""

    def __init__(self, stage: Stage, config: Any, number: int | None) -> None:
        super().__init__()
        self.stage, self.config, self.vp_stage = stage, config, number
        self.model_type = ModelType.encoder_or_decoder
        self.input: Any = None

    def set_input_tensor(self, tensor: Any) -> None:
        """Set the input of the next forward, which is None on the first stage."""
        self.input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, rows: Any) -> Any:
        """Return a copy of the output, because Megatron-Core frees outputs and rejects views."""
        return self.stage(rows if self.input is None else self.input) * 1.0

    def build_schedule_plan(self, rows: Any) -> Any:
        """Return the plan of a forward that overlaps a backward."""
        from scripts.frameworks.training.overlapping import Plan  # since 0.14

        return Plan(self, rows)


class _Nothing:
    """A stand-in for a stream or an event on a machine without GPUs."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _replace_streams() -> None:
    """Replace PyTorch's GPU streams and events with stand-ins that do nothing."""
    torch.cuda.Stream = torch.cuda.Event = _Nothing
    torch.cuda.current_stream = _Nothing
    torch.cuda.stream = lambda _: nullcontext()


def _record_own_ranges() -> None:
    """Make Megatron-Core open its NVTX ranges as ranges of PyTorch's profiler, without a GPU."""
    opened: list[Any] = []

    def push(name: str) -> None:
        opened.append(torch.profiler.record_function(name))
        opened[-1].__enter__()

    torch.cuda.nvtx.range_push = push
    torch.cuda.nvtx.range_pop = lambda: opened.pop().__exit__(None, None, None)
    utils.configure_nvtx_profiling(True)


class Training:
    """One rank."""

    roots = ("megatron.core",)

    def __init__(self, case: Case, rank: int, _folder: Path) -> None:
        _OnTheCpu().__enter__()
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.synchronize = lambda *_: None
        distributed.init_process_group("gloo")
        self._case, job = case, case.job
        virtual = case.chunks if case.chunks > 1 else None
        sizes = {"virtual_pipeline_model_parallel_size": virtual}
        parallel_state.initialize_model_parallel(1, job.ranks, **sizes)
        config = TransformerConfig(
            num_layers=len(job.placement),
            hidden_size=WIDTH,
            num_attention_heads=1,
            pipeline_model_parallel_size=job.ranks,
            pipeline_dtype=torch.float64,
            **sizes,
            **{name: value for name, value in case.options if name not in {OVERLAP, OWN_RANGES}},
        )
        if OWN_RANGES in dict(case.options):
            _record_own_ranges()
        if OVERLAP in dict(case.options):
            # The configuration requests experts, but the stages here do not have any.
            setattr(config, OVERLAP, True)
            _replace_streams()
        self.stages = list(make_stages(job, rank).values())
        self._models = [
            _Chunk(stage, config, None if virtual is None else number)
            for number, stage in enumerate(self.stages)
        ]
        self._inputs, self._target = (
            rows.chunk(job.microbatches) for rows in batch(job.microbatches)
        )
        weights = [weight for model in self.stages for weight in model.parameters()]
        self._optimizer = torch.optim.SGD(weights, lr=0.01)

    def iterate(self) -> list[float]:
        """Train one batch."""
        # A training loop requests the schedule function after annotation, so this does the same.
        schedule = pipeline_parallel.get_forward_backward_func()
        count = self._case.job.microbatches
        virtual = self._case.chunks > 1
        data = [iter(self._inputs) for _ in self._models]
        results = schedule(
            forward_step_func=self._forward,
            data_iterator=data if virtual else data[0],
            model=self._models if virtual else self._models[0],
            num_microbatches=count,
            seq_length=ROWS,
            micro_batch_size=1,
            decoder_seq_length=ROWS,
            forward_only=self._case.forward_only,
        )
        if not self._case.forward_only:
            with annotate.phase("Optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()
        return [float(result["loss"]) for result in results]

    def _forward(
        self, data: Any, model: Any, *_: object, return_schedule_plan: bool = False
    ) -> tuple[Any, Callable[[Any], Any]]:
        rows = next(data)
        target = self._target[int(rows[0, 0])]

        def loss(output: Any) -> tuple[Any, dict[str, Any]]:
            value = torch.nn.functional.mse_loss(output[:, 0], target)
            return value, {"loss": value.detach()}

        run = model.build_schedule_plan if return_schedule_plan else model
        return run(rows[:, None]), loss
