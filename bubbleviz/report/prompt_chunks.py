"""Describe how long prompt chunks take, and the chunk lengths that take equal time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.model.texts import capitalize, format_percent
from bubbleviz.report.labels import format_ms

if TYPE_CHECKING:
    from bubbleviz.explain.prompt_splits import PromptSplit

#: Chunk lengths are all listed if there are at most this many. Otherwise, the first lengths and the
#: last one are listed.
_MAX_LENGTHS, _N_FIRST_LENGTHS = 12, 4

#: Minimum fraction of the variance that lengths explain if they are the reason for uneven times.
_MIN_EXPLAINED = 0.5


def format_cost(cost: ChunkCost) -> str:
    """Return the fitted time of a chunk as text, for example ``0.120 ms + 0.310 us/token``.

    If all chunks have the same length, the text is ``0.120 ms for 512 tokens``. A quadratic term
    that is not 0 is appended.
    """
    if cost.max_fixed_ns is not None:
        cost = cost.assume_fixed(1.0)
    fixed = f"{round(cost.fixed_ns / 1e6, 3) + 0.0:.3f} ms"  # avoid -0.000
    line = f"{fixed} for {cost.most_tokens:,} tokens"
    if cost.token_ns is None:
        return line
    if cost.max_fixed_ns is None:
        line = f"{fixed} {_format_signed(cost.token_ns / 1e3)} us/token"
    if not cost.token_squared_ns:
        return line
    if cost.prompt_tokens:
        return f"{line} {_format_signed(cost.token_squared_ns)} ns x tokens x (tokens + 2 prefix)"
    return f"{line} {_format_signed(cost.token_squared_ns)} ns/token²"


def explain_uneven_chunks(costs: Sequence[ChunkCost]) -> str:
    """Return the reason why prompt chunks take different times even if their lengths are equal.

    Args:
        costs: Chunk costs, one entry per virtual stage.

    Returns:
        A sentence without a final period. It is "" if the lengths of chunks explain their times and
        no fit depends on a prefix, or if there are no costs.
    """
    if any(cost.prompt_tokens and cost.token_squared_ns for cost in costs):
        return "Chunks take longer as their prefix grows"
    tokens = {number for cost in costs for number in (cost.least_tokens, cost.most_tokens)}
    # A chunk of a single token is a decode step, which cannot be made shorter.
    if tokens == {1}:
        return ""
    explained = [cost.explained for cost in costs if cost.explained is not None]
    if len(tokens) > 1 and explained and max(explained) < _MIN_EXPLAINED:
        return (
            f"The lengths of chunks explain at most {format_percent(max(explained))} of the "
            "variance of their times, so longer prefixes may be the reason"
        )
    if len(tokens) != 1:
        return ""
    return f"All chunks have {tokens.pop():,} tokens, so longer prefixes may be the reason"


def describe_split(split: PromptSplit) -> str:
    """Return which prompts to divide into which chunks, as an object of the verb "divide".

    If there are more than ``_MAX_LENGTHS`` chunks, only the first lengths and the last one are
    listed.
    """
    lengths = [f"{n_tokens:,}" for n_tokens in split.tokens]
    if len(lengths) > _MAX_LENGTHS:
        lengths = [*lengths[:_N_FIRST_LENGTHS], "…", lengths[-1]]
    return (
        f"prompts of {sum(split.tokens):,} tokens into {len(split.tokens):,} chunks of "
        f"equal time, with {', '.join(lengths)} tokens"
    )


def explain_omitted_lengths(split: PromptSplit) -> str:
    """Return where all chunk lengths are listed, or "" if :func:`describe_split` lists them."""
    return "All lengths: -v operations" if len(split.tokens) > _MAX_LENGTHS else ""


def describe_split_time(split: PromptSplit) -> str:
    """Return how long the divided prompt takes, as a clause with both times.

    If the fixed cost of a chunk is unknown, the time is a range.
    """
    even = format_ms(round(split.even_ns))
    if split.max_fixed_ns is not None:
        even = f"{format_ms(round(split.min_even_ns))} to {even}"
    return f"a prompt takes {even} instead of {format_ms(round(split.equal_ns))}"


def explain_split_time(split: PromptSplit) -> str:
    """Return how long the divided prompt takes as a sentence, with the reason if it is a range."""
    if split.max_fixed_ns is None:
        return capitalize(describe_split_time(split))
    max_fixed = format_ms(round(split.max_fixed_ns))
    return (
        f"Chunks of one length do not show how much of a chunk's time is fixed (0 to {max_fixed}), "
        f"so {describe_split_time(split)}; a run with another length narrows this range"
    )


def describe_unmeasured_lengths(split: PromptSplit, costs: Sequence[ChunkCost]) -> str:
    """Return a sentence about lengths outside the measured range, or "" if there are none.

    The last chunk of a prompt may have any length, so it is not considered.
    """
    cost = next(cost for cost in costs if cost.virtual_stage == split.virtual_stage)
    shortest, longest = min(split.tokens[:-1] or split.tokens), max(split.tokens)
    if cost.max_fixed_ns is not None:
        return ""
    if cost.least_tokens <= 2 * shortest and longest <= 2 * cost.most_tokens:
        return ""
    measured = f"{cost.least_tokens:,} to {cost.most_tokens:,}"
    return f"Only chunks of {measured} tokens were measured, so the time is extrapolated"


def _format_signed(value: float) -> str:
    value = round(value, 9)  # round tiny fitting errors to 0
    return f"{'+' if value >= 0 else '-'} {abs(value):.4g}"
