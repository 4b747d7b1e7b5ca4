"""Layers: what each part of a model takes, in the model's order, and how they are cut up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from itertools import groupby, pairwise

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Floats, Ints, Table
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import looped_placement
from bubbleviz.schedules.workload import Workload

#: No model has more; bounds take memory by the square of their number, for each virtual stage.
MOST_LAYERS = 1_000


class LayerKind(Enum):
    """What a layer is to the frameworks that are told of a layout."""

    EMBEDDING = "embedding"
    TRANSFORMER = "layer"
    MTP = "mtp"
    HEAD = "head"


@frozen
class Layers(Table):
    """The layers of a model, in its order; times are of one microbatch.

    Attributes:
        forward_ns: T_F.
        backward_ns: T_B, the backward for the input alone.
        weight_ns: T_W, the backward for the weights.
        fused_ns: the whole backward in one operation.
        down_ns: from its end to the arrival of its output on another device.
        up_ns: how long the gradient of its output is on its way back.
        held: activation memory from F to the end of B, in any unit.
        kept: the part of it that is held until the end of W.
        resident: memory that is always taken: weights, gradients, states of the optimizer.
        names: of the layers.
        kinds: what they are.
    """

    forward_ns: Ints
    backward_ns: Ints
    weight_ns: Ints
    fused_ns: Ints
    down_ns: Ints
    up_ns: Ints
    held: Floats
    kept: Floats
    resident: Floats
    names: tuple[str, ...] = field(metadata={"shared": True})
    kinds: tuple[LayerKind, ...] = field(metadata={"shared": True})

    @property
    def features(self) -> Floats:
        """What adds up over the layers of a stage; shape (7, L): F, B, W, BW, then memory."""
        memory = self.held, self.kept, self.resident
        return np.stack([*(ns.astype(float) for ns in self.times), *memory])

    @property
    def times(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The times that add up: of F, B, W and BW."""
        return self.forward_ns, self.backward_ns, self.weight_ns, self.fused_ns


def timed_layers(
    times: Sequence[Ints], names: tuple[str, ...], kinds: tuple[LayerKind, ...]
) -> Layers:
    """Return layers by their F, B, W and BW alone, without transfers and memory."""
    forward, backward, weight, fused = times
    none = np.zeros(len(forward))
    down, up = none.astype(np.int64), none.astype(np.int64)
    memory = none.copy(), none.copy(), none.copy()
    return Layers(forward, backward, weight, fused, down, up, *memory, names, kinds)


#: Rows of :attr:`Layers.features`, behind those of its times.
HELD, KEPT, RESIDENT = 4, 5, 6
FEATURES = 7


@frozen
class Layout:
    """Contiguous layers on virtual stages.

    Attributes:
        placement: device of each virtual stage of one pipeline.
        bounds: the first layer of each virtual stage, and how many layers there are.
    """

    placement: tuple[int, ...]
    bounds: tuple[int, ...]

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers of each virtual stage."""
        return tuple(range(low, high) for low, high in pairwise(self.bounds))

    def of_device(self, device: int) -> tuple[int, ...]:
        """Return the virtual stages of a device."""
        return tuple(stage for stage, at in enumerate(self.placement) if at == device)


def even_layout(layers: Layers, placement: tuple[int, ...]) -> Layout:
    """Return the layout that frameworks fall back to: as many transformer layers on each stage.

    What the division leaves goes to the last stages, one each; what comes before the first
    transformer layer goes to the first stage, what comes behind the last to the last.

    Raises:
        UsageError: there are fewer layers than virtual stages.
    """
    stages = len(placement)
    inner = [at for at, kind in enumerate(layers.kinds) if kind is LayerKind.TRANSFORMER]
    if len(inner) < stages:
        inner = list(range(len(layers)))
    check_enough(len(inner), stages)
    share, left = divmod(len(inner), stages)
    counts = [share + (stage >= stages - left) for stage in range(stages)]
    starts = [inner[sum(counts[:stage])] for stage in range(stages)]
    return Layout(placement, (0, *starts[1:], len(layers)))


def check_enough(layers: int, stages: int) -> None:
    """Check that every virtual stage can have a layer, and that there are not too many.

    Raises:
        UsageError: it cannot.
    """
    if layers < stages:
        raise UsageError(
            f"{layers} layers for {stages} virtual stages: each needs one; give fewer stages "
            "or chunks"
        )
    if layers > MOST_LAYERS:
        raise UsageError(f"more than {MOST_LAYERS:,} layers; take several as one")


def layout_workload(
    layers: Layers,
    layout: Layout,
    microbatches: int,
    limit: Sequence[float] | None = None,
    *,
    edges: Ints | None = None,
    split: bool = True,
) -> Workload:
    """Return what the virtual stages of a layout take.

    Args:
        layers: of the model.
        layout: which of them each virtual stage holds.
        microbatches: m.
        limit: memory by device; what is always taken goes off it.
        edges: what crossing each boundary takes beside the layers' own transfers, down and up;
            shape (2, S - 1); None for nothing.
        split: whether both halves of the backward were measured.
    """
    placement = layout.placement

    def summed(column: Ints) -> tuple[int, ...]:
        return tuple(int(column[low:high].sum()) for low, high in pairwise(layout.bounds))

    def held(column: Floats) -> tuple[float, ...]:
        return tuple(float(column[low:high].sum()) for low, high in pairwise(layout.bounds))

    behind = [bound - 1 for bound in layout.bounds[1:-1]]
    cut = [here != there for here, there in pairwise(placement)]
    further = np.zeros((2, len(cut)), np.int64) if edges is None else edges
    down, up = (
        [int(ns[at] + more) * far for at, more, far in zip(behind, extra, cut, strict=True)]
        for ns, extra in zip((layers.down_ns, layers.up_ns), further, strict=True)
    )
    resident = held(layers.resident)
    forward, backward, weight, fused = map(summed, layers.times)
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=forward,
        backward_ns=backward,
        weight_ns=weight,
        fused_ns=fused,
        down_ns=(*down, 0),
        up_ns=(0, *up),
        activation=held(layers.held),
        kept=held(layers.kept),
        limit=None
        if limit is None
        else tuple(
            most - sum(resident[stage] for stage in layout.of_device(device))
            for device, most in enumerate(limit)
        ),
        split=split,
    )


# How frameworks are told of a layout: Megatron's string, and torchtitan's list of modules.
#
# Sources: Megatron-LM, ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` (grammar and
# what it refuses); torchtitan, ``pipeline_parallel_module_fqns_per_model_part`` of its options.


_LETTER = {
    LayerKind.EMBEDDING: "E",
    LayerKind.TRANSFORMER: "t",
    LayerKind.MTP: "m",
    LayerKind.HEAD: "L",
}
#: What torchtitan's models call an embedding and a head that is one layer of ours.
_EMBEDDING, _HEAD = ("tok_embeddings",), ("norm", "output")


def megatron_layout(layers: Layers, layout: Layout) -> str | None:
    """Return the value of ``--pipeline-model-parallel-layout``; None where Megatron refuses it.

    ``E`` is the embedding, ``t`` a transformer layer, ``m`` one of multi-token prediction, ``L``
    the loss, ``|`` stands between virtual stages: ``Et*3|(tt|)*29m|L``. The embedding stands on
    the first stage and the loss on the last, whether or not they were measured apart.
    """
    devices = max(layout.placement) + 1
    chunks = len(layout.placement) // devices
    if layout.placement != looped_placement(devices, chunks):
        return None
    stages = ["".join(_LETTER[layers.kinds[at]] for at in stage) for stage in layout.stages]
    ends = {"E": stages[1:], "L": stages[:-1]}
    apart = any(letter in stage for letter, others in ends.items() for stage in others)
    predicting = [at for at, stage in enumerate(stages) if "m" in stage]
    if apart or len(predicting) > 1 or any(at < devices * (chunks - 1) for at in predicting):
        return None
    stages[0] = "E" + stages[0].replace("E", "")
    stages[-1] = stages[-1].replace("L", "") + "L"
    return _repeated(stages)


def _repeated(stages: list[str]) -> str:
    """Return stages with repetitions written once; the last has no line behind it."""

    def word(stage: str) -> str:
        runs = ((letter, len(list(run))) for letter, run in groupby(stage))
        return "".join(each * n if n < 3 else f"{each}*{n}" for each, n in runs)

    words = []
    for stage, same in groupby(stages[:-1]):
        count = len(list(same))
        words.append(f"({word(stage)}|)*{count}" if count > 1 else f"{word(stage)}|")
    return "".join(words) + word(stages[-1])


def torchtitan_layout(layers: Layers, layout: Layout) -> list[list[str]]:
    """Return torchtitan's ``module_fqns_per_model_part``: the modules of each virtual stage.

    Transformer layers are numbered through. An embedding or a head of one layer has the names that
    torchtitan's models give its parts, one of several layers keeps their names.
    """
    number = 0
    parts = []
    for stage in layout.stages:
        names: list[str] = []
        for at in stage:
            kind = layers.kinds[at]
            if kind is LayerKind.TRANSFORMER:
                names.append(f"layers.{number}")
                number += 1
            elif kind is LayerKind.MTP or layers.kinds.count(kind) > 1:
                names.append(layers.names[at])
            else:
                names += _EMBEDDING if kind is LayerKind.EMBEDDING else _HEAD
        parts.append(names)
    # Neither end is left to no stage where it was not measured apart.
    if LayerKind.EMBEDDING not in layers.kinds:
        parts[0] = [*_EMBEDDING, *parts[0]]
    if LayerKind.HEAD not in layers.kinds:
        parts[-1] = [*parts[-1], *_HEAD]
    return parts
