"""The layers of a model, with their times and memory, and layouts that divide them into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Floats, Ints, Table
from bubbleviz.model.texts import format_count
from bubbleviz.schedules.workload import Workload

#: Maximum number of layers. The memory needed for lower bounds grows quadratically with the number
#: of layers.
MAX_LAYERS = 1_000


class LayerKind(Enum):
    """The kind of a layer, as distinguished by the layout options of frameworks."""

    TRANSFORMER = "layer"
    EMBEDDING = "embedding"
    MTP = "mtp"
    HEAD = "head"


@dataclass(frozen=True, eq=False, repr=False)
class Layers(Table):
    """The layers of a model in order, with their times for one microbatch.

    Attributes:
        forward_ns: Time of F.
        backward_ns: Time of B, the backward pass that computes only the input gradient.
        weight_ns: Time of W, the backward pass that computes the weight gradients.
        fused_ns: Time of the whole backward pass as a single operation.
        down_ns: Time from the end of the layer to the arrival of its output on another device.
        up_ns: Time to transfer the gradient of the layer's output back from another device.
        activation: Activation memory from F to the end of B, in any unit.
        weight_activation: Part of ``activation`` that stays in use until the end of W.
        resident: Memory that is always in use: weights, gradients and optimizer states.
        names: Names of the layers.
        kinds: Kinds of the layers.
    """

    forward_ns: Ints
    backward_ns: Ints
    weight_ns: Ints
    fused_ns: Ints
    down_ns: Ints
    up_ns: Ints
    activation: Floats
    weight_activation: Floats
    resident: Floats
    names: tuple[str, ...] = field(metadata={"shared": True})
    kinds: tuple[LayerKind, ...] = field(metadata={"shared": True})

    @property
    def features(self) -> Floats:
        """Times and memory of each layer, which can be summed over a stage; shape (7, L)."""
        memory = self.activation, self.weight_activation, self.resident
        return np.stack([*(ns.astype(float) for ns in self.times), *memory])

    @property
    def times(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Times of F, B, W and BW."""
        return self.forward_ns, self.backward_ns, self.weight_ns, self.fused_ns

    @property
    def forward_only(self) -> bool:
        """Whether there are no backwards, as in inference serving."""
        return not self.fused_ns.any()


def build_layers(
    times: Sequence[Ints], names: tuple[str, ...], kinds: tuple[LayerKind, ...]
) -> Layers:
    """Build layers from their times of F, B, W and BW. Transfer times and memory are 0."""
    forward, backward, weight, fused = times
    none = np.zeros(len(forward))
    down, up = none.astype(np.int64), none.astype(np.int64)
    memory = none.copy(), none.copy(), none.copy()
    return Layers(forward, backward, weight, fused, down, up, *memory, names, kinds)


#: Rows of :attr:`Layers.features` that contain memory.
ACTIVATION, WEIGHT_ACTIVATION, RESIDENT = 4, 5, 6
FEATURES = 7


@dataclass(frozen=True)
class Layout:
    """A division of the layers into contiguous parts, one for each virtual stage.

    Attributes:
        placement: Device index of each virtual stage in one pipeline.
        bounds: Index of each virtual stage's first layer, followed by the total number of layers.
    """

    placement: tuple[int, ...]
    bounds: tuple[int, ...]

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers in each virtual stage."""
        return tuple(range(low, high) for low, high in pairwise(self.bounds))

    def get_stages_of(self, device: int) -> tuple[int, ...]:
        """Return the virtual stages that a device runs."""
        return tuple(stage for stage, at in enumerate(self.placement) if at == device)


def make_even_layouts(layers: Layers, placement: tuple[int, ...]) -> tuple[Layout, Layout]:
    """Make the default layouts of frameworks.

    All stages get the same number of transformer layers. If there is a remainder, some stages get
    one more layer: the last stages in the first layout, and the first stages in the second layout.
    Layers before the first transformer layer are on the first stage. Layers after the last
    transformer layer are on the last stage. If there are fewer transformer layers than stages, all
    layers are divided equally among the stages.

    Raises:
        UsageError: There are fewer layers than virtual stages.
    """
    stages = len(placement)
    inner = [at for at, kind in enumerate(layers.kinds) if kind is LayerKind.TRANSFORMER]
    if len(inner) < stages:
        inner = list(range(len(layers)))
    check_enough(len(inner), stages)
    per_stage, left = divmod(len(inner), stages)
    boundaries, n_layers = range(1, stages), len(layers)
    last = (inner[per_stage * stage + max(stage - stages + left, 0)] for stage in boundaries)
    first = (inner[per_stage * stage + min(stage, left)] for stage in boundaries)
    return Layout(placement, (0, *last, n_layers)), Layout(placement, (0, *first, n_layers))


def check_enough(layers: int, stages: int) -> None:
    """Check that there are enough layers for all virtual stages, but not too many to handle.

    Raises:
        UsageError: There are fewer layers than stages, or more than ``MAX_LAYERS``.
    """
    if layers < stages:
        raise UsageError(
            f"{format_count(layers, 'layer')} for {stages} virtual stages, but each stage needs "
            "at least one; use fewer stages or chunks"
        )
    if layers > MAX_LAYERS:
        raise UsageError(f"more than {MAX_LAYERS:,} layers; combine several layers into one")


def build_layout_workload(
    layers: Layers,
    layout: Layout,
    microbatches: int,
    limit: Sequence[float] | None = None,
    *,
    edges: Ints | None = None,
    split: bool = True,
) -> Workload:
    """Build a layout's workload by adding up the layers in each virtual stage.

    The transfer to the next stage takes as long as the transfer after the stage's last layer. It
    takes no time if both stages are on the same device.

    Args:
        layers: Layers of the model.
        layout: The layers in each virtual stage.
        microbatches: Number of microbatches.
        limit: Memory available on each device, or None if there is no limit. The resident memory of
            the layers is subtracted from it.
        edges: Additional transfer time over each boundary between stages, down and up, shape (2, S
            - 1). None adds nothing.
        split: Whether B and W were measured separately.
    """
    placement = layout.placement

    def sum_times(column: Ints) -> tuple[int, ...]:
        return tuple(int(column[low:high].sum()) for low, high in pairwise(layout.bounds))

    def sum_memory(column: Floats) -> tuple[float, ...]:
        return tuple(float(column[low:high].sum()) for low, high in pairwise(layout.bounds))

    last_layer = [bound - 1 for bound in layout.bounds[1:-1]]
    is_cut = [here != there for here, there in pairwise(placement)]
    extra_ns = np.zeros((2, len(is_cut)), np.int64) if edges is None else edges
    down, up = (
        [int(ns[at] + more) * far for at, more, far in zip(last_layer, extra, is_cut, strict=True)]
        for ns, extra in zip((layers.down_ns, layers.up_ns), extra_ns, strict=True)
    )
    resident = sum_memory(layers.resident)
    forward, backward, weight, fused = map(sum_times, layers.times)
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=forward,
        backward_ns=backward,
        weight_ns=weight,
        fused_ns=fused,
        down_ns=(*down, 0),
        up_ns=(0, *up),
        activation=sum_memory(layers.activation),
        weight_activation=sum_memory(layers.weight_activation),
        limit=None
        if limit is None
        else tuple(
            most - sum(resident[stage] for stage in layout.get_stages_of(device))
            for device, most in enumerate(limit)
        ),
        split=split,
    )
