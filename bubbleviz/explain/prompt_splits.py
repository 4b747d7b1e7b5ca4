"""Find the chunk lengths at which the stages of a prefill pipeline are busy for equal times.

Chunks of equal length take longer and longer as their prefix grows. While one stage runs a long
chunk, the next stages wait for it. If chunks get shorter along the prompt so that all of them take
equal time, no stage waits except while the pipeline fills::

    equal lengths   stage 0  [-1-][--2--][---3---][----4----]
                    stage 1       [-1-]  [--2--]  [---3---] [----4----]

    equal times     stage 0  [--1--][--2--][--3--][--4--]
                    stage 1         [--1--][--2--][--3--][--4--]

On equal stages, chunks of equal time are the best division into a given number of chunks: the terms
``c tokens (tokens + 2 prefix)`` of a prompt add up to c times the squared length of the prompt, so
the time that a stage works depends on the number of chunks only. Fewer chunks have less fixed cost,
more chunks fill the pipeline sooner. Divisions of many sizes are tried.

The fitted costs have errors. A division whose length lies far from the measured lengths may be
worse than predicted, so the division with the largest lower bound of the saving is chosen. If the
fits of all stages are proportional within their errors, they are replaced by their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.count.statistics import compute_student_quantile
from bubbleviz.explain.chunk_costs import ChunkCost, find_costed_rows, list_prefixes
from bubbleviz.model import grouping
from bubbleviz.model.columns import Bools, Floats, Ints

if TYPE_CHECKING:
    from bubbleviz.model.operations import Operations

#: Proposed chunk lengths are multiples of this number of tokens.
_GRAIN = 64
#: Maximum factor between the lengths of the first chunk and of the longest measured chunk.
_MAX_FACTOR = 4.0
#: Maximum number of divisions that are tried, each into a different number of chunks.
_N_COUNTS = 64
#: Fractions of the largest possible fixed cost for which divisions are tried if it is unknown.
_FRACTIONS = (0.0, 0.5, 1.0)
#: Number of steps of the ternary search for the shortest time.
_N_THIRDS = 40
#: Minimum saving, as a fraction of the time that the prompt takes now.
_MIN_SAVING = 0.01
#: Maximum number of chunks in the iteration that is simulated.
_MAX_CHUNKS = 4096
#: Number of coefficients of a chunk's cost.
_N_FACTORS = 3
#: Maximum difference between a stage's fit and the mean fit of all stages, in standard errors.
_MAX_ERRORS = 4.0


@dataclass(frozen=True, eq=False)
class PromptChunks:
    """The prompt chunks of one iteration, in the order in which the first stage ran them.

    Attributes:
        tokens: Number of tokens in each chunk.
        prefix: Number of tokens in earlier chunks of the same prompt.
        span_ns: Measured time from the first start to the last end of the chunks on any stage, or 0
            if the chunks did not run.
    """

    tokens: Ints
    prefix: Ints
    span_ns: int = 0

    @property
    def starts_prompt(self) -> Bools:
        """Mask of the chunks that do not continue the prompt of the chunk before."""
        previous_end = (self.tokens + self.prefix)[:-1]
        is_continued = (self.prefix[1:] == previous_end) & (self.prefix[1:] > 0)
        return np.append(True, ~is_continued)[: len(self.tokens)]

    @property
    def is_interleaved(self) -> bool:
        """Whether chunks of several prompts alternate, so that it is unknown which belong together.

        Prompts alternate if one starts where another one ends. A prompt may also start after a
        prefix that was cached before the recording.
        """
        first = self.starts_prompt
        end = (self.tokens + self.prefix)[np.append(first[1:], True)]
        start = self.prefix[first]
        return bool(np.isin(start[start > 0], end).any())

    def divide(self, boundaries: Ints) -> PromptChunks:
        """Divide all prompts at the same boundaries.

        Args:
            boundaries: Ends of the chunks of the longest prompt, in tokens, ascending.
        """
        first_row = np.flatnonzero(self.starts_prompt)
        last_row = np.append(first_row[1:], len(self.tokens)) - 1
        start, end = self.prefix[first_row], (self.prefix + self.tokens)[last_row]
        # Boundaries inside a prompt: from the first one after its start to the last before its end.
        first_boundary = np.searchsorted(boundaries, start, "right")
        n_pieces = np.maximum(np.searchsorted(boundaries, end, "left") - first_boundary, 0) + 1
        prompt = np.repeat(np.arange(len(start)), n_pieces)
        piece = np.arange(len(prompt)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
        inner = np.append(boundaries, 0)[
            np.minimum(first_boundary[prompt] + piece, len(boundaries))
        ]
        piece_end = np.where(piece == n_pieces[prompt] - 1, end[prompt], inner)
        piece_start = np.where(piece == 0, start[prompt], np.append(0, piece_end[:-1]))
        return PromptChunks(piece_end - piece_start, piece_start)


@dataclass(frozen=True)
class PromptSplit:
    """A division of the longest prompt into chunks that take equal time.

    If all measured chunks have the same length, the fixed cost of a chunk is unknown
    (:attr:`.ChunkCost.max_fixed_ns`). The times of other lengths are then known within bounds, and
    the division is the one with the smallest upper bound. The fixed cost is assumed to be the same
    fraction of its upper bound on all stages, and the errors of the fits to be the same on all
    stages.

    Attributes:
        virtual_stage: Index of the slowest virtual stage, whose times are equal.
        tokens: Number of tokens in each chunk.
        equal_ns: Time that the prompt takes in chunks of the longest measured length.
        even_ns: Time that the prompt takes in these chunks, or its upper bound.
        min_even_ns: Lower bound of that time. Equal to ``even_ns`` if the fixed cost is known.
        max_fixed_ns: Upper bound of the fixed cost of a chunk on that stage, or None if the fixed
            cost is known.
        n_prompts: Number of prompts in the typical iteration, or 0 if chunks of several prompts
            alternate or there is no typical iteration.
        recorded_ns: Time of the prompts of the typical iteration according to the fit, or 0 if
            ``n_prompts`` is 0.
        divided_ns: Upper bound of that time if all prompts are divided at the same boundaries.
        error_ns: Half-width of the 95 % confidence interval of the difference between
            ``recorded_ns`` and ``divided_ns``.
        measured_ns: Measured time of these prompts.
    """

    virtual_stage: int
    tokens: tuple[int, ...]
    equal_ns: float
    even_ns: float
    min_even_ns: float
    max_fixed_ns: float | None = None
    n_prompts: int = 0
    recorded_ns: float = 0.0
    divided_ns: float = 0.0
    error_ns: float = 0.0
    measured_ns: int = 0


def find_prompt_chunks(
    operations: Operations, averaged: Bools, iteration: int
) -> PromptChunks | None:
    """Return the chunks that the first stage ran in an iteration, or None if there are none.

    Chunks of less than 64 tokens are left out, because they may be decode steps. If several ranks
    ran chunks of the first stage, the rank with the most chunks is chosen. The rank with the
    smaller index wins a tie.

    Args:
        operations: Operations of all ranks.
        averaged: Mask of the averaged iterations.
        iteration: Index of the iteration.
    """
    rows = find_costed_rows(operations, averaged)
    if len(rows) == 0:
        return None
    is_prompt = (operations.iteration == iteration) & (operations.tokens >= _GRAIN)
    of_all_stages = rows[is_prompt[rows]]
    rows = rows[operations.virtual_stage[rows] == operations.virtual_stage[rows].min()]
    prefix = list_prefixes(operations, rows)
    rows, prefix = rows[is_prompt[rows]], prefix[is_prompt[rows]]
    if len(rows) == 0:
        return None
    rank = operations.rank[rows]
    is_chosen = rank == np.bincount(rank).argmax()
    rows, prefix = rows[is_chosen], prefix[is_chosen]
    order = grouping.sort_rows(operations.start_ns[rows])
    span_ns = operations.end_ns[of_all_stages].max() - operations.start_ns[of_all_stages].min()
    return PromptChunks(operations.tokens[rows][order], prefix[order], int(span_ns))


def split_longest_prompt(
    costs: Sequence[ChunkCost], chunks: PromptChunks | None, transfer_ns: float
) -> PromptSplit | None:
    """Divide the longest prompt into chunks that take equal time on the slowest stage.

    Divisions into different numbers of chunks are tried. The division with the largest lower bound
    of the saving is chosen. The saving refers to a whole iteration, or to the longest prompt if the
    prompts of the iteration are unknown. All stages are simulated with their own costs.

    Args:
        costs: Chunk costs, one entry per virtual stage.
        chunks: Prompt chunks of the typical iteration, or None if there is none.
        transfer_ns: Time of a transfer between two stages.

    Returns:
        The division. None if there is a single stage, if the cost of the slowest stage does not
        depend on a prefix, or if the division saves at most 1 % of the prompt's time.
    """
    if len(costs) < 2:
        return None
    costs = _pool_stages(costs)
    slowest = max(costs, key=lambda cost: float(cost.time_ns(np.array(cost.most_tokens))))
    n_tokens = slowest.prompt_tokens
    if not n_tokens or not slowest.token_squared_ns:
        return None
    prompt = PromptChunks(np.array([n_tokens]), np.array([0]))
    recorded = None if chunks is None or len(chunks.tokens) > _MAX_CHUNKS else chunks
    if recorded is not None and recorded.is_interleaved:
        recorded = None
    equal_ends = np.arange(1, n_tokens // slowest.most_tokens + 1) * slowest.most_tokens
    equal = prompt.divide(equal_ends)
    compared = equal if recorded is None else recorded
    fits = _PossibleFits.of(costs, slowest.dof)

    def bound_ns(divided: PromptChunks) -> float:
        return fits.bound_time(fits.simulate(divided, transfer_ns))

    divisions = _list_divisions(slowest.deviate(0, 0.0))
    boundaries, error_ns = fits.choose_division(divisions, compared, transfer_ns)
    even = prompt.divide(boundaries)
    equal_ns = bound_ns(equal)
    even_ns = bound_ns(even)
    if even_ns >= (1 - _MIN_SAVING) * equal_ns:
        return None
    return PromptSplit(
        virtual_stage=slowest.virtual_stage,
        tokens=tuple(even.tokens.tolist()),
        equal_ns=equal_ns,
        even_ns=even_ns,
        min_even_ns=_find_shortest_ns(costs, even, transfer_ns),
        max_fixed_ns=slowest.max_fixed_ns,
        n_prompts=0 if recorded is None else int(recorded.starts_prompt.sum()),
        recorded_ns=0.0 if recorded is None else bound_ns(recorded),
        divided_ns=0.0 if recorded is None else bound_ns(recorded.divide(boundaries)),
        error_ns=0.0 if recorded is None else error_ns,
        measured_ns=0 if recorded is None else recorded.span_ns,
    )


def _pool_stages(costs: Sequence[ChunkCost]) -> Sequence[ChunkCost]:
    """Replace the fits of all stages by multiples of their mean if they are proportional to it.

    Most stages consist of equal layers, so their costs are proportional. The mean has a smaller
    error than each fit.

    Returns:
        The pooled costs. The costs themselves if a fit differs from its multiple of the mean by
        more than ``_MAX_ERRORS`` standard errors, or if its errors are 0 or unknown.
    """
    shapes = {np.shape(cost.deviations) for cost in costs}
    if len(shapes) > 1 or len(shapes.pop()) < 2:
        return costs
    # Shape (stages, 3, directions).
    deviations = np.array([np.transpose(cost.deviations) for cost in costs])
    if deviations.shape[1] != _N_FACTORS or not np.isfinite(deviations).all():
        return costs
    if not np.abs(deviations).sum(axis=(1, 2)).all():
        return costs
    factors = _list_factors([[cost] for cost in costs])[:, 0]
    mean = factors.mean(axis=0)
    mean_deviation = deviations.mean(axis=0)
    to_errors = np.linalg.pinv(mean_deviation)
    # The product with to_errors is proportional to the fitted times, so this fits the times.
    mean_times = to_errors @ mean
    multiples = factors @ to_errors.T @ mean_times / (mean_times @ mean_times)
    for deviation, difference in zip(deviations, factors - np.outer(multiples, mean), strict=True):
        if np.linalg.norm(np.linalg.pinv(deviation) @ difference) > _MAX_ERRORS:
            return costs
    dof = sum(cost.dof for cost in costs)
    pooled_deviation = mean_deviation / np.sqrt(len(costs))
    return [
        _scale_cost(cost, multiple * mean, multiple * pooled_deviation, dof)
        for cost, multiple in zip(costs, multiples.tolist(), strict=True)
    ]


def _scale_cost(cost: ChunkCost, factors: Floats, deviations: Floats, dof: int) -> ChunkCost:
    """Return a cost with other coefficients.

    Args:
        cost: Cost of a stage.
        factors: New coefficients (a, b, c).
        deviations: New standard deviations, shape (3, directions).
        dof: New degrees of freedom.
    """
    return replace(
        cost.replace_factors(factors),
        deviations=tuple(tuple(column) for column in deviations.T.tolist()),
        dof=dof,
    )


@dataclass(frozen=True, eq=False)
class _PossibleFits:
    """Fits of all stages with different fixed costs and errors.

    Attributes:
        factors: Coefficients (a, b, c), shape (stages, fits, 3). The first axis of fits is the
            fixed cost; see :meth:`of`. For each fixed cost, there is the fit itself, and two fits
            per direction in which the fit may be wrong: the ends of its 95 % confidence interval.
    """

    factors: Floats

    @classmethod
    def of(cls, costs: Sequence[ChunkCost], dof: int) -> _PossibleFits:
        """Return the fits for the smallest and the largest possible fixed cost.

        The time of a pipeline is a convex function of the fixed cost, so it is longest at one of
        both ends. There is one fixed cost if all fixed costs are known.

        Args:
            costs: Chunk costs, one entry per virtual stage, in order.
            dof: Degrees of freedom of the fit of the slowest stage.
        """
        is_known = all(cost.max_fixed_ns is None for cost in costs)
        quantile = compute_student_quantile(max(dof, 1))
        ends = (-quantile, quantile)
        deviations = [(0, 0.0), *((k, end) for k in range(_N_FACTORS) for end in ends)]
        fits = [
            [
                cost.deviate(direction, n_deviations).assume_fixed(fraction)
                for fraction in ((0.0,) if is_known else (0.0, 1.0))
                for direction, n_deviations in deviations
            ]
            for cost in costs
        ]
        return cls(_list_factors(fits))

    def simulate(self, chunks: PromptChunks, transfer_ns: float) -> Floats:
        """Return the time of a pipeline with each fit, shape (fixed costs, 1 + deviations)."""
        times_ns = _simulate_all(self.factors, chunks, transfer_ns)
        return times_ns.reshape(-1, 1 + 2 * _N_FACTORS)

    def bound_time(self, times_ns: Floats) -> float:
        """Return the longest time with any fixed cost, without errors of the fits.

        Args:
            times_ns: Times of a pipeline, as returned by :meth:`simulate`.
        """
        return float(times_ns[:, 0].max())

    def choose_division(
        self, divisions: Sequence[Ints], recorded: PromptChunks, transfer_ns: float
    ) -> tuple[Ints, float]:
        """Return the division with the largest lower bound of the saving.

        The first one wins a tie.

        Args:
            divisions: Divisions, as ends of chunks. Must not be empty.
            recorded: Chunks before the division.
            transfer_ns: Time of a transfer between two stages.

        Returns:
            boundaries: The division, as ends of chunks.
            error_ns: Half of the confidence interval of its saving.
        """
        before_ns = self.simulate(recorded, transfer_ns)
        savings = [
            self.estimate_saving(
                before_ns - self.simulate(recorded.divide(boundaries), transfer_ns)
            )
            for boundaries in divisions
        ]
        best = int(np.argmax([saving_ns - error_ns for saving_ns, error_ns in savings]))
        return divisions[best], savings[best][1]

    def estimate_saving(self, savings_ns: Floats) -> tuple[float, float]:
        """Return the saving with the smallest lower bound, and half of its confidence interval.

        The directions are independent, so the squares of their effects are added. The effect of a
        direction is the larger one of both ends. Both ends often save less, because the division is
        the best one for the fit.

        Args:
            savings_ns: Saving with each fit, shape (fixed costs, 1 + deviations).
        """
        differences_ns = np.abs(savings_ns[:, 1:] - savings_ns[:, :1])
        effects_ns = np.maximum(differences_ns[:, ::2], differences_ns[:, 1::2])
        errors_ns = np.linalg.norm(effects_ns, axis=1)
        worst = int((savings_ns[:, 0] - errors_ns).argmin())
        return float(savings_ns[worst, 0]), float(errors_ns[worst])


def _list_factors(fits: Sequence[Sequence[ChunkCost]]) -> Floats:
    """Return the coefficients (a, b, c) of fits, shape (stages, fits, 3)."""
    return np.array(
        [
            [(fit.fixed_ns, fit.token_ns or 0.0, fit.token_squared_ns or 0.0) for fit in of_stage]
            for of_stage in fits
        ]
    )


def _assume_fixed(costs: Sequence[ChunkCost], fraction: float) -> list[ChunkCost]:
    """Return equally good fits in which all stages have the same fraction of their fixed cost."""
    return [cost.assume_fixed(fraction) for cost in costs]


def _find_shortest_ns(
    costs: Sequence[ChunkCost], chunks: PromptChunks, transfer_ns: float
) -> float:
    """Return the time of a pipeline for the fixed cost with the shortest time.

    The time is a convex function of the fixed cost, so a ternary search finds its minimum.
    """
    low, high = 0.0, 1.0
    for _ in range(_N_THIRDS):
        thirds = (2 * low + high) / 3, (low + 2 * high) / 3
        first_ns, second_ns = (
            _simulate_ns(_assume_fixed(costs, fraction), chunks, transfer_ns) for fraction in thirds
        )
        low, high = (low, thirds[1]) if first_ns <= second_ns else (thirds[0], high)
    return _simulate_ns(_assume_fixed(costs, (low + high) / 2), chunks, transfer_ns)


def _list_divisions(cost: ChunkCost) -> list[Ints]:
    """Return divisions of the longest prompt into chunks of equal time, as ends of the chunks.

    Args:
        cost: Cost on the slowest stage.
    """
    fractions = (0.0,) if cost.max_fixed_ns is None else _FRACTIONS
    return [
        _divide_evenly(fit, n_chunks)
        for fit in map(cost.assume_fixed, fractions)
        for n_chunks in _list_chunk_counts(fit)
    ]


def _list_chunk_counts(cost: ChunkCost) -> list[int]:
    """Return the numbers of chunks to try, ascending.

    The first chunk is at most ``_MAX_FACTOR`` times longer or shorter than the longest measured
    chunk. The measured number of chunks is always tried.

    Args:
        cost: Cost on the slowest stage.
    """
    factors = np.array([_MAX_FACTOR, 1.0, 1 / _MAX_FACTOR])
    first = np.minimum(factors * cost.most_tokens, cost.prompt_tokens)
    total_ns = float(cost.time_ns(np.array(float(cost.prompt_tokens)))) - cost.fixed_ns
    n_min, _, n_max = np.maximum(total_ns / (cost.time_ns(first) - cost.fixed_ns), 1.0)
    n_measured = -(-cost.prompt_tokens // cost.most_tokens)
    counts = np.append(np.geomspace(n_min, n_max, _N_COUNTS).round(), n_measured)
    return [int(count) for count in np.unique(counts)]


def _divide_evenly(cost: ChunkCost, n_chunks: int) -> Ints:
    """Divide the longest prompt into chunks of equal time, and return the ends of the chunks.

    The times of the first k chunks, without their constants a, add up to the time of a single chunk
    with as many tokens. The end of chunk k is therefore the solution p of this equation, in which L
    is the length of the prompt::

        b p + c p^2 = k / n_chunks (b L + c L^2)

    Ends are rounded to multiples of 64 tokens. Chunks without tokens are left out.

    Args:
        cost: Cost of a chunk, which depends on the prefix.
        n_chunks: Number of chunks.
    """
    token_ns, bend_ns = cost.token_ns or 0.0, cost.token_squared_ns or 0.0
    total_ns = (token_ns + bend_ns * cost.prompt_tokens) * cost.prompt_tokens
    share_ns = np.arange(1, n_chunks) / n_chunks * total_ns
    ends = (np.sqrt(token_ns**2 + 4 * bend_ns * share_ns) - token_ns) / (2 * bend_ns)
    inner = np.rint(ends / _GRAIN).astype(np.int64) * _GRAIN
    is_inside = (inner > 0) & (inner < cost.prompt_tokens)
    return np.unique(np.append(inner[is_inside], cost.prompt_tokens))


def _simulate_ns(costs: Sequence[ChunkCost], chunks: PromptChunks, transfer_ns: float) -> float:
    """Return the time from the start of the first chunk to the end of the last one.

    Args:
        costs: Chunk costs, one entry per virtual stage, in order.
        chunks: The chunks, in order.
        transfer_ns: Time of a transfer between two stages.
    """
    factors = _list_factors([[cost] for cost in costs])
    return float(_simulate_all(factors, chunks, transfer_ns)[0])


def _simulate_all(factors: Floats, chunks: PromptChunks, transfer_ns: float) -> Floats:
    """Return the time from the start of the first chunk to the end of the last one, for each fit.

    Each stage runs the chunks in order. It starts a chunk once the chunk has arrived from the
    previous stage and the stage has finished the chunk before.

    Args:
        factors: Coefficients (a, b, c) of chunk costs, shape (stages, fits, 3). Stages are in
            order.
        chunks: The chunks, in order.
        transfer_ns: Time of a transfer between two stages.
    """
    tokens = chunks.tokens.astype(float)
    terms = np.stack([np.ones(len(tokens)), tokens, tokens * (tokens + 2.0 * chunks.prefix)])
    arrival_ns: Floats = np.zeros((factors.shape[1], len(tokens)))
    end_ns = arrival_ns
    for of_stage in factors:
        time_ns = of_stage @ terms
        work_ns = np.cumsum(time_ns, axis=1)
        # The end of a chunk: the latest arrival of this or an earlier chunk, and the work since.
        end_ns = work_ns + np.maximum.accumulate(arrival_ns - (work_ns - time_ns), axis=1)
        arrival_ns = end_ns + transfer_ns
    return end_ns[:, -1]
