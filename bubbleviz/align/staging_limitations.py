"""Limitations of staging: what could not be inferred of stages, pipelines and iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.merge import JoinedRank
from bubbleviz.align.pipelines import Parallel, RankNumbers
from bubbleviz.align.rank_chains import lack_many
from bubbleviz.align.waits import Arrivals, following, usual_waits, waits_of_neighbours
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of, sorted_rows, without
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.model.texts import counted, listed, some_of

# Checks of an order of stages: how far neighbours are apart, and what contradicts them.


def slacks(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints
) -> list[tuple[int, int, int]]:
    """Return (virtual stage, distance to the next one in ns, work of one of them in ns).

    The distance is the time that a microbatch is away from the one and neither away from nor
    worked on by the next, of the microbatch for which it is least: two transfers if nobody is late.
    Replicas of a stage are taken together.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    every = usual_waits(operations.changed(chunk=virtual_stage), inputs)
    neighbours = []
    for upper, above, below in waits_of_neighbours(every):
        i, j = following(above, below)
        # At the turn of a V one rank holds both, and may do other work in between.
        if len(i) and not np.isin(above.rank, below.rank).any():
            slack = above.waited_ns[i] - below.waited_ns[j] - below.worked_ns[j]
            worked = np.minimum(above.worked_ns[i], below.worked_ns[j])
            neighbours.append((upper, int(slack.min()), int(worked.min())))
    return neighbours


def contradicted(
    operations: RankOperations, virtual_stage: Ints, iteration: Ints, machine: Ints, pipeline: Ints
) -> int:
    """Return how many neighbours in the order of stages cannot be neighbours of a pipeline.

    Two ranks of one machine share a clock, and there a forward cannot end before the one
    upstream has, and its own work on that input is done. A span may begin with kernels that need
    no input, so ends are compared: a pair counts if most of its microbatches end downstream less
    than a quarter of their own work after upstream, as replicas of one stage (data or tensor
    parallel) do.

    Args:
        operations: of all ranks on one clock.
        virtual_stage: of each operation; -1 unknown.
        iteration: of each operation over all ranks.
        machine: a number for each rank's clock.
        pipeline: of each rank; -1 where replicas cannot be distinguished.
    """
    rows = np.flatnonzero(
        (operations.phase == Phase.F)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
        & (iteration >= 0)
    )
    rows = rows[pipeline[operations.rank[rows]] >= 0]
    if len(rows) == 0:
        return 0
    of_row = operations.rank[rows]
    machine = machine[of_row]
    microbatch = groups_of(
        pipeline[of_row], iteration[rows], operations.microbatch[rows], operations.sequence[rows]
    ).of_row
    place = sorted_rows(microbatch, virtual_stage[rows])
    above, below = place[:-1], place[1:]
    neighbours = (
        (microbatch[above] == microbatch[below])
        & (virtual_stage[rows][below] == virtual_stage[rows][above] + 1)
        & (machine[above] == machine[below])
        & (operations.rank[rows][above] != operations.rank[rows][below])
    )
    above, below = above[neighbours], below[neighbours]
    end_ns, busy_ns = operations.end_ns[rows], operations.busy_ns[rows]
    early = end_ns[below] < end_ns[above] + busy_ns[below] // 4
    stage = virtual_stage[rows][above]
    pairs = np.bincount(stage, minlength=1)
    return int((2 * np.bincount(stage[early], minlength=len(pairs)) > pairs).sum())


#: Ranks that a limitation lists.
_LISTED = 8
CONTRADICTED = Limitation(
    "stages of ranks",
    "the order that the waiting times give contradicts the data dependencies, as replicas of one "
    "stage (data or tensor parallel) do; set the order with --order, or the replicas with "
    "--parallel",
)
UNPROVEN = Limitation(
    "stages of ranks",
    "nothing recorded shows whether the ranks are stages of a pipeline or replicas of one: no "
    "range names a stage or a transfer, and all ranks run the same order, as data-parallel "
    "replicas do; "
    "set the order of stages with --order, or the replicas with --parallel",
)
BY_NUMBER = Limitation(
    "stages of ranks",
    "ranks that run alike are put into stages in the order of hosts, devices and processes, as "
    "waits alone do not tell them apart: of the orders in which frameworks number ranks just one "
    "fits; set --parallel tp=,pp=,dp= to be sure",
)
GIVEN_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order given with --order or --parallel contradicts the data dependencies, or how long "
    "microbatches are away from the ranks; --parallel counts ranks as names do, else by host, "
    "device and process",
    kind=LimitationKind.STAGES_CONTRADICTED,
)
REPLICAS = Limitation(
    "pipelines",
    "replicas of each stage run the same microbatches, and neither names nor times show which "
    "ranks form one pipeline, so clocks are bounded less; set --parallel tp=,pp=,dp=",
)
STAGES_MISSING = Limitation(
    "stages without a profile",
    "range names mention virtual stages that no profile holds, or transfers with them; ratios are "
    "incomplete",
)


def stages_unknown(operations: RankOperations, stage_of_rank: Ints) -> tuple[Limitation, ...]:
    """Return a limitation for ranks that work, but on an unknown stage."""
    working = distinct(operations.rank[among(operations.phase, COUNTED)])
    unknown = int((stage_of_rank[working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "how long microbatches are away from them gives no order; set the order with --order, or "
        "replicas of a stage with --parallel",
        unknown,
    )
    return (note,) if unknown else ()


def world_size(ranks: Sequence[JoinedRank]) -> int:
    """Return how many ranks the run has, as its profiles say; 0 unknown."""
    return max((rank.local.world_size or 0 for rank in ranks), default=0)


def ranks_missing(
    numbers: RankNumbers, parallel: Parallel | None, world: int
) -> tuple[Limitation, ...]:
    """Return a limitation for ranks of the run that are known to be in no profile.

    Args:
        numbers: of the ranks that have one.
        parallel: sizes of the run, as the user gives them.
        world: number of ranks of the run, as profiles say; 0 unknown.
    """
    if parallel is None and world > len(numbers.number):
        return _of_world(numbers, world)
    absent = _absent_ranks(numbers, parallel)
    if len(absent) == 0:
        return ()
    ranks = some_of([str(rank) for rank in absent.tolist()], _LISTED)
    reason = f"no profile holds ranks {ranks}; ratios are incomplete"
    return (Limitation("ranks without a profile", reason, len(absent)),)


def stages_lacking(pipeline: Ints, stage: Ints) -> tuple[Limitation, ...]:
    """Return a limitation for pipelines without a rank of a stage that others have.

    Args:
        pipeline: of each rank; -1 unknown.
        stage: likewise.
    """
    known = (pipeline >= 0) & (stage >= 0)
    if not known.any():
        return _replicas_lacking(stage[stage >= 0])
    of_pipeline, of_stage = distinct_rows(pipeline[known], stage[known])
    number, pipelines = np.unique(of_pipeline, return_inverse=True)
    numbers, stages = np.unique(of_stage, return_inverse=True)
    held = np.zeros((len(number), len(numbers)), bool)
    held[pipelines.reshape(-1), stages.reshape(-1)] = True
    lacking = ~held.all(axis=1)
    if not lacking.any():
        return ()
    absent = np.argwhere(~held)
    places = some_of([f"{numbers[s]} of pipeline {number[p]}" for p, s in absent], _LISTED)
    reason = (
        f"{counted(int(lacking.sum()), 'pipeline')} of {len(number):,} lack ranks of stages that "
        f"the others have (stage {places}); ratios are incomplete"
    )
    return (Limitation("ranks without a profile", reason, len(absent)),)


def _replicas_lacking(stage: Ints) -> tuple[Limitation, ...]:
    """Return the same where pipelines are unknown, for stages with fewer replicas than most."""
    stages, sizes = np.unique(stage, return_counts=True)
    most = int(sizes.max(initial=0))
    lacking = np.flatnonzero(sizes < most)
    if not len(lacking) or lack_many(sizes.tolist()):
        return ()
    places = some_of([f"{sizes[at]} of stage {stages[at]}" for at in lacking.tolist()], _LISTED)
    reason = f"profiles hold {most:,} ranks of most stages, but {places}; ratios are incomplete"
    return (Limitation("ranks without a profile", reason, int((most - sizes[lacking]).sum())),)


def _of_world(numbers: RankNumbers, world: int) -> tuple[Limitation, ...]:
    """Return the limitation where a run has more ranks than its profiles hold."""
    count = len(numbers.number)
    which = ""
    within = numbers.named and int(numbers.number.max(initial=0)) < world
    if within and world - count < count:
        absent = without(np.arange(world), numbers.number)
        ranks = some_of([str(rank) for rank in absent.tolist()], _LISTED)
        reason = (
            f"no profile holds ranks {ranks} of the {world:,} of the run; ratios are incomplete"
        )
        return (Limitation("ranks without a profile", reason, world - count),)
    if within:
        numbers_held = listed(map(str, np.sort(numbers.number).tolist()), _LISTED)
        which = f" (rank{'' if count == 1 else 's'} {numbers_held})"
    reason = (
        f"the profiles hold {count:,}{which} of the {world:,} ranks of the run; ratios are "
        "incomplete"
    )
    return (Limitation("ranks without a profile", reason, world - count),)


def _absent_ranks(numbers: RankNumbers, parallel: Parallel | None) -> Ints:
    """Return the ranks of the run that are known to be in no profile.

    Without the sizes of the run these are gaps in the ranks that names give. Ranks that follow in
    equal steps are taken for one of several pipelines.
    """
    number = np.sort(numbers.number)
    if parallel is not None:
        return without(np.arange(parallel.ranks), number)
    if not numbers.named or len(distinct(np.diff(number))) <= 1:
        return np.empty(0, np.int64)
    step = np.diff(number).min()
    return without(np.arange(number[0], number[-1], step), number)


def reaches_beyond(operations: RankOperations, virtual_stage: Ints) -> bool:
    """Return whether the first virtual stage receives activations, or the last one gradients."""
    first = (operations.phase == Phase.RECV_F) & (virtual_stage == 0)
    last = (operations.phase == Phase.RECV_B) & (virtual_stage == virtual_stage.max(initial=NONE))
    ran = (operations.has_span == 1) & (operations.microbatch >= 0) & (virtual_stage >= 0)
    return bool((ran & (first | last)).any())


def transfers_to_itself(operations: RankOperations, virtual_stage: Ints) -> bool:
    """Return whether a rank transfers to or from a virtual stage that it alone holds.

    A rank needs no transfer to itself, so stages lie between the two.
    """
    known = among(operations.phase, COUNTED) & (virtual_stage >= 0)
    if not known.any():
        return False
    rank, stage = distinct_rows(operations.rank[known], virtual_stage[known])
    # By virtual stage, the only rank that holds it; none before the first and after the last.
    only = np.full(int(stage.max()) + 3, NONE, np.int64)
    holders = np.bincount(stage, minlength=len(only) - 2)
    single = holders[stage] == 1
    only[stage[single] + 1] = rank[single]
    before = among(operations.phase, (Phase.RECV_F, Phase.SEND_B))
    after = among(operations.phase, (Phase.RECV_B, Phase.SEND_F))
    ran = (operations.has_span == 1) & (operations.microbatch >= 0) & (virtual_stage >= 0)
    rows = np.flatnonzero(ran & (before | after))
    peer = np.where(before[rows], virtual_stage[rows] - 1, virtual_stage[rows] + 1)
    return bool((only[peer + 1] == operations.rank[rows]).any())


def transfers_alone(operations: RankOperations, stage_of_rank: Ints) -> bool:
    """Return whether the ranks hold one stage, and transfer with stages that no profile holds.

    One rank may hold several virtual stages, such as the first and the last one of a V.
    """
    working = distinct(operations.rank[among(operations.phase, COUNTED)])
    stages = distinct(stage_of_rank[working])
    if len(working) != 1 and (len(stages) != 1 or stages[0] < 0):
        return False
    ran = (operations.has_span == 1) & np.isin(operations.rank, working)
    return bool((ran & among(operations.phase, TRANSFERS)).any())


def stages_far_apart(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints
) -> tuple[Limitation, ...]:
    """Return a limitation where microbatches are away long enough for a stage in between."""
    far = [
        f"{upper} and {upper + 1}"
        for upper, slack_ns, worked_ns in slacks(operations, inputs, virtual_stage)
        if slack_ns > worked_ns
    ]
    reason = (
        f"between virtual stages {', '.join(far)} every microbatch is away for longer than an F "
        "and a B take; if a server has no profile here, ratios and stages leave it out"
    )
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    return (Limitation("stages that may be missing", reason, len(far), kind),) if far else ()
