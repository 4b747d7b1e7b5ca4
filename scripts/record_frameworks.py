"""Train a small pipeline with DeepSpeed or Megatron-Core on the CPU, and record its ranges.

    python scripts/record_frameworks.py deepspeed DIR
    python scripts/record_frameworks.py megatron DIR --chunks 2
    bubbleviz analyze DIR/rank*.json

Needs PyTorch and the framework. Each rank is a process, talks through gloo, and writes the trace
of PyTorch's profiler. Megatron-Core wants GPUs; what it would put there is put on the CPU instead.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))
from bubbleviz import annotate

_WIDTH, _ROWS, _SEQUENCE = 128, 2, 4


@dataclass(frozen=True)
class Job:
    """What is trained."""

    framework: str
    folder: Path
    ranks: int
    microbatches: int
    chunks: int
    iterations: int
    port: int


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework", choices=("deepspeed", "megatron"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=1, help="of each rank (megatron)")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--port", type=int, default=29531)
    job = Job(**vars(parser.parse_args()))
    job.folder.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(run, args=(job,), nprocs=job.ranks)


def run(rank: int, job: Job) -> None:
    """Be one rank."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(job.port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job.ranks),
        DS_ACCELERATOR="cpu",
    )
    torch.set_num_threads(1)
    prepare = {"deepspeed": _deepspeed, "megatron": _megatron}[job.framework]
    iterate = prepare(job)
    iterate()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(job.iterations):
            iterate()
    recorded.export_chrome_trace(str(job.folder / f"rank{rank}.json"))
    distributed.barrier()


def _model() -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3)))


def _deepspeed(job: Job) -> Callable[[], object]:
    """Return what trains one batch with DeepSpeed's pipeline engine."""
    import deepspeed  # type: ignore[import-not-found]  # a framework that only its users have
    from deepspeed.pipe import PipelineModule  # type: ignore[import-not-found]  # likewise

    annotate.deepspeed()
    deepspeed.init_distributed("gloo")
    model = PipelineModule(
        [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3 * job.ranks)],
        num_stages=job.ranks,
        loss_fn=torch.nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        config={
            "train_batch_size": _ROWS * job.microbatches,
            "train_micro_batch_size_per_gpu": _ROWS,
            "gradient_accumulation_steps": job.microbatches,
        },
    )[0]

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            yield torch.randn(_ROWS, _WIDTH), torch.randn(_ROWS, _WIDTH)

    data = batches()
    return lambda: engine.train_batch(data)


class _OnTheCpu(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not there to be checked
    """Puts on the CPU what is made for a GPU."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*args, **options)


def _megatron(job: Job) -> Callable[[], object]:
    """Return what trains one batch with Megatron-Core's schedules."""
    from megatron.core import (  # type: ignore[import-not-found]  # a framework that only its users have
        ModelParallelConfig,
        parallel_state,
    )
    from megatron.core.enums import ModelType  # type: ignore[import-not-found]  # likewise
    from megatron.core.pipeline_parallel import (  # type: ignore[import-not-found]  # likewise
        get_forward_backward_func,
    )

    annotate.megatron()
    _OnTheCpu().__enter__()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    distributed.init_process_group("gloo")
    virtual = job.chunks if job.chunks > 1 else None
    sizes = {"virtual_pipeline_model_parallel_size": virtual}
    parallel_state.initialize_model_parallel(1, job.ranks, **sizes)
    config = ModelParallelConfig(
        pipeline_model_parallel_size=job.ranks, pipeline_dtype=torch.float32, **sizes
    )
    # What the schedules ask of the configuration of a transformer.
    config.hidden_size = _WIDTH
    config.fine_grained_activation_offloading = False
    config.cuda_graph_impl, config.cuda_graph_scope = "none", ""
    models = [_Chunk(None if virtual is None else chunk) for chunk in range(job.chunks)]
    for model in models:
        model.config, model.model_type = config, ModelType.encoder_or_decoder
    optimizer = torch.optim.SGD((w for model in models for w in model.parameters()), lr=0.01)
    schedule = get_forward_backward_func()

    def forward(_data: object, model: Any, *_: object) -> tuple[Any, Callable[[Any], Any]]:
        return model(torch.randn(_SEQUENCE, _ROWS, _WIDTH)), _loss

    def iterate() -> None:
        schedule(
            forward_step_func=forward,
            data_iterator=[iter(())] * job.chunks if virtual else iter(()),
            model=models if virtual else models[0],
            num_microbatches=job.microbatches,
            seq_length=_SEQUENCE,
            micro_batch_size=_ROWS,
            forward_only=False,
        )
        with annotate.phase("Optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return iterate


def _loss(output: Any) -> tuple[Any, dict[str, Any]]:
    loss = output.pow(2).mean()
    return loss, {"loss": loss.detach()}


class _Chunk(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not there to be checked
    """A part of the model; Megatron-Core hands it its input beside the call."""

    def __init__(self, number: int | None) -> None:
        super().__init__()
        self.vp_stage = number
        self.layers = _model()
        self.input: Any = None

    def set_input_tensor(self, tensor: Any) -> None:
        self.input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, batch: Any) -> Any:
        # A copy, for Megatron-Core frees outputs once they are sent, and no views.
        return self.layers(batch if self.input is None else self.input) * 1.0


if __name__ == "__main__":
    main()
