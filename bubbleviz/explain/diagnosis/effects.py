"""Effects: how many times as long as its norm each compute took, split by what shares it.

Hardware slows all that a rank computes, an uneven partition all that a stage does, a long sequence
one microbatch on every stage, a pause one rank for some operations. So the time of a compute is a
product, whose factors are medians of ratios, found one after the other::

    time = norm of the kind  x  stage  x  rank  x  iteration  x  microbatch  x  pace  x  rest
                                over      over     of all        on every      of a rank in
                                stages    copies   ranks         stage         an iteration

Nothing is held against itself: the norm of a rank is the median of the others that do the same
work, that of a stage the median of the other stages.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bubbleviz.explain.diagnosis.medians import group_medians, median_of, others_medians
from bubbleviz.explain.diagnosis.trends import lines, rises
from bubbleviz.explain.slowdown.work import COMPUTING, Role, Work
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, groups_of
from bubbleviz.model.values import frozen

#: An effect of less is not worth a sentence; nor is one of less than so many standard errors.
_LEAST, _SURE = 0.02, 4.0
_TIMED = (*COMPUTING, Role.OPTIMIZER, Role.AFTER_COMPUTE)


@frozen(eq=False, shown=False)
class Effects:
    """Factors of the computes of a run; columns have one row a compute.

    Attributes:
        work: of all ranks.
        rows: of the work table that compute.
        time_ns: how long each took.
    """

    work: Work
    rows: Ints
    time_ns: Floats

    @cached_property
    def cells(self) -> Groups:
        """Computes of one kind, virtual stage and rank."""
        work, rows = self.work, self.rows
        return groups_of(work.kind[rows], work.virtual_stage[rows], work.rank[rows])

    @cached_property
    def cell_ns(self) -> Floats:
        """The median time of each cell."""
        return group_medians(self.cells.of_row, len(self.cells), self.time_ns)

    @cached_property
    def copies(self) -> Groups:
        """Cells of one kind and virtual stage: copies that do the same work; one row a cell."""
        first = self.rows[self.cells.first]
        work = self.work
        return groups_of(work.kind[first], work.virtual_stage[first], work.stage[first])

    @cached_property
    def rank_effect(self) -> Floats:
        """Time of each cell over that of its other copies; NaN where there is no other."""
        return self.cell_ns / others_medians(self.copies.of_row, self.cell_ns)

    @cached_property
    def stages(self) -> Groups:
        """Kinds on stages; one row a group of copies."""
        first = self.rows[self.cells.first[self.copies.first]]
        return groups_of(self.work.kind[first], self.work.stage[first])

    @cached_property
    def stage_ns(self) -> Floats:
        """Time of one microbatch of each kind on each stage, all its chunks together.

        Of copies the lower median counts: a slow one makes no slow stage.
        """
        copy_ns = group_medians(self.copies.of_row, len(self.copies), self.cell_ns)
        return np.bincount(self.stages.of_row, copy_ns, len(self.stages)).astype(np.float64)

    @cached_property
    def stage_kind(self) -> Ints:
        """The kind of work of each row of ``stage_ns``."""
        return self.work.kind[self._of_stages]

    @cached_property
    def stage_number(self) -> Ints:
        """The stage of each row of ``stage_ns``."""
        return self.work.stage[self._of_stages]

    @cached_property
    def _of_stages(self) -> Ints:
        return self.rows[self.cells.first[self.copies.first[self.stages.first]]]

    @cached_property
    def stage_effect(self) -> Floats:
        """Time of each kind on each stage over that on the other stages; NaN without others."""
        return self.stage_ns / others_medians(groups_of(self.stage_kind).of_row, self.stage_ns)

    @cached_property
    def stage_of_compute(self) -> Ints:
        """The row of ``stage_ns`` of each compute."""
        return self.stages.of_row[self.copies.of_row[self.cells.of_row]]

    @cached_property
    def _beyond_rank(self) -> Floats:
        """Time of each compute over the median of its cell."""
        return self.time_ns / np.maximum(self.cell_ns[self.cells.of_row], 1)

    @cached_property
    def iterations(self) -> Groups:
        """Computes of one iteration."""
        return groups_of(self.work.iteration[self.rows])

    @cached_property
    def iteration_effect(self) -> Floats:
        """How much longer computes of all ranks take in each iteration than in the others."""
        return group_medians(self.iterations.of_row, len(self.iterations), self._beyond_rank)

    @cached_property
    def trend(self) -> Floats:
        """The part of each iteration's effect that grows steadily over the run; 1 for none."""
        number = np.arange(len(self.iterations), dtype=np.float64)
        series = np.log(self.iteration_effect)
        slope, explained = lines(np.zeros(len(series), np.int64), number, series)
        if not rises(len(series), slope, explained).any():
            return np.ones(len(series))
        grown: Floats = np.exp(slope[0] * (number - number.mean()))
        return grown

    @cached_property
    def _beyond_iteration(self) -> Floats:
        return self._beyond_rank / self.iteration_effect[self.iterations.of_row]

    @cached_property
    def microbatches(self) -> Groups:
        """Computes of one microbatch in one iteration and replica."""
        work, rows = self.work, self.rows
        return groups_of(work.iteration[rows], work.replica[rows], work.microbatch[rows])

    @cached_property
    def microbatch_effect(self) -> Floats:
        """How much longer each microbatch takes, on every stage; 1 where one stage alone tells."""
        first, of_row = self.rows[self.microbatches.first], self.microbatches.of_row
        numbered = self.work.microbatch[first] != NONE
        places = groups_of(of_row, self.work.stage[self.rows]).first
        stages = np.bincount(of_row[places], minlength=len(self.microbatches))
        effect = group_medians(of_row, len(self.microbatches), self._beyond_iteration)
        return np.where(numbered & (stages > 1), effect, 1.0)

    @cached_property
    def _beyond_microbatch(self) -> Floats:
        return self._beyond_iteration / self.microbatch_effect[self.microbatches.of_row]

    @cached_property
    def paces(self) -> Groups:
        """Computes of one rank in one iteration."""
        return groups_of(self.work.rank[self.rows], self.work.iteration[self.rows])

    @cached_property
    def pace(self) -> Floats:
        """How much longer each rank takes in each iteration, beyond what all ranks share."""
        return group_medians(self.paces.of_row, len(self.paces), self._beyond_microbatch)

    @cached_property
    def rest(self) -> Floats:
        """What is left of each compute's time, as a multiple of what all factors explain."""
        return self._beyond_microbatch / self.pace[self.paces.of_row]

    @cached_property
    def noise(self) -> float:
        """The spread of what is left, as a standard deviation of logarithms."""
        left = np.abs(np.log(self.rest))
        return 1.4826 * median_of(left) if len(left) else 0.0

    def stands_out(self, effect: Floats, of: Ints, against: Floats | float = 1.0) -> Bools:
        """Tell which effects are larger than chance and small differences of like hardware.

        A median of n times is off by 1.25 deviations / sqrt(n), and so is what it is held against.

        Args:
            effect: the factors; NaN stands for none.
            of: how many times each is the median of.
            against: how many times as uncertain what they are held against is.
        """
        error = 1.25 * self.noise * np.sqrt((1 + against) / np.maximum(of, 1))
        return np.nan_to_num(np.log(effect)) > np.maximum(_LEAST, _SURE * error)


def effects_of(work: Work) -> Effects:
    """Return the effects of a run.

    Args:
        work: of all ranks, in the iterations that count.
    """
    time_ns = work.end_ns - work.start_ns
    rows = np.flatnonzero(np.isin(work.role, _TIMED) & (time_ns > 0))
    return Effects(work, rows, time_ns[rows].astype(np.float64))
