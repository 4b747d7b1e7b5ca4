"""Describe how long prompt chunks take, and find chunk sizes that take equal time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.report.kernel_time import NOTICEABLE


def format_cost(cost: ChunkCost) -> str:
    """Return the fitted time of a chunk as text, for example ``0.120 ms + 0.310 us/token``.

    If all chunks have the same length, the text is ``0.120 ms for 512 tokens``. A quadratic term
    that is not 0 is appended.
    """
    fixed = f"{round(cost.fixed_ns / 1e6, 3) + 0.0:.3f} ms"  # avoid -0.000
    if cost.token_ns is None:
        return f"{fixed} for {cost.most_tokens:,} tokens"
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
        A sentence without a final period. It is "" if chunks differ in length and no fit depends on
        a prefix, or if there are no costs.
    """
    if any(cost.prompt_tokens and cost.token_squared_ns for cost in costs):
        return "Chunks take longer as their prefix grows"
    tokens = {number for cost in costs for number in (cost.least_tokens, cost.most_tokens)}
    # A chunk of a single token is a decode step, which cannot be made shorter.
    if len(tokens) != 1 or tokens == {1}:
        return ""
    return f"All chunks have {tokens.pop():,} tokens, so longer prefixes may be the reason"


def find_even_chunks(
    costs: Sequence[ChunkCost],
) -> tuple[int, tuple[int, ...], float, float] | None:
    """Split the longest prompt into chunks that take equal time.

    If all chunks have the same length, later chunks take more time because they read a longer
    prefix. In a pipeline of equal stages, the time of a prompt depends on the slowest chunk::

        time = sum of the chunk times on one stage + (stages - 1) x time of the slowest chunk

    For the first chunk, 17 lengths are tried, from a quarter to four times the length of the
    longest measured chunk. Every further chunk takes about as long as the first one. The split with
    the shortest time is used. All stages are assumed to cost as much as the slowest one, which is
    the stage whose longest chunk takes the most time.

    Args:
        costs: Chunk costs, one entry per virtual stage.

    Returns:
        stage: The virtual stage whose costs were used.
        tokens: Number of tokens in each chunk of the best split.
        equal_ns: Time that the prompt takes in chunks of the longest measured length.
        even_ns: Time that the prompt takes in the chunks of the best split.

        The result is None if no cost depends on a prefix, or if the best split saves at most 1 %.
    """
    long_prompt_costs = [cost for cost in costs if cost.prompt_tokens and cost.token_squared_ns]
    if not long_prompt_costs:
        return None
    slowest = max(
        long_prompt_costs, key=lambda cost: float(cost.time_ns(np.array(cost.most_tokens)))
    )
    chunk_tokens = slowest.most_tokens
    n_full_chunks, remaining_tokens = divmod(slowest.prompt_tokens, chunk_tokens)
    equal_chunks = (chunk_tokens,) * n_full_chunks + (remaining_tokens,) * bool(remaining_tokens)

    def prompt_time_ns(tokens: tuple[int, ...]) -> float:
        """Return how long the prompt takes, in ns, if it is divided into the given chunks."""
        prefixes = np.cumsum((0, *tokens[:-1]))
        chunk_times_ns = [
            float(slowest.time_ns(np.array(n_tokens), prefix))
            for n_tokens, prefix in zip(tokens, prefixes.tolist(), strict=True)
        ]
        return sum(chunk_times_ns) + (len(costs) - 1) * max(chunk_times_ns)

    # The lengths range from a quarter to four times the length of the longest chunk that ran.
    firsts = {int(chunk_tokens * 2 ** (power / 4)) for power in range(-8, 9)}
    even = min(map(slowest.split_prompt, sorted(firsts)), key=prompt_time_ns)
    is_saving = prompt_time_ns(even) < (1 - NOTICEABLE) * prompt_time_ns(equal_chunks)
    return (
        (slowest.virtual_stage, even, prompt_time_ns(equal_chunks), prompt_time_ns(even))
        if is_saving
        else None
    )


def _format_signed(value: float) -> str:
    value = round(value, 9)  # round tiny fitting errors to 0
    return f"{'+' if value >= 0 else '-'} {abs(value):.4g}"
