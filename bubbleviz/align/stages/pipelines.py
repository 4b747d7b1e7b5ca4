"""Pipelines: groups of ranks that pass microbatches to each other, and replicas of a stage.

Tensor- and data-parallel replicas of a stage run the same microbatches at the same time. Megatron
numbers the ranks so that tensor-parallel ones are next to each other and pipeline stages farthest
apart (megatron/core/parallel_state.py, order ``tp-dp-pp``)::

    rank = tp + TP (dp + DP pp)           one pipeline for each (dp, tp)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.join import JoinedRank, JoinedRecordings
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping
from bubbleviz.model.arguments import refuse_wrong_types
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.profile import get_pid
from bubbleviz.model.texts import format_count, make_natural_key

#: Maximum number of ranks of a run.
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Parallel:
    """Parallel sizes of a run whose ranks are numbered ``tp + TP (dp + DP pp)``.

    Sizes below 1, and runs of more than a million ranks, raise UsageError.

    Attributes:
        tp: Number of tensor-parallel ranks, including context-parallel ones.
        pp: Number of pipeline-parallel ranks.
        dp: Number of data-parallel replicas.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError for impossible sizes."""
        refuse_wrong_types(Parallel, vars(self))
        if min(self.tp, self.pp, self.dp) < 1 or self.ranks > _MAX_RANKS:
            raise UsageError(
                f"--parallel tp={self.tp},pp={self.pp},dp={self.dp}: must make 1 to "
                f"{_MAX_RANKS:,} ranks"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks of the whole run."""
        return self.tp * self.pp * self.dp

    def stage(self, number: Ints) -> Ints:
        """Return the stage (pipeline-parallel rank) of each rank number."""
        return number // (self.tp * self.dp)

    def pipeline(self, number: Ints) -> Ints:
        """Return the pipeline of each rank number."""
        return number % (self.tp * self.dp)

    def reducing(self, number: Ints) -> Ints:
        """Return the group of each rank number. The ranks of a group reduce gradients together."""
        return self.stage(number) * self.tp + number % self.tp


@dataclass(frozen=True)
class RankNumbers:
    """Number of each rank in the run, and whether names in the profiles give these numbers."""

    number: Ints
    from_names: bool

    def reordered(self, order: Sequence[int]) -> RankNumbers:
        """Return the same numbers, reassigned so that they ascend along an order of ranks.

        Args:
            order: Indices of the ranks in pipeline order. If empty, the numbers do not change.
        """
        if not order:
            return self
        number = np.empty_like(self.number)
        number[np.array(order)] = np.sort(self.number)
        return replace(self, number=number)


def get_rank_numbers(ranks: Sequence[JoinedRank]) -> RankNumbers:
    """Return the rank numbers in names, or else the index by host, device and process.

    Numbers in names are used only if every rank has one and no two are equal. Otherwise the ranks
    are numbered from 0, sorted by host (naturally), device id and process id.
    """
    global_ranks = [rank.local.global_rank for rank in ranks]
    numbers = [number for number in global_ranks if number is not None]
    if len(set(numbers)) == len(ranks):
        return RankNumbers(np.array(numbers, np.int64), from_names=True)
    keys = [(make_natural_key(r.host), r.local.device_id, get_pid(r.local.process)) for r in ranks]
    order = sorted(range(len(ranks)), key=lambda i: keys[i])
    return RankNumbers(grouping.invert_permutation(np.array(order, np.int64)), from_names=False)


def refuse_misfit(parallel: Parallel, numbers: RankNumbers) -> None:
    """Refuse ranks that do not match the sizes of the run.

    Raises:
        MismatchError: A rank number is too large for the run, or there are fewer ranks than in the
            run and names do not show which ones are missing.
    """
    count, largest = len(numbers.number), int(numbers.number.max(initial=0))
    if largest >= parallel.ranks or (count < parallel.ranks and not numbers.from_names):
        ranks = f"rank {largest}" if numbers.from_names else format_count(count, "rank")
        raise MismatchError(
            f"--parallel makes {format_count(parallel.ranks, 'rank')} (tp={parallel.tp}, "
            f"pp={parallel.pp}, dp={parallel.dp}), but the profiles contain {ranks}; "
            "give the sizes of the run"
        )


def get_declared_pipelines(recordings: JoinedRecordings) -> Ints | None:
    """Return the pipeline of each rank from tables of operations or file names.

    The result is None if any rank has no pipeline there.
    """
    pipeline = lookup_declared(recordings, "pipeline")
    return None if (pipeline < 0).any() else pipeline


def lookup_declared(recordings: JoinedRecordings, name: str) -> Ints:
    """Return the stage or pipeline of each rank from tables of operations, or else file names.

    File names are used only if no rank comes from a table that declares it, and if the pairs
    (stage, pipeline) in the file names are distinct and leave out no stage. Pipelines from file
    names are renumbered from 0 without gaps.

    Args:
        recordings: The recordings.
        name: ``stage`` or ``pipeline``.

    Returns:
        Number for each rank, or -1 if there is none.
    """
    declared = [getattr(rank.local.declared, name, None) for rank in recordings.ranks]
    places = np.array(
        [rank.local.stage_in_file_name for rank in recordings.ranks], np.int64
    ).reshape(-1, 2)
    stages = grouping.find_distinct(places[:, 0])
    # The numbers in file names may be sizes of the run instead of stages and pipelines. Ranks then
    # coincide, or a stage is missing.
    is_distinct = len(grouping.group_rows(*places.T)) == len(places)
    is_usable = is_distinct and (stages == np.arange(len(stages))).all()
    if is_usable and not any(rank.local.declared for rank in recordings.ranks):
        return np.unique(places[:, int(name == "pipeline")], return_inverse=True)[1].reshape(-1)
    return np.array([NONE if number is None else number for number in declared], np.int64)


def find_pipelines(stage: Ints, numbers: RankNumbers, world: int = 0) -> Ints:
    """Find the pipeline of each rank if the user gives no sizes of the run.

    If every stage has one rank, all ranks are in pipeline 0. Otherwise replicas are distinguished
    only if names number the ranks and the stages are in Megatron's order (stage by stage, with
    equally many ranks each). Some ranks may be missing. The pipeline of a rank is then its index
    among the ranks of its stage, in order of rank numbers and including missing ranks.

    Args:
        stage: Stage of each rank, or -1 for a rank without forwards and backwards.
        numbers: Numbers of the ranks.
        world: Number of ranks of the run, or 0 if unknown.

    Returns:
        Pipeline of each rank, or -1 if unknown.
    """
    pipeline = np.zeros(len(stage), np.int64)
    working = np.flatnonzero(stage >= 0)
    of_stage = np.unique(stage[working], return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(of_stage)
    if len(working) == 0 or sizes.max() == 1:
        return pipeline
    pipeline[:] = NONE
    position = grouping.invert_permutation(np.argsort(numbers.number[working]))
    if not numbers.from_names:
        return pipeline
    # The numbers of the recorded ranks do not change if other ranks, such as the last ones, are
    # missing.
    stage_count = int(stage.max()) + 1
    replicas = -(-world // stage_count)
    number = numbers.number[working]
    is_incomplete = replicas * stage_count > len(working)
    if is_incomplete and (stage[working] == number // replicas).all():
        pipeline[working] = number % replicas
    elif (sizes == sizes[0]).all() and (of_stage == position // sizes[0]).all():
        pipeline[working] = position % sizes[0]
    return pipeline


def find_reducing_groups(stage: Ints, machine: Ints, numbers: RankNumbers) -> Ints:
    """Find the ranks that reduce gradients together if the user gives no sizes of the run.

    The ranks of a group are on one stage. Replicas on one machine may be tensor-parallel, so the
    first replica of each machine reduces with the first replicas of the other machines, the second
    with the second ones, and so on. Replicas are counted by rank number.

    Args:
        stage: Stage of each rank, or -1 for a rank without forwards and backwards.
        machine: Machine of each rank.
        numbers: Numbers of the ranks.

    Returns:
        Group of each rank, or -1 for a rank without a stage.
    """
    working = np.flatnonzero(stage >= 0)
    working = working[np.argsort(numbers.number[working])]
    index_on_machine = number_occurrences((stage[working], machine[working]))
    return scatter(
        len(stage), working, grouping.group_rows(stage[working], index_on_machine).of_row
    )
