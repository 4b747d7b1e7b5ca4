"""Fit the time that each stage takes for a chunk, as a function of the chunk's number of tokens.

The cost of attention grows with the square of the length. The rest of a layer has a constant cost
per token, and launches have a constant cost per chunk::

    time = a + b tokens [+ c tokens (tokens + 2 prefix)]

The prefix is the part of the prompt that earlier chunks left in the cache. A table of operations
may contain prefixes, but range names do not. If prefixes are unknown, they are reconstructed: every
chunk of a prompt except the last one is assumed to have the maximum length::

    tokens  8192 8192 8192 3000 | 8192 500 |
    prefix     0 8192 16384 24576 |  0 8192 |

If all chunks have the same length x, their times show c, and the sum a + b x, but not how the sum
is divided. Any a between 0 and that sum fits equally well. The fit then has a = 0, and a bound on
a::

    time = (a + b x) + c x (x + 2 prefix)

Schedulers that divide prompts into chunks of equal cost fit the same curve (SGLang's
``ChunkSizePredictor`` in ``scheduler_pp_mixin.py``, vLLM's pull request 41247).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Minimum number of distinct lengths for fitting the square term without prefixes.
_MIN_LENGTHS = 4
#: Minimum length of a chunk, if all chunks have the same length and prefixes are unknown. Shorter
#: chunks may be decode steps, whose time also grows.
_MIN_TOKENS = 512
#: Minimum value of c, the coefficient of the square term, in standard errors of c.
_MIN_ERRORS = 4.0
#: Minimum size of the largest square term, as a fraction of the longest chunk time.
_MIN_SHARE = 0.01
#: Minimum norm of the component of the last term that is orthogonal to the other terms.
_MIN_INDEPENDENT = 1e-6
#: Maximum ratio of the residual sum of squares with prefixes to the sum without prefixes.
_MAX_RESIDUAL = 0.8


@dataclass(frozen=True)
class ChunkCost:
    """The fitted cost of chunks on one virtual stage.

    Attributes:
        stage: Stage of the ranks, or -1 if unknown.
        virtual_stage: Index of the model chunk in model order, or -1 if unknown.
        n: Number of chunks.
        least_tokens: Number of tokens in the shortest chunk.
        most_tokens: Number of tokens in the longest chunk.
        fixed_ns: The fitted constant a, or the mean time if a constant is used. 0 if all chunks
            have the same length and times depend on the prefix.
        token_ns: The fitted coefficient b, in ns per token, or None if a constant is used.
        token_squared_ns: The fitted coefficient c, in ns per squared token. 0 if a line is used,
            or None if a constant is used.
        residual_ns: Standard deviation of the residuals, or None if there are no more chunks than
            fitted coefficients.
        explained: Fraction of the variance that the fit explains (R squared), or None if the times
            or the lengths do not vary.
        prompt_tokens: Number of tokens in the longest prompt if the fit uses prefixes, otherwise 0.
        max_fixed_ns: Upper bound of a if all chunks have the same length and times depend on the
            prefix. None in all other cases.
        deviations: Independent standard deviations of (a, b, c). Their outer products add up to the
            covariance of the fit, if all times have as much noise as the longest one.
        dof: Degrees of freedom of the fit.
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
    prompt_tokens: int = 0
    max_fixed_ns: float | None = None
    deviations: tuple[tuple[float, ...], ...] = ()
    dof: int = 0

    def time_ns(self, tokens: Floats, prefix: Floats | float = 0.0) -> Floats:
        """Return the fitted times of chunks in ns, given their token counts and prefixes."""
        line = self.fixed_ns + (self.token_ns or 0.0) * tokens
        return np.asarray(line + (self.token_squared_ns or 0.0) * tokens * (tokens + 2 * prefix))

    def assume_fixed(self, fraction: float) -> ChunkCost:
        """Return an equally good fit, whose constant a is a fraction of its upper bound.

        The result is the same fit if a is known.

        Args:
            fraction: Fraction of ``max_fixed_ns``, from 0 to 1.
        """
        if self.max_fixed_ns is None:
            return self
        fixed_ns = fraction * self.max_fixed_ns
        token_ns = (self.max_fixed_ns - fixed_ns) / self.most_tokens
        return replace(self, fixed_ns=fixed_ns, token_ns=token_ns)

    def deviate(self, direction: int, n_deviations: float) -> ChunkCost:
        """Return a fit that differs from this one by standard deviations in one direction.

        No coefficient of the result is negative; see :func:`_make_plausible`.

        Args:
            direction: Index in ``deviations``. The coefficients do not differ if there is no such
                direction.
            n_deviations: Number of standard deviations, which may be negative or 0.
        """
        factors = np.array([self.fixed_ns, self.token_ns or 0.0, self.token_squared_ns or 0.0])
        factors = _make_plausible(factors, self.most_tokens)
        if direction < len(self.deviations):
            deviation = self.deviations[direction]
            factors[: len(deviation)] += n_deviations * np.array(deviation)
            factors = _make_plausible(factors, self.most_tokens)
        return self.replace_factors(factors)

    def replace_factors(self, factors: Floats) -> ChunkCost:
        """Return a fit with other coefficients. The bound of a, if there is one, follows from b.

        Args:
            factors: New coefficients (a, b, c).
        """
        fixed_ns, token_ns, token_squared_ns = factors.tolist()
        has_bound = self.max_fixed_ns is not None
        return replace(
            self,
            fixed_ns=fixed_ns,
            token_ns=token_ns,
            token_squared_ns=token_squared_ns,
            max_fixed_ns=token_ns * self.most_tokens if has_bound else None,
        )


def _make_plausible(factors: Floats, most_tokens: int) -> Floats:
    """Return coefficients (a, b, c) of which none is negative.

    If a or b is negative, the result has 0 instead. The other one is smaller, so that the time of
    the longest chunk without a prefix stays the same.

    Args:
        factors: Coefficients (a, b, c).
        most_tokens: Number of tokens in the longest chunk, at least 1.
    """
    fixed_ns, token_ns, token_squared_ns = factors.tolist()
    longest_ns = max(fixed_ns + token_ns * most_tokens, 0.0)
    fixed_ns = min(max(fixed_ns, 0.0), longest_ns)
    token_ns = (longest_ns - fixed_ns) / most_tokens
    return np.array([fixed_ns, token_ns, max(token_squared_ns, 0.0)])


def measure_chunk_costs(
    operations: Operations, stage: Ints, averaged: Bools
) -> tuple[ChunkCost, ...]:
    """Fit the time of a chunk as a function of its number of tokens, for each virtual stage.

    Only complete forwards of averaged iterations whose number of tokens is known are used. If there
    are none, the result is empty. The fits are sorted by virtual stage.

    Args:
        operations: Operations of all ranks.
        stage: Stage of each rank, or -1 if unknown.
        averaged: Mask of the averaged iterations.
    """
    rows = find_costed_rows(operations, averaged)
    stage_of_row = stage[operations.rank[rows]]
    groups = grouping.group_rows(operations.virtual_stage[rows], stage_of_row)
    return tuple(
        _measure_stage_cost(operations, rows[groups.of_row == group], int(stage_of_row[first]))
        for group, first in enumerate(groups.first.tolist())
    )


def _measure_stage_cost(operations: Operations, rows: Ints, stage: int) -> ChunkCost:
    """Fit the busy time of forwards on one virtual stage as a function of their chunks' tokens.

    :func:`_fit_cost` chooses between a constant, a line and a curve.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the chunks' forwards on the virtual stage. Must not be empty.
        stage: Stage of the ranks, or -1 if unknown.
    """
    tokens = operations.tokens[rows]
    time_ns = operations.busy_ns[rows].astype(np.float64)
    prefix = list_prefixes(operations, rows)
    cost = None
    if tokens.min() == tokens.max() and _may_be_prompts(operations, rows):
        cost = _fit_prefix(int(tokens[0]), prefix, time_ns)
    fit = cost or _fit_cost(tokens, prefix, time_ns)
    factors, residual_ns = fit.factors, fit.residual_ns
    residual_sum = float((residual_ns**2).sum())
    total_sum = float(((time_ns - time_ns.mean()) ** 2).sum())
    # The fit of a single length determines two of its three coefficients.
    dof = len(rows) - (len(factors) if cost is None else 2)
    has_lengths = len(factors) > 1
    # Noise is often proportional to the time. The longest chunk then has the largest error.
    mean_square = float((time_ns**2).mean())
    noise_factor = float(time_ns.max()) / mean_square**0.5 if mean_square else 1.0
    return ChunkCost(
        stage=stage,
        virtual_stage=int(operations.virtual_stage[rows[0]]),
        n=len(rows),
        least_tokens=int(tokens.min()),
        most_tokens=int(tokens.max()),
        fixed_ns=factors[0],
        token_ns=factors[1] if has_lengths else None,
        token_squared_ns=(*factors, 0.0)[2] if has_lengths else None,
        residual_ns=float(np.sqrt(residual_sum / dof)) if dof > 0 else None,
        explained=1 - residual_sum / total_sum if has_lengths and total_sum else None,
        prompt_tokens=int((prefix + tokens).max()) if fit.uses_prefix else 0,
        max_fixed_ns=None if cost is None else factors[1] * float(tokens[0]),
        deviations=tuple(
            tuple(noise_factor * error for error in deviation) for deviation in fit.deviations
        ),
        dof=dof,
    )


def find_costed_rows(operations: Operations, averaged: Bools) -> Ints:
    """Return the rows of complete forwards in averaged iterations whose token counts are known.

    Args:
        operations: Operations of all ranks.
        averaged: Mask of the averaged iterations.
    """
    is_costed = operations.tokens >= 0
    if not is_costed.any():
        return np.flatnonzero(is_costed)
    is_costed &= (operations.phase == Phase.F) & (operations.has_span == 1)
    is_costed &= (operations.cut == 0) & (operations.iteration >= 0)
    return np.flatnonzero(is_costed & np.append(averaged, False)[operations.iteration])


def list_prefixes(operations: Operations, rows: Ints) -> Ints:
    """Return the prefix of each chunk: the number of tokens in earlier chunks of the same prompt.

    The recorded prefixes are used if all of them are known. Otherwise prompts are reconstructed
    from the chunks that a rank ran in an iteration, in order of start. A prompt ends with the first
    chunk that is shorter than the longest of all chunks, or at the end of the iteration.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the chunks' forwards.
    """
    if (operations.prefix[rows] >= 0).all():
        return operations.prefix[rows]
    tokens = operations.tokens[rows]
    order = grouping.sort_rows(
        operations.rank[rows], operations.iteration[rows], operations.start_ns[rows]
    )
    ordered, is_complete = tokens[order], tokens[order] == tokens.max(initial=0)
    first = grouping.mask_run_starts(
        *(c[rows][order] for c in (operations.rank, operations.iteration))
    )
    first[1:] |= ~is_complete[:-1]
    preceding_tokens = np.cumsum(ordered) - ordered
    prefix = np.empty(len(rows), np.int64)
    prefix[order] = preceding_tokens - preceding_tokens[first][np.cumsum(first) - 1]
    return prefix


def _may_be_prompts(operations: Operations, rows: Ints) -> bool:
    """Return whether chunks of a single length may be parts of prompts.

    They may if their prefixes were recorded, or if the run has no backward passes and the chunks
    are not so short that they may be decode steps.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the chunks' forwards, which all have the same number of tokens.
    """
    if (operations.prefix[rows] >= 0).all():
        return True
    is_long = operations.tokens[rows[0]] >= _MIN_TOKENS
    return bool(is_long and run_kind(operations.phase) == INFERENCE)


@dataclass(frozen=True, eq=False)
class _Fit:
    """The fitted times of chunks.

    Attributes:
        factors: One coefficient for a constant, two for a line, three for a curve (a, b, c).
        residual_ns: Residual of each chunk.
        deviations: Independent standard deviations of the coefficients; see
            :attr:`ChunkCost.deviations`.
        uses_prefix: Whether the times depend on a prefix, and any prefix is positive.
    """

    factors: tuple[float, ...]
    residual_ns: Floats
    deviations: tuple[tuple[float, ...], ...]
    uses_prefix: bool = False

    @property
    def error(self) -> float:
        """Standard error of the last coefficient.

        The error is infinite if the term of this coefficient depends linearly on the other terms.
        """
        return float(np.linalg.norm([deviation[-1] for deviation in self.deviations]))


def _fit_prefix(n_tokens: int, prefix: Ints, time_ns: Floats) -> _Fit | None:
    """Fit the times of chunks of a single length as a line in their prefixes.

    The line is ``time = b x + c x (x + 2 prefix)``, with a = 0. It must pass the tests that
    :func:`_fit_cost` applies to a curve: the number of chunks, the standard error of c, and the
    size of the term that depends on the prefix. It must also explain most of the variance, because
    times may also grow for other reasons.

    Args:
        n_tokens: Number of tokens x of every chunk.
        prefix: Number of tokens before each chunk.
        time_ns: Time of each chunk.

    Returns:
        The fit of a curve with prefixes, or None if the times do not depend on the prefix.
    """
    if len(prefix) <= _MIN_LENGTHS or prefix.min() == prefix.max() or n_tokens < 1:
        return None
    line = _fit_least_squares(prefix, None, time_ns)
    slope_ns = line.factors[1]
    growth_ns = slope_ns * float(prefix.max() - prefix.min())
    total_sum = float(((time_ns - time_ns.mean()) ** 2).sum())
    is_explained = 2 * float((line.residual_ns**2).sum()) < total_sum
    is_certain = slope_ns > _MIN_ERRORS * line.error
    # Coefficients (a, b, c) of the curve, given the intercept and the slope of the line.
    to_curve = np.array([[0.0, 0.0], [1 / n_tokens, -0.5], [0.0, 0.5 / n_tokens]])
    _, token_ns, token_squared_ns = (to_curve @ line.factors).tolist()
    deviations = [to_curve @ deviation for deviation in line.deviations]
    is_large = growth_ns > _MIN_SHARE * float(time_ns.max())
    if not (is_explained and is_certain and is_large and token_ns >= 0):
        return None
    return _Fit(
        (0.0, token_ns, token_squared_ns),
        line.residual_ns,
        tuple(tuple(deviation.tolist()) for deviation in deviations),
        uses_prefix=True,
    )


def _fit_cost(tokens: Ints, prefix: Ints, time_ns: Floats) -> _Fit:
    """Fit the simplest function that explains the times: a constant, a line or a curve.

    The candidates are tried in this order:

    1. A constant, if all chunks have the same length. Then no other function is tried.
    2. A line.
    3. A curve without prefixes, if there are more than 4 chunks with at least 4 distinct lengths.
    4. A curve with prefixes, if there are more than 4 chunks.

    A curve replaces the line if c exceeds 4 standard errors and the largest square term exceeds 1 %
    of the longest time. If a curve without prefixes was accepted, the curve with prefixes must fit
    significantly better. Its residual sum of squares must be below 80 % of the other sum.

    Args:
        tokens: Number of tokens in each chunk. Must not be empty.
        prefix: Number of tokens before each chunk.
        time_ns: Time of each chunk.
    """
    n_lengths = len(grouping.find_distinct(tokens))
    if n_lengths < 2:
        residual_ns = time_ns - time_ns.mean()
        error_ns = float(np.linalg.norm(residual_ns)) / max(len(tokens) - 1, 1)
        return _Fit((float(time_ns.mean()),), residual_ns, ((error_ns,),))
    chosen, max_residual = _fit_least_squares(tokens, None, time_ns), np.inf
    for read_prefix, min_lengths in ((np.zeros_like(tokens), _MIN_LENGTHS), (prefix, 2)):
        if n_lengths < min_lengths or len(tokens) <= _MIN_LENGTHS:
            continue
        curve = _fit_least_squares(tokens, read_prefix, time_ns)
        bend_ns = curve.factors[2]
        max_square = float((tokens * (tokens + 2.0 * read_prefix)).max())
        is_large = bend_ns * max_square > _MIN_SHARE * float(time_ns.max())
        residual_sum = float((curve.residual_ns**2).sum())
        if is_large and bend_ns > _MIN_ERRORS * curve.error and residual_sum < max_residual:
            chosen = curve
            max_residual = residual_sum * _MAX_RESIDUAL
    return chosen


def _fit_least_squares(tokens: Ints, prefix: Ints | None, time_ns: Floats) -> _Fit:
    """Fit ``time = a + b * tokens + c * tokens * (tokens + 2 * prefix)`` by least squares.

    Args:
        tokens: Number of tokens in each chunk. Must contain at least two distinct numbers.
        prefix: Number of tokens before each chunk, or None to fit a line without c.
        time_ns: Time of each chunk.
    """
    # Lengths are centered: otherwise the powers of similar lengths are almost linearly dependent.
    length_range = float(tokens.min()), float(tokens.max())
    middle = (length_range[0] + length_range[1]) / 2
    half_range = (length_range[1] - length_range[0]) / 2
    columns = [np.ones(len(tokens)), (tokens - middle) / half_range]
    # Coefficients (a, b) of the line, given the coefficients of these columns.
    to_powers = np.array([[1.0, -middle / half_range], [0.0, 1 / half_range]])
    if prefix is not None:
        square_term = (tokens - middle) ** 2 + 2.0 * tokens * prefix
        scale = float(np.abs(square_term).max())
        columns.append(square_term / scale)
        # c ((x - middle)^2 + 2 x prefix) equals c x (x + 2 prefix) plus a line.
        to_powers = np.vstack([to_powers, [0.0, 0.0]])
        to_powers = np.column_stack([to_powers, np.array([middle**2, -2 * middle, 1.0]) / scale])
    terms = np.stack(columns, axis=1)
    factors = np.linalg.lstsq(terms, time_ns, rcond=None)[0]
    residual_ns = time_ns - terms @ factors
    deviations = _estimate_deviations(terms, residual_ns)
    # Infinite deviations stay infinite, because 0 times infinity is not a number.
    if np.isfinite(deviations).all():
        deviations = to_powers @ deviations
    return _Fit(
        tuple((to_powers @ factors).tolist()),
        residual_ns,
        tuple(tuple(deviation) for deviation in deviations.T.tolist()),
        uses_prefix=bool(prefix is not None and prefix.any()),
    )


def _estimate_deviations(terms: Floats, residual: Floats) -> Floats:
    """Return independent standard deviations of the coefficients of a least-squares fit.

    The covariance is the residual variance times the inverse of ``terms.T @ terms``. This inverse
    is ``R^-1 R^-T`` with the QR decomposition of the terms, so the columns of ``R^-1`` are
    independent.

    Args:
        terms: Terms of the fit, shape (observations, coefficients).
        residual: Difference between each observation and the fit.

    Returns:
        One column per direction, shape (coefficients, directions). Infinite if the last term is
        linearly dependent on the other terms.
    """
    n_observations, n_factors = terms.shape
    triangle = np.linalg.qr(terms)[1]
    # Norm of the component of the last term that is orthogonal to the other terms.
    independent_norm = abs(float(triangle[-1, -1]))
    if n_observations < n_factors or independent_norm <= _MIN_INDEPENDENT:
        return np.full((n_factors, n_factors), np.inf)
    dof = max(n_observations - n_factors, 1)
    deviation = np.sqrt(float((residual**2).sum()) / dof)
    return np.asarray(deviation * np.linalg.inv(triangle))
