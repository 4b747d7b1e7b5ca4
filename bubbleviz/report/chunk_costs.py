"""Costs of chunks in words."""

from __future__ import annotations

from bubbleviz.explain.chunk_costs import ChunkCost


def cost_in_words(cost: ChunkCost) -> str:
    """Return the fitted time of a chunk: ``0.120 ms + 0.310 us/token``."""
    fixed = f"{round(cost.fixed_ns / 1e6, 3) + 0.0:.3f} ms"  # no -0.000
    if cost.token_ns is None:
        return f"{fixed} for {cost.most_tokens:,} tokens"
    line = f"{fixed} {_signed(cost.token_ns / 1e3)} us/token"
    if not cost.token_squared_ns:
        return line
    return f"{line} {_signed(cost.token_squared_ns)} ns/token²"


def _signed(value: float) -> str:
    value = round(value, 9)  # what a fit of equal times leaves is zero
    return f"{'+' if value >= 0 else '-'} {abs(value):.4g}"
