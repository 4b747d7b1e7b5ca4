"""Chunks of prompts: what they cost, in words, and chunks that keep the stages even."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.report.kernel_time import NOTICEABLE


def cost_in_words(cost: ChunkCost) -> str:
    """Return the fitted time of a chunk: ``0.120 ms + 0.310 us/token``."""
    fixed = f"{round(cost.fixed_ns / 1e6, 3) + 0.0:.3f} ms"  # no -0.000
    if cost.token_ns is None:
        return f"{fixed} for {cost.most_tokens:,} tokens"
    line = f"{fixed} {_signed(cost.token_ns / 1e3)} us/token"
    if not cost.token_squared_ns:
        return line
    if cost.prompt_tokens:
        return f"{line} {_signed(cost.token_squared_ns)} ns x tokens x (tokens + 2 prefix)"
    return f"{line} {_signed(cost.token_squared_ns)} ns/token²"


def even_chunks(costs: Sequence[ChunkCost]) -> tuple[int, tuple[int, ...], float, float] | None:
    """Return chunks of the longest prompt that take equally long.

    In a pipeline of equal stages, chunks of equal length take longer and longer, since each one
    reads a longer prefix, and delay each other::

        time = sum of the chunks on one stage + (stages - 1) x the longest chunk

    Args:
        costs: Costs of chunks by virtual stage.

    Returns:
        The virtual stage with the longest chunks, the tokens of the even chunks, and the time of
        the prompt in chunks of equal length and in the even chunks, in ns. None if no cost depends
        on a prefix, or even chunks save less than 1 %.
    """
    read = [cost for cost in costs if cost.prompt_tokens and cost.token_squared_ns]
    if not read:
        return None
    slowest = max(read, key=lambda own: float(own.time_ns(np.array(own.most_tokens))))
    whole = slowest.most_tokens
    number, rest = divmod(slowest.prompt_tokens, whole)
    equal = (whole,) * number + (rest,) * bool(rest)

    def passed_ns(tokens: tuple[int, ...]) -> float:
        before = np.cumsum((0, *tokens[:-1]))
        each_ns = [
            float(slowest.time_ns(np.array(own), prefix))
            for own, prefix in zip(tokens, before.tolist(), strict=True)
        ]
        return sum(each_ns) + (len(costs) - 1) * max(each_ns)

    # The first chunk is between a quarter of those that ran and four times as long.
    firsts = {int(whole * 2 ** (power / 4)) for power in range(-8, 9)}
    even = min(map(slowest.even_chunks, sorted(firsts)), key=passed_ns)
    saves = passed_ns(even) < (1 - NOTICEABLE) * passed_ns(equal)
    return (slowest.virtual_stage, even, passed_ns(equal), passed_ns(even)) if saves else None


def _signed(value: float) -> str:
    value = round(value, 9)  # what a fit of equal times leaves is zero
    return f"{'+' if value >= 0 else '-'} {abs(value):.4g}"
