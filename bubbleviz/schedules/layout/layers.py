"""Layers: what each part of a model takes, in the model's order, and how they are cut up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby, pairwise

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Floats, Ints, Table
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted
from bubbleviz.schedules.plan import Plan, looped_placement
from bubbleviz.schedules.simulation import Workload, in_turn

#: No model has more; bounds take memory by the square of their number, for each virtual stage.
MOST_LAYERS = 1_000


class LayerKind(Enum):
    """What a layer is to the frameworks that are told of a layout."""

    TRANSFORMER = "layer"
    EMBEDDING = "embedding"
    MTP = "mtp"
    HEAD = "head"


@dataclass(frozen=True, eq=False, repr=False)
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

    @property
    def forward_only(self) -> bool:
        """Whether nothing goes back, as in serving."""
        return not self.fused_ns.any()


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


@dataclass(frozen=True)
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


def even_layouts(layers: Layers, placement: tuple[int, ...]) -> tuple[Layout, Layout]:
    """Return the layouts that frameworks fall back to: as many transformer layers on each stage.

    What the division leaves goes to the last stages, one each, or to the first; what comes before
    the first transformer layer goes to the first stage, what comes behind the last to the last.

    Raises:
        UsageError: there are fewer layers than virtual stages.
    """
    stages = len(placement)
    inner = [at for at, kind in enumerate(layers.kinds) if kind is LayerKind.TRANSFORMER]
    if len(inner) < stages:
        inner = list(range(len(layers)))
    check_enough(len(inner), stages)
    share, left = divmod(len(inner), stages)
    places, ends = range(1, stages), len(layers)
    last = (inner[share * stage + max(stage - stages + left, 0)] for stage in places)
    first = (inner[share * stage + min(stage, left)] for stage in places)
    return Layout(placement, (0, *last, ends)), Layout(placement, (0, *first, ends))


def check_enough(layers: int, stages: int) -> None:
    """Check that every virtual stage can have a layer, and that there are not too many.

    Raises:
        UsageError: it cannot.
    """
    if layers < stages:
        raise UsageError(
            f"{counted(layers, 'layer')} for {stages} virtual stages: each needs one; give fewer "
            "stages or chunks"
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


# A plan as a recurrence, evaluated for thousands of layouts at once.
#
# With a fixed order the end of an operation is
#
#     end = max(end of the device's operation before, end of the remote input + transfer) + length
#
# (a local input ended before the device's operation before it did, or is it). One column a layout
# makes that three numpy calls an operation, and the same sums as
# :func:`bubbleviz.schedules.simulation.simulate` makes, exactly: all are whole nanoseconds.
#
# The longest path of one layout is a sum of its stages' times with fixed factors. For another
# layout the same path is still a path, so that its length there is a lower bound of the makespan.


#: Where the length of a phase stands among :attr:`Layers.times`.
_COLUMN = {Phase.F: 0, Phase.B: 1, Phase.W: 2, Phase.BW: 3}
#: Directions of what crosses a boundary: outputs go down, gradients up.
_DOWN, _UP = 0, 1
#: Layouts that are evaluated at once: a column of 32 kB stays in the cache.
BLOCK = 4096


#: An operation, or two that run side by side: the node that the device ran before, -1 for none;
#: nodes on other devices whose results it needs, with the direction and the boundary that each
#: crosses (``b`` is that behind virtual stage ``b``); and of each operation the virtual stage of
#: one pipeline, and the column of the lengths.
_Node = tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]
#: The longest path through a plan at the times of one layout: how often it takes each feature of
#: each virtual stage, shape (7, S), and how often it crosses each boundary between devices, down
#: and up, shape (2, S - 1).
Path = tuple[Floats, Floats]


class Recurrence:
    """A plan, ready to be timed for any layout.

    Args:
        plan: fixed orders.
        links: by device and device: how long anything takes from one to the other beside the
            layers' own transfers; None for no time.

    Raises:
        MismatchError: the order deadlocks.
    """

    def __init__(self, plan: Plan, links: Ints | None = None) -> None:
        self.plan = plan
        #: Virtual stages of one pipeline; the replicas' stages hold the same layers.
        self.length = len(plan.placement) // plan.replicas
        self.placement = plan.placement[: self.length]
        self._nodes = _nodes(plan, self.length)
        #: What crossing each boundary takes beside the transfers of layers, down and up.
        self.edges = edges_of(self.placement, links)
        followed = {before for before, _, _ in self._nodes}
        self._last = [at for at in range(len(self._nodes)) if at not in followed]

    def makespans(self, layers: Layers, bounds: Ints) -> Ints:
        """Return the makespan of each layout, in nanoseconds.

        Args:
            layers: of the model.
            bounds: one layout a row, see :class:`Layout`; shape (n, S + 1).
        """
        result = np.empty(len(bounds), np.int64)
        for at in range(0, len(bounds), BLOCK):
            part = bounds[at : at + BLOCK]
            ends = self._ends(*self._times(layers, part))
            result[at : at + BLOCK] = ends[self._last].max(axis=0, initial=0)
        return result

    def path(self, layers: Layers, bounds: Ints) -> Path:
        """Return the longest path of one layout, a row of ``bounds``."""
        return self._longest(*self._times(layers, bounds[None, :]))

    def device_paths(self, layers: Layers) -> list[Path]:
        """Return for each device a path through all that it runs, on to it and away from it."""
        totals = [int(each.sum()) for each in layers.times]
        each = [1 + total * 1000 // (1 + sum(totals)) for total in totals]
        lengths = np.array(each, np.int64)[:, None, None]
        lengths = np.repeat(lengths, self.length, axis=1)
        paths = []
        for device in range(self.plan.stages):
            weight = np.where(np.array(self.plan.placement) == device, 1 << 20, 1)
            weight = weight.reshape(-1, self.length).max(axis=0)
            transfers = np.ones((2, max(0, self.length - 1), 1), np.int64)
            paths.append(self._longest(lengths * weight[:, None], transfers))
        return paths

    def _longest(self, lengths: Ints, transfers: Ints) -> Path:
        """Return the longest path at some times of one layout."""
        ends = self._ends(lengths, transfers)[:, 0]
        factors, crossed = np.zeros((FEATURES, self.length)), self._uncrossed()
        at = max(self._last, key=lambda node: int(ends[node]), default=NONE)
        while at != NONE:
            before, remote, operations = self._nodes[at]
            start = int(ends[at])
            for stage, column in operations:
                start -= int(lengths[column, stage, 0])
                factors[column, stage] += 1
            at = before
            if at == NONE or int(ends[at]) != start:
                for source, *crossing in remote:
                    if int(ends[source]) + int(transfers[(*crossing, 0)]) == start:
                        at = source
                        crossed[tuple(crossing)] += 1
                        break
        return factors, crossed

    def _times(self, layers: Layers, bounds: Ints) -> tuple[Ints, Ints]:
        """Return the lengths of F, B, W and BW by virtual stage, and transfers by boundary.

        Shapes (4, S, n) and (2, S - 1, n).
        """
        each = np.stack(layers.times)
        sums = np.concatenate((np.zeros((4, 1), np.int64), each.cumsum(axis=1)), axis=1)
        at = bounds.T
        ways = np.stack((layers.down_ns, layers.up_ns))
        transfers = ways[:, at[1:-1] - 1] + self.edges[:, :, None]
        return sums[:, at[1:]] - sums[:, at[:-1]], transfers

    def _uncrossed(self) -> Floats:
        """Return boundaries that nothing crosses."""
        return np.zeros((2, max(0, self.length - 1)))

    def _ends(self, lengths: Ints, transfers: Ints) -> Ints:
        """Return when each node ends, by layout; shape (nodes, n)."""
        ends = np.empty((len(self._nodes), lengths.shape[2]), np.int64)
        arrival = np.empty(lengths.shape[2], np.int64)
        for row, (before, remote, operations) in zip(ends, self._nodes, strict=True):
            if before == NONE:
                row[:] = 0
            begun = row if before == NONE else ends[before]
            for source, way, boundary in remote:
                np.add(ends[source], transfers[way, boundary], out=arrival)
                begun = np.maximum(begun, arrival, out=row)
            for stage, column in operations:
                begun = np.add(begun, lengths[column, stage], out=row)
        return ends

    def memory_rows(self) -> list[tuple[int, Path]]:
        """Return what each device holds at its fullest moments: (device, factors of features).

        The order of a device fixes what it holds when, whatever the times, so that its peak is the
        largest of a few sums; moments that hold no more of anything than another are left out.
        """
        rows: list[tuple[int, Path]] = []
        for device, order in enumerate(self.plan.orders):
            change = np.zeros((len(order) + 1, 2, self.length), np.int64)
            for at, op in enumerate(order, 1):
                stage = op.virtual_stage % self.length
                if op.phase is Phase.F:
                    change[at, :, stage] = 1
                if op.phase in (Phase.B, Phase.BW):
                    change[at, 0, stage] = -1
                if op.phase in (Phase.W, Phase.BW):
                    change[at, 1, stage] = -1
            # Of what is held, the part that stays until W is counted by itself.
            held = change.cumsum(axis=0)
            full, late = held[:, 0], held[:, 1] - held[:, 0]
            present = (np.array(self.plan.placement) == device).reshape(-1, self.length).sum(axis=0)
            for moment in _undominated(np.unique(np.concatenate((full, late), axis=1), axis=0)):
                factors = np.zeros((FEATURES, self.length))
                factors[HELD], factors[KEPT] = np.split(moment, 2)
                factors[RESIDENT] = present
                rows.append((device, (factors, self._uncrossed())))
        return rows


def _undominated(moments: Ints) -> Ints:
    """Return the rows that no other row equals or exceeds in every column; rows are distinct."""
    kept: list[Ints] = []
    for row in moments[np.argsort(-moments.sum(axis=1), kind="stable")]:
        if not any((other >= row).all() for other in kept):
            kept.append(row)
    return np.array(kept, np.int64).reshape(len(kept), moments.shape[1])


def edges_of(placement: tuple[int, ...], links: Ints | None) -> Ints:
    """Return how long it takes over each boundary of a placement, down and up; (2, S - 1)."""
    edges = np.zeros((2, len(placement) - 1), np.int64)
    if links is not None and len(placement) > 1:
        here, there = np.array(placement[:-1]), np.array(placement[1:])
        edges[_DOWN], edges[_UP] = links[here, there], links[there, here]
        edges[:, here == there] = 0
    return edges


def _nodes(plan: Plan, length: int) -> list[_Node]:
    """Return the operations in an order in which each comes behind what it needs.

    Raises:
        MismatchError: there is none.
    """
    nodes: list[_Node] = []
    made: dict[tuple[bool, int, int], int] = {}
    last = [NONE] * plan.stages
    for device, group, taken, given in in_turn(plan, made):
        remote = [
            (made[result], _DOWN if result[0] else _UP, result[1] % length - (not result[0]))
            for result in taken
            if plan.placement[result[1]] != device
        ]
        operations = [(op.virtual_stage % length, _COLUMN[op.phase]) for op in group]
        made.update(dict.fromkeys(given, len(nodes)))
        nodes.append((last[device], remote, operations))
        last[device] = len(nodes) - 1
    return nodes
