"""Pipelines: groups of ranks that pass microbatches to each other, and the replicas of a stage.

Tensor- and data-parallel replicas of a stage run at the same time. Megatron numbers the ranks so
that tensor-parallel ranks are adjacent and pipeline stages are farthest apart
(megatron/core/parallel_state.py, order ``tp-dp-pp``)::

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

#: Maximum number of ranks in a run.
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Parallel:
    """Parallel sizes of a run whose ranks are numbered ``tp + TP (dp + DP pp)``.

    Sizes below 1 and runs with more than a million ranks raise UsageError.

    Attributes:
        tp: Number of tensor-parallel ranks, multiplied by the number of context-parallel ranks.
        pp: Number of pipeline-parallel ranks.
        dp: Number of data-parallel replicas.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError for invalid sizes."""
        refuse_wrong_types(Parallel, vars(self))
        if min(self.tp, self.pp, self.dp) < 1 or self.ranks > _MAX_RANKS:
            raise UsageError(
                f"--parallel tp={self.tp},pp={self.pp},dp={self.dp}: each size must be at least 1, "
                f"and their product must not exceed {_MAX_RANKS:,} ranks"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks in the whole run."""
        return self.tp * self.pp * self.dp

    def stage(self, number: Ints) -> Ints:
        """Return the stage (pipeline-parallel rank) of each rank number."""
        return number // (self.tp * self.dp)

    def pipeline(self, number: Ints) -> Ints:
        """Return the pipeline of each rank number."""
        return number % (self.tp * self.dp)

    def reducing(self, number: Ints) -> Ints:
        """Return the group of ranks that reduce gradients together with each rank number."""
        return self.stage(number) * self.tp + number % self.tp


@dataclass(frozen=True)
class RankNumbers:
    """Rank numbers of the recorded ranks.

    Attributes:
        number: Number of each rank in the run.
        from_names: Whether the numbers come from names in the profiles. Otherwise, ranks are
            numbered in order of host, device and process.
    """

    number: Ints
    from_names: bool

    def reordered(self, order: Sequence[int]) -> RankNumbers:
        """Return the same numbers, reassigned so that they ascend along the given order of ranks.

        Args:
            order: Indices of the ranks in pipeline order. If empty, the numbers do not change.
        """
        if not order:
            return self
        number = np.empty_like(self.number)
        number[np.array(order)] = np.sort(self.number)
        return replace(self, number=number)


def get_rank_numbers(ranks: Sequence[JoinedRank]) -> RankNumbers:
    """Return the rank numbers in names, or else numbers in order of host, device and process.

    Numbers in names are used only if every rank has a number and all numbers differ. Otherwise, the
    ranks are sorted by host (in natural order), device id and process id, and numbered starting at
    0.
    """
    global_ranks = [rank.local.global_rank for rank in ranks]
    numbers = [number for number in global_ranks if number is not None]
    if len(set(numbers)) == len(ranks):
        return RankNumbers(np.array(numbers, np.int64), from_names=True)
    keys = [(make_natural_key(r.host), r.local.device_id, get_pid(r.local.process)) for r in ranks]
    order = sorted(range(len(ranks)), key=lambda i: keys[i])
    return RankNumbers(grouping.invert_permutation(np.array(order, np.int64)), from_names=False)


def refuse_misfit(parallel: Parallel, numbers: RankNumbers) -> None:
    """Reject ranks that do not match the parallel sizes given by the user.

    Args:
        parallel: Parallel sizes given by the user.
        numbers: Numbers of the recorded ranks.

    Raises:
        MismatchError: A rank number is too large for the run, or ranks are missing and names do not
            show which ones.
    """
    count, largest = len(numbers.number), int(numbers.number.max(initial=0))
    if largest >= parallel.ranks or (count < parallel.ranks and not numbers.from_names):
        ranks = f"rank {largest}" if numbers.from_names else format_count(count, "rank")
        raise MismatchError(
            f"--parallel tp={parallel.tp},pp={parallel.pp},dp={parallel.dp}: this makes "
            f"{format_count(parallel.ranks, 'rank')}, but the profiles contain {ranks}; pass the "
            "sizes of the run"
        )


def refuse_other_stages(
    parallel: Parallel, numbers: RankNumbers, recordings: JoinedRecordings
) -> None:
    """Reject parallel sizes that contradict the column ``stage`` of a table of operations.

    Args:
        parallel: Parallel sizes given by the user.
        numbers: Numbers of the recorded ranks.
        recordings: The recordings of all ranks.

    Raises:
        MismatchError: A table declares another stage for a rank.
    """
    stage = _list_declared_in_tables(recordings, "stage")
    given = parallel.stage(numbers.number)
    is_contradicted = (stage >= 0) & (stage != given)
    if is_contradicted.any():
        index = int(is_contradicted.argmax())
        raise MismatchError(
            f"--parallel tp={parallel.tp},pp={parallel.pp},dp={parallel.dp}: this puts rank "
            f"{numbers.number[index]} on stage {given[index]}, but the column stage of its table "
            f"contains {stage[index]}; remove --parallel, or correct the sizes or the column"
        )


def get_declared_pipelines(recordings: JoinedRecordings) -> Ints | None:
    """Return each rank's pipeline, as declared by tables of operations or file names.

    The result is None if the pipeline of any rank is missing.
    """
    pipeline = lookup_declared(recordings, "pipeline")
    return None if (pipeline < 0).any() else pipeline


def lookup_declared(recordings: JoinedRecordings, name: str) -> Ints:
    """Return each rank's stage or pipeline, as declared by tables of operations or file names.

    File names are used only if no rank comes from a table of operations, if all (stage, pipeline)
    pairs in the file names differ, and if the stages are numbered without gaps, starting at 0.
    Pipelines from file names are renumbered without gaps, starting at 0.

    Args:
        recordings: The recordings of all ranks.
        name: ``stage`` or ``pipeline``.

    Returns:
        Stage or pipeline of each rank, or -1 if it is not declared.
    """
    places = np.array(
        [rank.local.stage_in_file_name for rank in recordings.ranks], np.int64
    ).reshape(-1, 2)
    stages = grouping.find_distinct(places[:, 0])
    # The numbers in file names may be parallel sizes instead of stages and pipelines.
    # In this case, two ranks have equal pairs of numbers, or a stage is missing.
    is_distinct = len(grouping.group_rows(*places.T)) == len(places)
    is_usable = is_distinct and (stages == np.arange(len(stages))).all()
    if is_usable and not any(rank.local.declared for rank in recordings.ranks):
        return np.unique(places[:, int(name == "pipeline")], return_inverse=True)[1].reshape(-1)
    return _list_declared_in_tables(recordings, name)


def _list_declared_in_tables(recordings: JoinedRecordings, name: str) -> Ints:
    """Return the ``stage`` or ``pipeline`` of each rank in its table, or -1 if it has none."""
    declared = [getattr(rank.local.declared, name, None) for rank in recordings.ranks]
    return np.array([NONE if number is None else number for number in declared], np.int64)


def find_pipelines(stage: Ints, numbers: RankNumbers, world: int = 0) -> Ints:
    """Find the pipeline of each rank from rank numbers.

    If every stage has one rank, all ranks are in pipeline 0. Otherwise, pipelines are known only if
    names number the ranks in Megatron's order: stage by stage, with the same number of ranks per
    stage. A rank's pipeline is then its index among the ranks on its stage, in order of rank
    number. If ``world`` shows which ranks are missing, they are counted as well.

    Args:
        stage: Stage of each rank, or -1 for a rank that runs no forwards or backwards.
        numbers: Rank numbers.
        world: Number of ranks in the run, or 0 if unknown.

    Returns:
        Pipeline of each rank, or -1 if unknown. All ranks are in pipeline 0 if no rank works or if
        every stage has one rank.
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
    # Missing ranks, such as the last ones, do not change the numbers of the recorded ranks.
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
    """Find the ranks that reduce gradients together if the user specifies no parallel sizes.

    All ranks in a group are on one stage. A stage's replicas on one machine may be tensor-parallel,
    so they are put into different groups: the n-th replicas on all machines form a group. Replicas
    are sorted by rank number.

    Args:
        stage: Stage of each rank, or -1 for a rank that runs no forwards or backwards.
        machine: Machine of each rank.
        numbers: Rank numbers.

    Returns:
        For each rank, the group of ranks that reduce gradients together with it, or -1 for a rank
        without a stage.
    """
    working = np.flatnonzero(stage >= 0)
    working = working[np.argsort(numbers.number[working])]
    index_on_machine = number_occurrences((stage[working], machine[working]))
    return scatter(
        len(stage), working, grouping.group_rows(stage[working], index_on_machine).of_row
    )
