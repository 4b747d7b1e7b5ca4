"""Training with DeepSpeed's pipeline engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-not-found]  # a framework that only its users have
import torch
from deepspeed.pipe import (  # type: ignore[import-not-found]  # likewise
    LayerSpec,
    PipelineModule,
)

from scripts.frameworks.cases import Case
from scripts.proving.stages import ROWS, Stage, batch


class Training:
    """One rank of a training job with DeepSpeed."""

    roots = ("deepspeed.pipe", "deepspeed.runtime.pipe")

    def __init__(self, case: Case, _rank: int, _folder: Path) -> None:
        # DeepSpeed would compile reductions, which a pipeline with one replica does not need.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        self._case, job = case, case.job
        times = zip(job.forward_ms, job.backward_ms, job.weight_ms, strict=True)
        model = PipelineModule(
            [LayerSpec(Stage, stage, of) for stage, of in enumerate(times)],
            num_stages=job.ranks,
            loss_fn=torch.nn.functional.mse_loss,
            partition_method="uniform",
        ).float()
        self.stages = [layer for layer in model.forward_funcs if isinstance(layer, Stage)]
        self._engine = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            config={
                "train_batch_size": ROWS * job.microbatches,
                "train_micro_batch_size_per_gpu": ROWS,
                "gradient_accumulation_steps": job.microbatches,
                "steps_per_print": 1_000_000,
            },
        )[0]
        self._data = self._batches()

    def iterate(self) -> list[float]:
        """Train one batch."""
        if self._case.forward_only:
            return [float(self._engine.eval_batch(self._data))]
        return [float(self._engine.train_batch(self._data))]

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        # DeepSpeed cannot reduce gradients in double precision.
        inputs, target = (rows.float() for rows in batch(self._case.job.microbatches))
        count = self._case.job.microbatches
        while True:
            yield from zip(inputs.chunk(count), target.chunk(count), strict=True)
