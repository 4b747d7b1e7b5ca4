"""Faults: reasons why work took longer than comparable work, and how long it would otherwise take.

The shape of a slowdown reveals its cause. For example, all work of one rank is slow, all work of
one stage is slow, or one microbatch is slow on every stage. Each function in ``SHAPES`` finds the
faults of one shape in the evidence of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.count.statistics import compute_median
from bubbleviz.explain.diagnosis.effects import (
    MIN_CHANGED_EFFECT,
    Effects,
    compute_quantile,
    mask_changed_cells,
    order_by_loss,
)
from bubbleviz.explain.diagnosis.fault_names import (
    ALL_RANKS,
    COMPUTE_GAPS,
    ENOUGH,
    FIRST_MICROBATCH,
    MORE_KERNELS,
    OUTPUT_LAYER,
    PACE,
    PAUSE,
    PROFILER,
    SAME_KERNELS,
    VARYING_LENGTHS,
    WHOLE_LAYERS,
)
from bubbleviz.explain.diagnosis.fits import (
    MIN_JUMP_POINTS,
    MIN_SIDE,
    Jumps,
    fit_jumps,
    replace_spikes,
)
from bubbleviz.explain.diagnosis.launch_steps import LaunchSteps
from bubbleviz.explain.diagnosis.link_changes import LinkChange
from bubbleviz.explain.diagnosis.slow_ranks import SlowRanks
from bubbleviz.explain.slowdown.work import COMPUTING, Role, Work, group_medians, has_role
from bubbleviz.explain.slowness import compute_median_of_others, compute_multiples
from bubbleviz.explain.stage_layers import compare_stage_times, describe_moves, find_best_layout
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import (
    Groups,
    find_distinct,
    find_distinct_rows,
    group_rows,
    list_rows_by_value,
)
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.phases import Phase, parse_phase_label

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Maximum number of pausing ranks, and of late ranks, that get separate faults.
_MAX_PAUSING_RANKS, _MAX_LATE_RANKS = 4, 4
#: Limits used by :func:`_has_varying_lengths` for slow microbatches, slow numbers and iterations.
_MAX_SLOW_FRACTION, _MAX_SLOW_NUMBERS, _NEARLY_ALWAYS = 0.2, 0.5, 0.8
#: Minimum transfer time of a slow link, as a multiple of the median of the other links.
_MIN_LINK_RATIO = 1.3
#: Minimum total launch gaps to report, as a fraction of the rank's time in compute operations.
_MIN_GAP_FRACTION = 0.05
#: Maximum relative difference between the kernel counts of stages with equally many layers.
_MAX_KERNEL_DIFFERENCE = 0.02
#: Minimum time of a stage that may have a slow GPU, as a multiple of the time of other stages. In
#: healthy runs, the first and the last stage take a few percent longer than others.
_MIN_SLOW_GPU = 1.05


def _make_empty_rows() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Fault:
    """One reason why an iteration takes longer: slow work, or work that starts late.

    Attributes:
        kind: Shape of the fault: ``rank``, ``host``, ``stage``, ``microbatch``, ``iteration``,
            ``link``, ``launch``, ``late-start``, ``launch-gaps``, ``collective``, ``drift``,
            ``slowed``, ``queue`` or ``token``.
        name: Identifier that is unique in the run and stable between runs, for example ``rank-3``.
        rows: Rows of the work table that the fault slows down.
        scale: For each of ``rows``, the time without the fault as a fraction of the measured time.
        ranks: Ranks that the fault slows down, or empty if it is not limited to certain ranks.
        stage: Stage that the fault slows down, or None if it slows down no stage or several stages.
        stages: Stages that have too much work; empty for other kinds of faults.
        link: The two stages of a slow link, lower stage first, or None for other kinds of faults.
        microbatches: Slow microbatches as (iteration, microbatch) pairs; empty for other kinds of
            faults.
        iterations: Iterations in which the fault occurs, or empty for all iterations.
        phases: Pairs of a phase that the fault slows down and its time as a multiple of the norm.
            The phase is "" if the number applies to all phases. Some kinds of faults store a
            different number here, for example ``("late by ms", 1.5)``.
        detail: Qualifier of ``kind``, or "" if there is none. Its meaning depends on the kind:

            - ``collective``: name of the collective kind.
            - ``drift`` and ``slowed``: :data:`.ALL_RANKS` if all ranks became slower.
            - ``iteration``: "" if all ranks are slow, :data:`.PACE` if certain ranks are slow, and
              only throughout whole iterations, otherwise :data:`.PAUSE`.
            - ``launch``: :data:`.PROFILER`, or :data:`.ITERATION_PAUSE` for a pause between
              iterations.
            - ``launch-gaps``: :data:`.COMPUTE_GAPS` if the gaps may be communication.
            - ``link``: the replica, if only one of several is slow.
            - ``microbatch``: :data:`.VARYING_LENGTHS` if the lengths of all microbatches vary,
              :data:`.FIRST_MICROBATCH` if only the first one of the run is slow.
            - ``stage``: :data:`.OUTPUT_LAYER` for the last stage. :data:`.MORE_KERNELS` or
              :data:`.SAME_KERNELS` if a single rank runs the stage and its kernels show it.
              :data:`.ONLY_REPAIR` if moving layers saves nothing.
            - ``token``: how many more chunks are in flight, :data:`.ONE_MORE` or :data:`.ENOUGH`.
        delayed: Rows of the work table that start late because of the fault.
        late_ns: Delay of each row in ``delayed``, in ns.
        collective: Kind of collective that starts late because of the fault, or "" if operations
            lose more time than collectives.
        host: CUDA call and range that the host was in during its longest delay, as indices into the
            operations' ``names``. Each is -1 if unknown.
        moves: Descriptions of layers that move between stages, or empty if layers are unknown and
            the work is split evenly.
        change: How the link became slow during the run. None if the link was slow from the start,
            and for other kinds of faults.
        lasts: Whether the fault began during the run and occurs in every later iteration.
        bound: Whether the saving is only an upper bound, because the work is not slow compared with
            similar work. The replay then assumes that the work takes no time at all.
        may_miss_ranks: Whether other ranks may have the same fault, because some launches are
            unknown.
        repaired: Another explanation for slow stages that run on one rank each: their GPUs are
            slow. Without this fault, the stages take the median time of the other stages. None if
            layers or kernels rule out this explanation, and for other kinds of faults.
    """

    kind: str
    name: str
    rows: Ints = field(default_factory=_make_empty_rows)
    scale: Floats = field(default_factory=lambda: np.zeros(0))
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    stages: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    microbatches: tuple[tuple[int, int], ...] = ()
    iterations: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    detail: str = ""
    delayed: Ints = field(default_factory=_make_empty_rows)
    late_ns: Ints = field(default_factory=_make_empty_rows)
    collective: str = ""
    host: tuple[int, int] = (NONE, NONE)
    moves: tuple[str, ...] = ()
    change: LinkChange | None = None
    lasts: bool = False
    bound: bool = False
    may_miss_ranks: bool = False
    repaired: Fault | None = None

    @property
    def since_iteration(self) -> int | None:
        """First iteration of a fault that began during the run, or None for all other faults."""
        began = self.lasts or self.kind == "slowed" or self.change is not None
        return self.iterations[0] if began and self.iterations else None

    @property
    def family(self) -> str:
        """Name shared by faults that can contain each other.

        For example, the family of both the pauses of one rank and the pauses of all ranks is
        ``pauses``.
        """
        if self.kind == "launch":
            return f"launches-{self.detail}" if self.detail else "launches"
        if self.kind == "late-start":
            return "late-starts"
        return "pauses" if self.kind == "iteration" and self.detail else self.name


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Work and effects of a run, and what is known about its hosts, layers and schedule.

    Attributes:
        work: Work table of all ranks in the replayed iterations.
        own_ns: Time of each row in ns, without waiting. For communication, this is its transfer
            time.
        effects: Effects on compute operation times.
        launch_share: For each row, the fraction of the time without a compute kernel that was also
            without a communication kernel. None if it is unknown.
        host_of_rank: Host number of each rank.
        late_ns: Delay of each row in ns that is due to a late launch by the host, or 0.
        profiler_ns: Delay of each row in ns that is due to profiler overhead, or 0.
        n_kernels: Number of compute kernels in each row, or 0 if unknown.
        hosts: Activities of hosts before late launches of collectives and optimizers, and inside
            operations.
        layout: Layers of the stages, or None if they are unknown.
        schedule: Name of the schedule that ran, or None if it is unknown.
        slow_ranks: Hosts, replicas and ranks that are slow.
        link_changes: Links that became slow during the run.
        start_late_ns: For each row that needs no input and whose launch is unknown, how much later
            it starts than the first row of its iteration, in ns. It is 0 for all other rows; see
            :func:`.measure_late_starts`.
        launch_steps: Launch steps of the ranks whose launches do not wait for inputs.
    """

    work: Work
    own_ns: Ints
    effects: Effects
    launch_share: Floats | None
    host_of_rank: Ints
    late_ns: Ints
    profiler_ns: Ints
    n_kernels: Ints
    hosts: HostActivities = field(default_factory=HostActivities.make_empty)
    layout: LayoutQuestion | None = None
    schedule: str | None = None
    slow_ranks: tuple[SlowRanks, ...] = ()
    link_changes: tuple[LinkChange, ...] = ()
    start_late_ns: Ints = field(default_factory=_make_empty_rows)
    launch_steps: LaunchSteps = field(default_factory=LaunchSteps.make_empty)


def find_slow_ranks(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault for each host, replica or rank whose compute operations are slow in general.

    :mod:`.slow_ranks` explains how they are found. Without the fault, the time of each slow cell
    (kind, virtual stage and rank) is divided by its factor.
    """
    effects, computes = evidence.effects, evidence.effects.computes
    for slow_ranks in evidence.slow_ranks:
        is_slow = slow_ranks.factor > 1
        compute = np.flatnonzero(is_slow[computes.cells.of_row])
        stages = find_distinct(computes.stage[compute]).tolist()
        kind_of_cell = computes.kind_of_cell[is_slow]
        kinds = group_rows(kind_of_cell)
        measured_ns = np.bincount(kinds.of_row, effects.cell_ns[is_slow])
        norm_ns = np.bincount(kinds.of_row, (effects.cell_ns / slow_ranks.factor)[is_slow])
        factor = slow_ranks.factor[computes.cells.of_row[compute]]
        yield Fault(
            slow_ranks.kind,
            slow_ranks.name,
            effects.rows[compute],
            effects.scale_usual_time(compute, 1 / factor),
            ranks=slow_ranks.ranks,
            stage=stages[0] if len(stages) == 1 else None,
            phases=_pair_phases(evidence, kind_of_cell[kinds.first], measured_ns / norm_ns),
        )


def find_slow_stages(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault for each host whose stages are all slow, then one for all other slow stages.

    A stage is slow if one kind of its work takes significantly longer than the median of the other
    stages, and longer than the mean of all stages.

    The two faults have different remedies:

    - A slow host is repaired. Its work then takes as long as on other stages.
    - Work of a slow stage moves to other stages, so the total time stays the same. If the layers
      are known, whole layers move::

          F of stages     10  14  10  22        14  14  14  14

    If the layers are unknown and each slow stage runs on a single rank, its GPU may be slow instead
    (:func:`_add_repair`).
    """
    stages = evidence.effects.stages
    size = np.bincount(stages.row_of_compute, minlength=len(stages.kind))
    roles = np.array([kind.role for kind in evidence.work.kinds], np.int64)[stages.kind]
    is_slow = evidence.effects.is_significant(stages.effect, size) & has_role(roles, COMPUTING)
    # An even split would slow down a stage that is slower than the median but below the mean.
    is_slow &= stages.load > 1
    is_slow &= ~_mask_changed_stages(evidence.effects) | (stages.effect > MIN_CHANGED_EFFECT)

    slow_stages = find_distinct(stages.stage[is_slow]).tolist()
    for host, on_host in _list_slow_hosts(evidence, slow_stages):
        yield _build_stage_fault(evidence, "host", f"host-{host}", on_host, is_slow)
        slow_stages = [stage for stage in slow_stages if stage not in on_host]
    if not slow_stages:
        return
    name = f"stage-{slow_stages[0]}" if len(slow_stages) == 1 else "stages"
    fault = _build_stage_fault(evidence, "stage", name, slow_stages, is_slow)
    yield _move_whole_layers(evidence, fault) or _add_repair(evidence, fault, is_slow)


def _add_repair(evidence: Evidence, fault: Fault, is_slow: Bools) -> Fault:
    """Add the explanation that GPUs are slow to the fault of slow stages, unless it is ruled out.

    It is ruled out if several ranks run a slow stage, if the stage has more layers, or if no phase
    takes at least 1.05 times as long as on other stages. If the kernel counts show that the GPU is
    slow, the repair is also what happens without the returned fault.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        fault: The fault of the slow stages, without which their work is split evenly.
        is_slow: Mask of all slow rows of ``effects.stages``.
    """
    is_similar = max(multiple for _, multiple in fault.phases) < _MIN_SLOW_GPU
    if is_similar or len(fault.ranks) != len(fault.stages) or fault.detail == MORE_KERNELS:
        return fault
    repaired = _build_stage_fault(evidence, "rank", "slow-gpus", list(fault.stages), is_slow)
    if fault.detail == SAME_KERNELS:
        fault = replace(fault, rows=repaired.rows, scale=repaired.scale)
    return replace(fault, repaired=repaired)


def _mask_changed_stages(effects: Effects) -> Bools:
    """For each row of ``effects.stages``, return whether its ranks became slower during the run.

    This is the case if at least half of its cells are on ranks that drift or have slowed.
    """
    of_cell = effects.stages.row_of_compute[effects.computes.cells.first]
    n_cells = np.bincount(of_cell, minlength=len(effects.stages.kind))
    n_changed = np.bincount(of_cell, mask_changed_cells(effects), len(effects.stages.kind))
    return np.asarray(2 * n_changed >= n_cells, bool)


def _list_slow_hosts(evidence: Evidence, slow_stages: list[int]) -> list[tuple[int, list[int]]]:
    """List (host, stages) for each host that has several stages if all of them are slow.

    A host that shares a stage with another host is left out. The list is empty if there is only one
    host, because its stages cannot be compared with stages on other hosts.
    """
    work = evidence.work
    host = evidence.host_of_rank[work.rank]
    hosts: list[tuple[int, list[int]]] = []
    if len(find_distinct(host)) < 2:
        return hosts
    for number in find_distinct(host[np.isin(work.stage, slow_stages)]).tolist():
        stages = find_distinct(work.stage[host == number]).tolist()
        has_all_ranks = len(find_distinct(host[np.isin(work.stage, stages)])) == 1
        if has_all_ranks and len(stages) > 1 and set(stages) <= set(slow_stages):
            hosts.append((number, stages))
    return hosts


def _build_stage_fault(
    evidence: Evidence, kind: str, name: str, stages: list[int], is_slow: Bools
) -> Fault:
    """Build the fault of slow stages.

    What happens without the fault depends on its kind:

    - ``stage``: all stages take the mean time for the slow kinds of work.
    - ``host`` and ``rank``: the slow stages take the median time of the other stages.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        kind: Kind of the fault: ``stage``, ``host`` or ``rank``.
        name: Name of the fault, for example ``host-0``.
        stages: Indices of the slow stages.
        is_slow: Mask of all slow rows of ``effects.stages``.
    """
    effects, work = evidence.effects, evidence.work
    is_slow = is_slow & np.isin(effects.stages.stage, stages)
    is_changed, norm = is_slow, effects.stages.effect
    if kind == "stage":
        is_changed = np.isin(effects.stages.kind, effects.stages.kind[is_slow])
        norm = effects.stages.load
    compute = np.flatnonzero(is_changed[effects.stages.row_of_compute])
    # If work of one kind is slow on several stages, the largest effect is reported.
    kinds = group_rows(effects.stages.kind[is_slow])
    max_effect = np.zeros(len(kinds))
    np.maximum.at(max_effect, kinds.of_row, effects.stages.effect[is_slow])
    return Fault(
        kind,
        name,
        effects.rows[compute],
        effects.scale_usual_time(compute, 1 / norm[effects.stages.row_of_compute[compute]]),
        ranks=tuple(find_distinct(work.rank[np.isin(work.stage, stages)]).tolist()),
        stage=stages[0] if kind == "stage" and len(stages) == 1 else None,
        stages=tuple(stages) if kind == "stage" else (),
        detail=_explain_slow_stage(evidence, stages, is_slow) if kind == "stage" else "",
        phases=_pair_phases(evidence, effects.stages.kind[is_slow][kinds.first], max_effect),
    )


def _explain_slow_stage(evidence: Evidence, stages: list[int], is_slow: Bools) -> str:
    """Explain why a single stage is slow, as the ``detail`` of its fault.

    The number of kernels shows whether the stage has more layers than other stages
    (:func:`_compare_kernels`). If it does not have more kernels but runs the last virtual stage,
    the output layer and the loss are the reason: they take time, but add few kernels.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        stages: Indices of the slow stages.
        is_slow: Mask of the slow rows of ``effects.stages``.
    """
    work = evidence.work
    by_kernels = _compare_kernels(evidence, stages, is_slow)
    last_stages = find_distinct(work.stage[work.virtual_stage == work.virtual_stage.max()])
    if stages == last_stages.tolist() and by_kernels != MORE_KERNELS:
        return OUTPUT_LAYER
    return by_kernels


def _compare_kernels(evidence: Evidence, stages: list[int], is_slow: Bools) -> str:
    """Find out from its number of kernels why a stage is slow.

    A stage that has too many layers runs more kernels than other stages. A stage on a slow GPU
    takes longer, but runs the same number of kernels. Kernels are counted separately for each slow
    kind of work, and compared with the median of the other stages.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        stages: Indices of the slow stages.
        is_slow: Mask of the slow rows of ``effects.stages``.

    Returns:
        :data:`.MORE_KERNELS` if the excess of kernels is at least half the excess of time for every
        slow kind of work. :data:`.SAME_KERNELS` if no kernel count differs by more than 2 %. "" in
        all other cases, for example if several stages are slow, several ranks run the stage, or
        kernel counts are unknown.
    """
    work, effects = evidence.work, evidence.effects
    if len(stages) != 1 or len(find_distinct(work.rank[work.stage == stages[0]])) != 1:
        return ""
    row_of_compute = effects.stages.row_of_compute
    n_kernels = evidence.n_kernels[effects.rows].astype(np.float64)
    median = group_medians(row_of_compute, len(effects.stages.kind), n_kernels)
    kinds = group_rows(effects.stages.kind).of_row
    if not (median[np.isin(kinds, kinds[is_slow])] > 0).all():
        return ""
    ratio = compute_multiples(median, compute_median_of_others(kinds, median))[is_slow]
    excess = effects.stages.effect[is_slow] - 1
    if (ratio - 1 >= excess / 2).all():
        return MORE_KERNELS
    return SAME_KERNELS if (np.abs(ratio - 1) <= _MAX_KERNEL_DIFFERENCE).all() else ""


def _move_whole_layers(evidence: Evidence, fault: Fault) -> Fault | None:
    """Change the fault of slow stages to move whole layers instead of splitting the work evenly.

    Without the returned fault, all stages take the times of the best layout. If no layout is better
    than the layout of the run, no layers move and no row changes. If the best layout is unknown,
    the result is None.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        fault: The fault of the slow stages, without which their work is split evenly.
    """
    question, work, effects = evidence.layout, evidence.work, evidence.effects
    best = None if question is None else find_best_layout(question, evidence.schedule)
    if question is None or best is None:
        return None
    time_ratios = compare_stage_times(question, best)
    # Recomputation belongs to the backward that needs it, so its time changes like the time of B.
    phases = [parse_phase_label(kind.phase) for kind in work.kinds]
    ratio_of_kind = np.ones((len(phases), len(best.placement)))
    for kind, phase in enumerate(phases):
        if work.kinds[kind].role in COMPUTING and phase is not None:
            ratio_of_kind[kind] = time_ratios.get(phase, time_ratios[Phase.B])
    compute = np.flatnonzero(effects.computes.virtual_stage >= 0)
    ratio = ratio_of_kind[effects.computes.kind[compute], effects.computes.virtual_stage[compute]]
    compute, ratio = compute[ratio != 1], ratio[ratio != 1]
    return replace(
        fault,
        name=WHOLE_LAYERS,
        rows=effects.rows[compute],
        scale=effects.scale_usual_time(compute, ratio),
        moves=describe_moves(question, best),
    )


def find_slow_microbatches(evidence: Evidence) -> Iterator[Fault]:
    """Yield one fault for all microbatches that are slow on every stage, if there are any.

    Without the fault, the tokens of an iteration with a slow microbatch are spread evenly over all
    microbatches of the iteration, including those of other replicas::

        microbatches     1  1  3  1        1.5  1.5  1.5  1.5

    If only the first microbatch of the first iteration is slow, and there are other iterations,
    stages compiled or warmed up one after another. Then a different fault is yielded
    (:func:`_build_warm_up_fault`).
    """
    effects, groups = evidence.effects, evidence.effects.microbatches
    size = np.bincount(groups.of_row, minlength=len(groups))
    is_slow = effects.is_significant(effects.microbatch_effect, size, norm_variance=0.0)
    if not is_slow.any():
        return
    first_row = effects.rows[groups.first]
    number, iteration = evidence.work.microbatch[first_row], evidence.work.iteration[first_row]
    is_first = (iteration == 0) & (number == number[number != NONE].min())
    if (is_first | ~is_slow).all() and iteration.max() > 0:
        yield _build_warm_up_fault(evidence, is_slow)
    else:
        yield _build_microbatch_fault(evidence, is_slow)


def _build_warm_up_fault(evidence: Evidence, is_slow: Bools) -> Fault:
    """Build the fault of a first microbatch that is slow on every stage because it is the first.

    Stages compile or allocate memory when the first microbatch reaches them. Without the fault, the
    microbatch takes its usual time.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        is_slow: Mask of the first microbatches, one value per group of ``effects.microbatches``.
    """
    effects, groups = evidence.effects, evidence.effects.microbatches
    effect = np.where(is_slow, effects.microbatch_effect, 1.0)
    compute = np.flatnonzero(is_slow[groups.of_row])
    first_row = effects.rows[groups.first[is_slow]][0]
    first = int(evidence.work.iteration[first_row]), int(evidence.work.microbatch[first_row])
    return Fault(
        "microbatch",
        "first-microbatch",
        effects.rows[compute],
        effects.scale_usual_time(compute, 1 / effect[groups.of_row[compute]]),
        microbatches=(first,),
        iterations=first[:1],
        phases=(("", compute_quantile(effect[is_slow], 0.5)),),
        detail=FIRST_MICROBATCH,
    )


def _build_microbatch_fault(evidence: Evidence, is_slow: Bools) -> Fault:
    """Build the fault of slow microbatches.

    Without the fault, all microbatches of an iteration with a slow microbatch take the mean of
    their effects. The reported slowness is the median effect of the slow microbatches. If the
    lengths of all microbatches vary, it is instead the 95 % quantile of the effects of all
    microbatches divided by the 5 % quantile.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        is_slow: Mask of the slow microbatches, one value per group of ``effects.microbatches``.
    """
    effects, groups = evidence.effects, evidence.effects.microbatches
    effect, first_row = effects.microbatch_effect, effects.rows[groups.first]
    number, iteration = evidence.work.microbatch[first_row], evidence.work.iteration[first_row]
    is_varying = _has_varying_lengths(number, is_slow)
    slowness = compute_quantile(effect[is_slow], 0.5)
    if is_varying:
        slowness = compute_quantile(effect, 0.95) / compute_quantile(effect, 0.05)
    scale = _average_slow_iterations(iteration, number, effect, is_slow) / effect
    compute = np.flatnonzero(~np.isnan(scale)[groups.of_row])
    pairs = zip(iteration[is_slow].tolist(), number[is_slow].tolist(), strict=True)
    return Fault(
        "microbatch",
        "microbatches",
        effects.rows[compute],
        effects.scale_usual_time(compute, scale[groups.of_row[compute]]),
        microbatches=tuple(sorted(set(pairs))),
        phases=(("", slowness),),
        detail=VARYING_LENGTHS if is_varying else "",
    )


def _average_slow_iterations(
    iteration: Ints, number: Ints, effect: Floats, is_slow: Bools
) -> Floats:
    """For each microbatch, return the mean effect of all microbatches in its iteration.

    The result is NaN in iterations without a slow microbatch. Entries whose microbatch number is -1
    are not part of the mean, and their result is NaN.

    Args:
        iteration: Iteration of each microbatch.
        number: Number of each microbatch within its iteration, or -1 if there is none.
        effect: How many times longer than usual each microbatch takes.
        is_slow: Mask of the slow microbatches.
    """
    has_number = number >= 0
    iteration_row = group_rows(iteration).of_row
    n_microbatches = np.maximum(np.bincount(iteration_row, has_number), 1)
    mean_effect = np.bincount(iteration_row, effect * has_number) / n_microbatches
    has_slow = np.bincount(iteration_row, is_slow) > 0
    is_averaged = has_number & has_slow[iteration_row]
    return np.where(is_averaged, mean_effect[iteration_row], np.nan)


def _has_varying_lengths(number: Ints, is_slow: Bools) -> bool:
    """Return whether the lengths of all microbatches vary, rather than just a few being slow.

    The lengths vary if more than 20 % of the microbatches are slow. The exception is a run in which
    the same few microbatch numbers are always slow. In such a run, at most half of the numbers are
    ever slow, and each slow number is slow in at least 80 % of the iterations.

    Args:
        number: Number of each microbatch within its iteration, or -1.
        is_slow: Mask of the slow microbatches.
    """
    has_number = number >= 0
    n_iterations = np.bincount(number[has_number])
    n_slow = np.bincount(number[has_number & is_slow], minlength=len(n_iterations))
    is_slow_number = n_slow > 0
    is_always = n_slow[is_slow_number] >= _NEARLY_ALWAYS * n_iterations[is_slow_number]
    has_few_numbers = is_slow_number.sum() <= _MAX_SLOW_NUMBERS * (n_iterations > 0).sum()
    return bool(is_slow.mean() > _MAX_SLOW_FRACTION and not (is_always.all() and has_few_numbers))


def find_slow_iterations(evidence: Evidence) -> Iterator[Fault]:
    """Yield one fault for all iterations that are slow on all ranks, if there are any.

    Steady trends, and jumps after which all ranks are slower, are divided out first, because
    :func:`find_drifts` reports them.
    """
    effects, work = evidence.effects, evidence.work
    groups, changes = effects.iterations, effects.paces.changes
    effect = effects.iteration_effect / effects.trend
    if changes.is_slowed.any() and changes.is_slowed.all():
        # All ranks became slower for good, which is a separate fault. Divide the change out.
        is_after = np.arange(len(groups)) >= changes.jump_begin.max()
        effect = effect / np.where(is_after, np.exp(changes.jump_change.min()), 1.0)
    size = np.bincount(groups.of_row, minlength=len(groups))
    is_slow = effects.is_significant(effect, size, norm_variance=0.0)
    if is_slow.any():
        compute = np.flatnonzero(is_slow[groups.of_row])
        rows = effects.rows[compute]
        scale = effects.scale_between_gaps(compute, 1 / effect[groups.of_row[compute]])
        yield Fault(
            "iteration",
            "iterations",
            rows,
            scale,
            iterations=tuple(work.iteration[effects.rows[groups.first[is_slow]]].tolist()),
            phases=(("", compute_quantile(effect[is_slow], 0.5)),),
            host=_find_host_in_longest(evidence, rows, scale),
        )


def find_pauses(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault for each rank that pauses, then one for all pausing ranks if there are several.

    A rank pauses if single operations take much longer than usual, or if it is slow throughout
    single iterations. Only the 4 ranks that lose the most time get separate faults.
    """
    effects, computes = evidence.effects, evidence.effects.computes
    factor, is_slow_pace = _measure_pauses(effects)
    ranks = order_by_loss(computes.rank, computes.time_ns * (1 - 1 / factor))
    groups = [(f"pauses-{rank}", [rank]) for rank in ranks[:_MAX_PAUSING_RANKS]]
    if len(ranks) > 1:
        groups.append(("pauses", sorted(ranks)))
    for name, members in groups:
        compute = np.flatnonzero((factor > 1) & np.isin(computes.rank, members))
        rows = effects.rows[compute]
        scale = effects.scale_between_gaps(compute, 1 / factor[compute])
        is_pace = is_slow_pace[effects.paces.computes.of_row[compute]].all()
        yield Fault(
            "iteration",
            name,
            rows,
            scale,
            ranks=tuple(members),
            iterations=tuple(find_distinct(computes.iteration[compute]).tolist()),
            phases=(("", compute_quantile(factor[compute], 0.5)),),
            detail=PACE if is_pace else PAUSE,
            lasts=_lasts_since_onset(evidence.work, computes.iteration[compute]),
            host=_find_host_in_longest(evidence, rows, scale),
        )


def _measure_pauses(effects: Effects) -> tuple[Floats, Bools]:
    """Measure pauses of single operations, and slowness of ranks throughout single iterations.

    Returns:
        factor: Time of each compute operation as a multiple of its time without pauses and
            slowness.
        is_slow_pace: For each row of ``effects.paces`` (a rank in an iteration), whether the rank
            is slow throughout the iteration. A rank that drifts, or has become slower for good, is
            compared with its changed pace.
    """
    paces = effects.paces
    rank_row, pace_of_compute = paces.ranks.of_row, paces.computes.of_row
    # Paces are relative to all ranks in the iteration, and to the median iteration of the rank.
    rise = paces.changes.estimate_rise(rank_row, paces.iteration)
    n_iterations = int(paces.iteration.max(initial=NONE)) + 1
    rise = rise - group_medians(paces.iteration, n_iterations, rise)[paces.iteration]
    rise = rise - group_medians(rank_row, len(paces.ranks), rise)[rank_row]
    pace = paces.pace / np.exp(rise)
    # The median time of a rank that became slower lies between its fast and its slow iterations.
    has_changed = paces.changes.has_changed[rank_row]
    usual_pace = group_medians(rank_row, len(paces.ranks), pace)[rank_row]
    pace = np.where(has_changed, pace / usual_pace, pace)
    size = np.bincount(pace_of_compute, minlength=len(paces.computes))
    is_slow_pace = effects.is_significant(pace, size, norm_variance=0.0)
    is_slow_pace &= ~has_changed | (pace > MIN_CHANGED_EFFECT)
    factor = effects.paused * np.where(is_slow_pace, pace, 1.0)[pace_of_compute]
    return factor, is_slow_pace


def find_drifts(evidence: Evidence) -> Iterator[Fault]:
    """Yield one fault for all ranks that become slower gradually, then one for each sudden change.

    Ranks that became slower in the same iteration share a fault.
    """
    paces, changes = evidence.effects.paces, evidence.effects.paces.changes
    rank_row = paces.ranks.of_row
    if changes.is_drifting.any():
        last_iteration = np.zeros(len(paces.ranks), np.int64)
        np.maximum.at(last_iteration, rank_row, paces.iteration)
        total_rise = changes.estimate_rise(np.arange(len(last_iteration)), last_iteration)
        is_slow_pace = changes.is_drifting[rank_row]
        yield _build_drift(evidence, "drift", changes.is_drifting, is_slow_pace, total_rise)
    for first_iteration in find_distinct(
        changes.jump_begin[changes.is_slowed].astype(np.int64)
    ).tolist():
        is_slowed = changes.is_slowed & (changes.jump_begin == first_iteration)
        is_slow_pace = is_slowed[rank_row] & (paces.iteration >= first_iteration)
        fault = _build_drift(
            evidence, f"slowed-{first_iteration}", is_slowed, is_slow_pace, changes.jump_change
        )
        first_compute = paces.computes.first[is_slow_pace]
        iterations = evidence.effects.computes.iteration[first_compute]
        yield replace(fault, kind="slowed", iterations=tuple(find_distinct(iterations).tolist()))


def _build_drift(
    evidence: Evidence, name: str, is_member: Bools, is_slow_pace: Bools, total_rise: Floats
) -> Fault:
    """Build the fault of ranks that became slower.

    Without the fault, the ranks stay as fast as they were at the start of the run.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        name: Name of the fault, for example ``drift``.
        is_member: Mask of the ranks that became slower, one value per group of ``paces.ranks``.
        is_slow_pace: Mask of the rows of ``paces``, one per rank and iteration, in which the rank
            is slower.
        total_rise: Rise in each rank's logarithmic pace over the run.
    """
    effects, paces = evidence.effects, evidence.effects.paces
    rise = paces.changes.estimate_rise(paces.ranks.of_row, paces.iteration)
    compute = np.flatnonzero(is_slow_pace[paces.computes.of_row])
    scale = np.exp(-rise[paces.computes.of_row[compute]])
    rank = effects.computes.rank[paces.computes.first][paces.ranks.first]
    return Fault(
        "drift",
        name,
        effects.rows[compute],
        effects.scale_usual_time(compute, scale),
        ranks=tuple(rank[is_member].tolist()),
        phases=(("", float(np.exp(total_rise[is_member].max()))),),
        detail=ALL_RANKS if is_member.all() else "",
    )


def find_slow_links(evidence: Evidence) -> Iterator[Fault]:
    """Yield faults for links that became slow, for always slow links, and for all transfers.

    Both directions between two stages share a fault. The three kinds of faults are:

    - Links that became slow during the run (:func:`_list_changed_links`).
    - Other links whose median transfer time is more than 1.3 times the median of the other links
      (:func:`_compare_links`).
    - All transfers. Without this fault, transfers take no time, so the saving is an upper bound.

    If the run has no transfers, only the first kind is reported.
    """
    work = evidence.work
    sender, receiver = work.link
    rows = np.flatnonzero((sender != NONE) & (evidence.own_ns > 0))
    yield from _list_changed_links(evidence, rows)
    if not len(rows):
        return
    ratio = _compare_links(evidence, rows)
    low, high = np.minimum(sender, receiver)[rows], np.maximum(sender, receiver)[rows]
    for changed in {change.stages for change in evidence.link_changes}:
        ratio[(low == changed[0]) & (high == changed[1])] = 0.0
    replica = work.replica[rows]
    slow = np.flatnonzero(ratio > _MIN_LINK_RATIO)
    for stages in find_distinct_rows(low[slow], high[slow]).T.tolist():
        transfer = slow[(low[slow] == stages[0]) & (high[slow] == stages[1])]
        yield Fault(
            "link",
            f"link-{stages[0]}-{stages[1]}",
            rows[transfer],
            1 / ratio[transfer],
            ranks=tuple(find_distinct(work.rank[rows[transfer]]).tolist()),
            link=(stages[0], stages[1]),
            phases=(("", float(ratio[transfer].max())),),
            detail=_name_only_replica(replica[transfer], replica),
        )
    yield Fault("link", "links", rows, np.zeros(len(rows)), bound=True)


def _name_only_replica(replica: Ints, all_replicas: Ints) -> str:
    """Return ``pipeline pN`` if a fault affects only one replica and the run has several, else "".

    Args:
        replica: Replicas that the fault affects, or -1 if unknown. May contain duplicates.
        all_replicas: Replicas in the run. May contain duplicates.
    """
    affected = find_distinct(replica).tolist()
    is_one_of_several = len(affected) == 1 and len(find_distinct(all_replicas)) > 1
    return f"pipeline p{affected[0]}" if is_one_of_several and affected[0] != NONE else ""


def _list_changed_links(evidence: Evidence, rows: Ints) -> Iterator[Fault]:
    """Yield a fault for each link between two stages that became slow during the run.

    Replicas in which the same link became slow share a fault.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        rows: Rows of the sends and receives in the work table.
    """
    for stages in sorted({change.stages for change in evidence.link_changes}):
        changes = [change for change in evidence.link_changes if change.stages == stages]
        yield _build_changed_link(evidence.work, rows, changes)


def _build_changed_link(work: Work, rows: Ints, changes: Sequence[LinkChange]) -> Fault:
    """Build the fault of a link that became slow during the run.

    Without the fault, transfers take as long as before the change. The fault reports the times of
    the replica with the largest rise. The fault starts with the first iteration in which any of the
    replicas is slow.

    Args:
        work: Work table of all ranks.
        rows: Rows of the sends and receives in the work table.
        changes: Changes of the link, one per replica in which it became slow. Must not be empty.
    """
    stages = changes[0].stages
    largest = max(changes, key=lambda change: change.after_ns - change.before_ns)
    since = min(change.first_iteration for change in changes)
    replicas = np.array([change.replica for change in changes], np.int64)
    sender, receiver = (column[rows] for column in work.link)
    on_link = np.minimum(sender, receiver) == stages[0]
    on_link &= np.maximum(sender, receiver) == stages[1]
    is_slow = on_link & (work.iteration[rows] >= since) & np.isin(work.replica[rows], replicas)
    remaining = max(largest.before_ns, 0) / max(largest.after_ns, 1)
    is_at_end = np.isin(work.stage, stages) & np.isin(work.replica, replicas)
    iterations = find_distinct(work.iteration)
    return Fault(
        "link",
        f"link-{stages[0]}-{stages[1]}",
        rows[is_slow],
        np.full(int(is_slow.sum()), remaining),
        ranks=tuple(find_distinct(work.rank[is_at_end]).tolist()),
        link=stages,
        iterations=tuple(iterations[iterations >= since].tolist()),
        phases=(("before ms", largest.before_ns / 1e6), ("after ms", largest.after_ns / 1e6)),
        detail=_name_only_replica(replicas, work.replica),
        change=largest,
    )


def _compare_links(evidence: Evidence, rows: Ints) -> Floats:
    """Return the median transfer time of each row's link, relative to the median of other links.

    Here a link is a combination of source stage, destination stage and replica. Only receives that
    started before their send show how long the transfer took. If any link became slow during the
    run, only iterations before the first change are used.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        rows: Rows of the sends and receives in the work table.

    Returns:
        Ratio of each row. The ratio is 0 if the transfer time of its link is unknown, or if the
        transfer times of all other links are unknown.
    """
    work = evidence.work
    sender, receiver = work.link
    links = group_rows(sender[rows], receiver[rows], work.replica[rows])
    own_ns, length_ns = evidence.own_ns[rows], work.end_ns[rows] - work.start_ns[rows]
    is_shown = has_role(work.role[rows], (Role.RECV_F, Role.RECV_B)) & (length_ns > own_ns)
    if evidence.link_changes:
        first_change = min(change.first_iteration for change in evidence.link_changes)
        is_shown &= work.iteration[rows] < first_change
    moved_ns = own_ns[is_shown].astype(np.float64)
    link_ns = group_medians(links.of_row[is_shown], len(links), moved_ns)
    measured = np.flatnonzero(~np.isnan(link_ns))
    norm_ns = np.full(len(links), np.nan)
    norm_ns[measured] = compute_median_of_others(
        np.zeros(len(measured), np.int64), link_ns[measured]
    )
    return np.asarray(np.nan_to_num(link_ns / norm_ns)[links.of_row], np.float64)


def list_collectives(evidence: Evidence) -> Iterator[Fault]:
    """Yield one fault per kind of collective.

    - If the kind became slow during the run, its collectives take as long as before without the
      fault (:func:`_find_slowed_collectives`).
    - Otherwise, its collectives take no time without the fault, so the saving is an upper bound.
      Only collectives whose transfer time is positive are included.
    """
    work = evidence.work
    rows = np.flatnonzero((work.role == Role.COLLECTIVE) & (evidence.own_ns > 0))
    for kind, members in list_rows_by_value(work.kind[rows]):
        name = work.kinds[kind].name
        slowed = _find_slowed_collectives(evidence, name, rows[members])
        yield slowed or Fault(
            "collective",
            f"collective-{name}",
            rows[members],
            np.zeros(len(members)),
            detail=name,
            bound=True,
        )


def _find_slowed_collectives(evidence: Evidence, name: str, rows: Ints) -> Fault | None:
    """Return the fault of one kind of collective that became slow during the run, or None.

    The transfer time of a stage in an iteration is the lower median over its collectives. A stage
    became slow if the logarithms of these times jump significantly (:func:`.fit_jumps`). Without
    the fault, its collectives take as long as before the jump. The fault reports the times of the
    stage with the largest jump.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        name: Name of the collective kind.
        rows: Rows of the work table with collectives of this kind and a positive transfer time.
    """
    work = evidence.work
    parts = group_rows(work.stage[rows], work.iteration[rows])
    transfer_ns = group_medians(parts.of_row, len(parts), evidence.own_ns[rows].astype(np.float64))
    stages = group_rows(work.stage[rows[parts.first]])
    jumps, is_after = _fit_stage_jumps(stages, work.iteration[rows[parts.first]], transfer_ns)
    if not jumps.is_significant.any():
        return None
    before_ns, after_ns = (
        group_medians(stages.of_row[is_side], len(stages), transfer_ns[is_side])
        for is_side in (~is_after, is_after)
    )
    is_slow_part = jumps.is_significant[stages.of_row] & is_after
    is_slow = is_slow_part[parts.of_row]
    stage_of_slow = stages.of_row[parts.of_row[is_slow]]
    largest = int(np.argmax(np.where(jumps.is_significant, jumps.change, -np.inf)))
    return _build_slowed_fault(
        work,
        name,
        rows[is_slow],
        (before_ns / after_ns)[stage_of_slow],
        (float(before_ns[largest]), float(after_ns[largest])),
    )


def _fit_stage_jumps(stages: Groups, iteration: Ints, transfer_ns: Floats) -> tuple[Jumps, Bools]:
    """Fit a jump to the logarithms of each stage's transfer times.

    Args:
        stages: Groups of transfer times with the same stage.
        iteration: Iteration of each transfer time.
        transfer_ns: Transfer times in ns.

    Returns:
        jumps: The jump of each stage.
        is_after: Mask of the transfer times after the jump of their stage.
    """
    number = group_rows(iteration).of_row.astype(np.float64)
    smooth = replace_spikes(stages.of_row, number, np.log(transfer_ns))
    jumps = fit_jumps(stages.of_row, number, smooth)
    return jumps, number >= jumps.position[stages.of_row]


def _build_slowed_fault(
    work: Work, name: str, slow_rows: Ints, scale: Floats, times_ns: tuple[float, float]
) -> Fault:
    """Build the fault of collectives that became slow during the run.

    Args:
        work: Work table of all ranks.
        name: Name of the collective kind.
        slow_rows: Rows of the slow collectives.
        scale: For each of these rows, the time without the fault as a fraction of its time.
        times_ns: Transfer times before and after the largest jump.
    """
    slow_stages = find_distinct(work.stage[slow_rows]).tolist()
    all_stages = find_distinct(work.stage[work.role == Role.COLLECTIVE])
    is_single = len(slow_stages) == 1 and len(all_stages) > 1 and slow_stages[0] != NONE
    return Fault(
        "collective",
        f"collective-{name}",
        slow_rows,
        scale,
        stage=slow_stages[0] if is_single else None,
        iterations=tuple(find_distinct(work.iteration[slow_rows]).tolist()),
        phases=(("before ms", times_ns[0] / 1e6), ("after ms", times_ns[1] / 1e6)),
        detail=name,
        lasts=True,
    )


def find_late_launches(evidence: Evidence) -> Iterator[Fault]:
    """Yield faults for late launches: one per rank, one for all ranks, and one for the profiler.

    An operation that is launched late starts late even though its input is ready. If a rank
    launches a collective late, all other members of the collective wait for this rank.

    Only the 4 ranks with the largest total delay get separate faults. The fault of all ranks is
    yielded only if several ranks launch late.
    """
    work, late_ns = evidence.work, evidence.late_ns
    rows = np.flatnonzero(late_ns > 0)
    ranks = order_by_loss(work.rank[rows], late_ns[rows].astype(np.float64))
    for rank in ranks[:_MAX_LATE_RANKS]:
        delayed = rows[work.rank[rows] == rank]
        fault = _build_launch_fault(evidence, f"launch-{rank}", delayed, late_ns)
        yield _remove_launch_steps(evidence, fault)
    if len(ranks) > 1:
        fault = _build_launch_fault(evidence, "launches", rows, late_ns)
        yield _remove_launch_steps(evidence, fault)
    delayed = np.flatnonzero(evidence.profiler_ns > 0)
    if len(delayed):
        fault = _build_launch_fault(evidence, "profiler", delayed, evidence.profiler_ns)
        yield replace(fault, detail=PROFILER)


def _remove_launch_steps(evidence: Evidence, fault: Fault) -> Fault:
    """Return a fault of late launches whose removal also removes the launch steps of its ranks.

    If an operation has a launch step, the step is its delay, so ``late_ns`` of the operation
    becomes 0.
    """
    steps = evidence.launch_steps
    of_ranks = steps.row[np.isin(evidence.work.rank[steps.row], fault.ranks)]
    has_step = np.isin(fault.delayed, steps.operation)
    return replace(
        fault,
        rows=of_ranks,
        scale=np.zeros(len(of_ranks)),
        late_ns=np.where(has_step, 0, fault.late_ns),
    )


def find_late_starts(evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault for each rank that begins iterations late, then one for all late ranks.

    Only the 4 ranks with the largest total delay get separate faults. The fault of all late ranks
    is yielded only if several ranks are late.
    """
    work, late_ns = evidence.work, evidence.start_late_ns
    rows = np.flatnonzero(late_ns > 0)
    ranks = order_by_loss(work.rank[rows], late_ns[rows].astype(np.float64))
    groups = [(f"late-start-{rank}", [rank]) for rank in ranks[:_MAX_LATE_RANKS]]
    if len(ranks) > 1:
        groups.append(("late-starts", sorted(ranks)))
    for name, members in groups:
        delayed = rows[np.isin(work.rank[rows], members)]
        yield Fault(
            "late-start",
            name,
            ranks=tuple(members),
            iterations=tuple(find_distinct(work.iteration[delayed]).tolist()),
            lasts=_lasts_since_onset(work, work.iteration[delayed]),
            phases=(("late by ms", compute_median(late_ns[delayed]) / 1e6),),
            delayed=delayed,
            late_ns=late_ns[delayed],
        )


def _build_launch_fault(evidence: Evidence, name: str, delayed: Ints, late_ns: Ints) -> Fault:
    """Build the fault of late launches. Without the fault, the delayed rows start on time.

    ``host`` describes what the host was doing during the longest delay. If communication has more
    than half of the total delay, ``collective`` is the phase of the row with the longest delay.
    Otherwise it is "".

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        name: Name of the fault, for example ``launch-3``.
        delayed: Delayed rows of the work table.
        late_ns: Delay of each row of the work table.
    """
    work, lost_ns = evidence.work, late_ns[delayed]
    longest, longest_ns = int(delayed[lost_ns.argmax()]), int(lost_ns.max())
    until_ns = int(work.start_ns[longest])
    is_in_collectives = 2 * lost_ns[work.communicates[delayed]].sum() > lost_ns.sum()
    return Fault(
        "launch",
        name,
        ranks=tuple(find_distinct(work.rank[delayed]).tolist()),
        iterations=tuple(find_distinct(work.iteration[delayed]).tolist()),
        lasts=_lasts_since_onset(work, work.iteration[delayed]),
        delayed=delayed,
        late_ns=lost_ns,
        collective=work.kinds[work.kind[longest]].phase if is_in_collectives else "",
        host=find_host_activity(
            evidence.hosts, int(work.rank[longest]), until_ns - longest_ns, until_ns, longest_ns
        ),
    )


def find_launch_gaps(evidence: Evidence) -> Iterator[Fault]:
    """Yield the fault of ranks with more launch gaps than others, and the fault of all launch gaps.

    A launch gap is time inside an operation during which no kernel runs because launching kernels
    takes longer than executing them. Time during which only communication kernels run is not a
    launch gap. If it is unknown whether communication kernels ran, ``detail`` of the faults is
    :data:`.COMPUTE_GAPS`.

    The gap fraction of a rank is its total gap time divided by the time of its compute operations.

    1. The first fault covers the ranks whose gap fraction exceeds the median of the other ranks by
       more than 5 percentage points. Without this fault, their gaps shrink to that median.
    2. The second fault covers all ranks whose gap fraction is above 5 %. Without this fault, they
       have no gaps, so the saving is an upper bound. The second fault is omitted if the first fault
       already includes all of its ranks.
    """
    computes = evidence.effects.computes
    gap_ns, length_ns = computes.gap_ns, computes.gap_ns + computes.time_ns
    if evidence.launch_share is not None:
        gap_ns = gap_ns * evidence.launch_share[computes.rows]
    ranks = group_rows(computes.rank)
    fraction = np.bincount(ranks.of_row, gap_ns) / np.bincount(ranks.of_row, length_ns)
    norm = compute_median_of_others(np.zeros(len(fraction), np.int64), fraction)
    norm = np.where(np.isnan(norm), fraction, norm)
    has_more = fraction - norm > _MIN_GAP_FRACTION
    if has_more.any():
        # Shorten the gaps until they are as large relative to the kernels as on other ranks.
        remaining = norm * (1 - fraction) / np.maximum(fraction * (1 - norm), 1e-9)
        scale = 1 - (1 - remaining[ranks.of_row]) * gap_ns / length_ns
        yield _build_gap_fault(evidence, "launch-gaps-of-few", gap_ns, has_more, scale)
    has_gaps = fraction > _MIN_GAP_FRACTION
    if (has_gaps & ~has_more).any():
        fault = _build_gap_fault(evidence, "launch-gaps", gap_ns, has_gaps, 1 - gap_ns / length_ns)
        yield replace(fault, bound=True)


def _build_gap_fault(
    evidence: Evidence, name: str, gap_ns: Floats, is_member: Bools, scale: Floats
) -> Fault:
    """Build the fault of launch gaps on some ranks.

    The rows of the fault are the compute operations on those ranks that contain launch gaps. The
    reported number is the fraction of their total time that consists of launch gaps.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        name: Name of the fault, for example ``launch-gaps``.
        gap_ns: Total length of the launch gaps in each compute operation, in ns.
        is_member: Mask of the ranks that the fault affects, one value per rank that has compute
            operations, ascending.
        scale: Time of each compute operation without the fault, as a fraction of its measured time.
    """
    computes = evidence.effects.computes
    ranks = group_rows(computes.rank)
    compute = np.flatnonzero((gap_ns > 0) & is_member[ranks.of_row])
    length_ns = computes.gap_ns[compute] + computes.time_ns[compute]
    return Fault(
        "launch-gaps",
        name,
        computes.rows[compute],
        scale[compute],
        ranks=tuple(computes.rank[ranks.first[is_member]].tolist()),
        phases=(("", float(gap_ns[compute].sum() / length_ns.sum())),),
        detail=COMPUTE_GAPS if evidence.launch_share is None else "",
    )


#: Functions that find faults, one per shape.
SHAPES: tuple[Callable[[Evidence], Iterable[Fault]], ...] = (
    find_slow_ranks,
    find_slow_stages,
    find_slow_microbatches,
    find_slow_iterations,
    find_pauses,
    find_drifts,
    find_slow_links,
    list_collectives,
    find_late_launches,
    find_late_starts,
    find_launch_gaps,
)


def _lasts_since_onset(work: Work, iteration: Ints) -> bool:
    """Return whether a fault began during the run and occurs in every later iteration.

    The run must have at least 8 iterations, with at least 2 before and 2 after the onset. In
    shorter runs, an onset could be due to chance, so the result is False.

    Args:
        work: Work table of all ranks.
        iteration: Iterations in which the fault occurs. May contain duplicates.
    """
    all_iterations, affected = find_distinct(work.iteration), find_distinct(iteration)
    if len(all_iterations) < MIN_JUMP_POINTS or len(affected) < MIN_SIDE:
        return False
    n_before = len(all_iterations) - len(affected)
    return n_before >= MIN_SIDE and bool((all_iterations[n_before:] == affected).all())


def build_token_fault(n_more: str, rank: int, depth: int) -> Fault:
    """Build the fault for a first stage that waits for tokens because too few chunks are in flight.

    Args:
        n_more: Number of additional chunks in flight without the fault: :data:`.ONE_MORE` or
            :data:`.ENOUGH`.
        rank: A rank of the first stage that waits for tokens.
        depth: Usual number of chunks in flight.
    """
    return Fault(
        "token",
        f"token-{n_more}",
        ranks=(rank,),
        stage=0,
        phases=(("", float(depth)),),
        detail=n_more,
        bound=n_more == ENOUGH,
    )


def _pair_phases(evidence: Evidence, kind: Ints, ratio: Floats) -> tuple[tuple[str, float], ...]:
    """Return (reported phase, ratio) for each kind of work."""
    kinds = evidence.work.kinds
    return tuple((kinds[k].phase, r) for k, r in zip(kind.tolist(), ratio.tolist(), strict=True))


def select_host_activities(hosts: HostActivities, name_id: Ints, phase: Ints) -> HostActivities:
    """Select host activities that can explain a delay, without duplicates.

    Two groups of activities are dropped:

    - Ranges that have the name of an operation. Calls are kept.
    - Activities before the late launch of an operation that is not an optimizer. Activities before
      late launches of collectives, and during gaps inside operations, are kept.

    Args:
        hosts: All recorded activities.
        name_id: Name ids of operations.
        phase: Phase of each row of the operations table.
    """
    if not len(hosts):
        return hosts
    is_new = (hosts.call == 1) | ~np.isin(hosts.name_id, name_id)
    is_optimizer = np.append(phase, NONE)[hosts.operation] == Phase.OPTIMIZER
    hosts = hosts.take(((hosts.operation == NONE) | is_optimizer) & is_new)
    columns = (hosts.rank, hosts.start_ns, hosts.end_ns, hosts.call, hosts.name_id)
    return hosts.take(group_rows(*columns).first)


def find_host_activity(
    hosts: HostActivities, rank: int, start_ns: int, end_ns: int, lost_ns: float
) -> tuple[int, int]:
    """Find the call and the range that a host was in for at least half of the lost time.

    The time in a call or range is the total overlap of all activities of this name with the
    interval. If several names qualify, the one with the shortest total duration is returned.

    Args:
        hosts: Activities of launching threads.
        rank: Rank whose launching threads are searched.
        start_ns: Start of the interval during which time was lost.
        end_ns: End of the interval.
        lost_ns: Time that was lost in the interval.

    Returns:
        Name ids of the call and of the range. Each is -1 if no name qualifies.
    """
    overlap_ns = np.minimum(hosts.end_ns, end_ns) - np.maximum(hosts.start_ns, start_ns)
    overlaps = (hosts.rank == rank) & (overlap_ns > 0)

    def find_shortest(is_call: int) -> int:
        """Return the name id of the shortest call (1) or range (0) that qualifies, or -1."""
        rows = np.flatnonzero(overlaps & (hosts.call == is_call))
        names = group_rows(hosts.name_id[rows])
        spent_ns = group_sum(names.of_row, len(names), overlap_ns[rows])
        duration_ns = group_sum(names.of_row, len(names), (hosts.end_ns - hosts.start_ns)[rows])
        candidates = np.flatnonzero(2 * spent_ns >= lost_ns)
        if not len(candidates):
            return NONE
        shortest = candidates[duration_ns[candidates].argmin()]
        return int(hosts.name_id[rows[names.first[shortest]]])

    return find_shortest(1), find_shortest(0)


def _find_host_in_longest(evidence: Evidence, rows: Ints, scale: Floats) -> tuple[int, int]:
    """Return the call and range that the host was in during the operation that loses the most time.

    :func:`find_host_activity` describes the result.

    Args:
        evidence: Measured effects, delays and other evidence about the run.
        rows: Rows of the work table. Must not be empty.
        scale: Time of each row without the fault, as a fraction of its measured time.
    """
    work = evidence.work
    lost_ns = (work.end_ns - work.start_ns)[rows] * (1 - scale)
    longest = int(rows[lost_ns.argmax()])
    start_ns, end_ns = int(work.start_ns[longest]), int(work.end_ns[longest])
    rank, most_ns = int(work.rank[longest]), float(lost_ns.max())
    return find_host_activity(evidence.hosts, rank, start_ns, end_ns, most_ns)
