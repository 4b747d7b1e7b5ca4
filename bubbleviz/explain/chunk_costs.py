"""Chunk costs: how long each stage takes for a chunk of so many tokens.

Attention makes long chunks cost more than their share, the rest of a layer makes them cost their
share, and launches cost the same for all::

    time = a + b tokens [+ c tokens^2]

Schedulers that divide prompts into chunks of equal cost fit the same (SGLang's
``ChunkSizePredictor`` in ``scheduler_pp_mixin.py``, vLLM's pull request 41247).
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import Polynomial

from bubbleviz.model.columns import Bools, Floats, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen

#: The square counts from so many different lengths on, if it is so many standard errors, and if it
#: makes this share of the time of the longest chunk.
_LENGTHS, _SURE, _SHARE = 4, 4.0, 0.01
#: A power that adds less than this to the lower ones is not shown by the lengths.
_SHOWN = 1e-6


@frozen
class ChunkCost:
    """What chunks cost on one virtual stage.

    Attributes:
        stage: of the ranks (smallest virtual stage); -1 unknown.
        virtual_stage: place of the model chunk in the model's order; -1 unknown.
        n: number of chunks.
        least_tokens: of the shortest chunk.
        most_tokens: of the longest.
        fixed_ns: a; the mean where all chunks are equally long.
        token_ns: b, for each token; None where all chunks are equally long.
        token_squared_ns: c; 0 where a line fits as well, None as above.
        residual_ns: standard deviation of what is left; None where no chunk is left to show it.
        explained: share of the variance that the length explains; None where there is none.
    """

    stage: int
    virtual_stage: int
    n: int
    least_tokens: int
    most_tokens: int
    fixed_ns: float
    token_ns: float | None
    token_squared_ns: float | None
    residual_ns: float | None
    explained: float | None

    def time_ns(self, tokens: Floats) -> Floats:
        """Return the fitted times of chunks of so many tokens."""
        line = self.fixed_ns + (self.token_ns or 0.0) * tokens
        return np.asarray(line + (self.token_squared_ns or 0.0) * tokens**2)


@frozen
class ChunkTimes(Table):
    """Forwards whose tokens are known, in order of their rank and start.

    Attributes:
        virtual_stage: of each; -1 unknown.
        stage: of its rank; -1 unknown.
        tokens: that it takes.
        time_ns: how long it took.
    """

    virtual_stage: Ints
    stage: Ints
    tokens: Ints
    time_ns: Ints


def chunk_times_of(operations: Operations, stage: Ints, averaged: Bools) -> ChunkTimes:
    """Return the forwards whose tokens are known.

    Args:
        operations: of some ranks.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
    """
    rows = costed(operations, averaged)
    return ChunkTimes(
        operations.virtual_stage[rows],
        stage[operations.rank[rows]],
        operations.tokens[rows],
        operations.busy_ns[rows],
    )


def chunk_costs_of(chunks: ChunkTimes) -> tuple[ChunkCost, ...]:
    """Return what chunks cost by virtual stage; none where no name tells their tokens.

    Args:
        chunks: of all ranks.
    """
    groups, costs = groups_of(chunks.virtual_stage, chunks.stage), []
    for number, first in enumerate(groups.first.tolist()):
        own = chunks.take(groups.of_row == number)
        tokens, time_ns = own.tokens, own.time_ns.astype(np.float64)
        factors, left_ns = _fit(tokens, time_ns)
        spread = float(((time_ns - time_ns.mean()) ** 2).sum())
        free = len(own) - len(factors)
        lengths = len(factors) > 1
        costs.append(
            ChunkCost(
                stage=int(chunks.stage[first]),
                virtual_stage=int(chunks.virtual_stage[first]),
                n=len(own),
                least_tokens=int(tokens.min()),
                most_tokens=int(tokens.max()),
                fixed_ns=factors[0],
                token_ns=factors[1] if lengths else None,
                token_squared_ns=(*factors, 0.0)[2] if lengths else None,
                residual_ns=float(np.sqrt((left_ns**2).sum() / free)) if free > 0 else None,
                explained=1 - float((left_ns**2).sum()) / spread if lengths and spread else None,
            )
        )
    return tuple(costs)


def costed(operations: Operations, averaged: Bools) -> Ints:
    """Return the rows of the forwards whose tokens are known.

    Args:
        operations: of all ranks.
        averaged: of each iteration, whether it is averaged.
    """
    known = (operations.phase == Phase.F) & (operations.has_span == 1) & (operations.cut == 0)
    known &= (operations.tokens >= 0) & (operations.iteration >= 0)
    return np.flatnonzero(known & np.append(averaged, False)[operations.iteration])


def _fit(tokens: Ints, time_ns: Floats) -> tuple[tuple[float, ...], Floats]:
    """Return the factors of the simplest curve that fits, and what it leaves of each time."""
    lengths = len(distinct(tokens))
    if lengths < 2:
        return (float(time_ns.mean()),), time_ns - time_ns.mean()
    line, left_ns, _ = _least_squares(tokens, time_ns, 1)
    if lengths >= _LENGTHS and len(tokens) > _LENGTHS:
        curve, curve_left_ns, error = _least_squares(tokens, time_ns, 2)
        part_ns = curve[2] * float(tokens.max()) ** 2
        if curve[2] > _SURE * error and part_ns > _SHARE * float(time_ns.max()):
            return curve, curve_left_ns
    return line, left_ns


def _least_squares(
    tokens: Ints, time_ns: Floats, degree: int
) -> tuple[tuple[float, ...], Floats, float]:
    """Return the factors by rising power, what is left, and the standard error of the last one."""
    # Lengths far from zero and close together: their powers are alike unless they are centred.
    ends = float(tokens.min()), float(tokens.max())
    middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    powers = ((tokens[:, None] - middle) / half) ** np.arange(degree + 1)
    factors = np.linalg.lstsq(powers, time_ns, rcond=None)[0]
    left_ns = time_ns - powers @ factors
    free = max(len(tokens) - degree - 1, 1)
    # What the last power adds to the others: 0 where these lengths do not show it.
    added = abs(float(np.linalg.qr(powers)[1][-1, -1]))
    shown = added > _SHOWN
    error = np.sqrt(float((left_ns**2).sum()) / free) / added if shown else np.inf
    in_tokens = Polynomial(factors, domain=ends).convert().coef.tolist()
    in_tokens += [0.0] * (degree + 1 - len(in_tokens))
    return tuple(in_tokens), left_ns, float(error) / half**degree
