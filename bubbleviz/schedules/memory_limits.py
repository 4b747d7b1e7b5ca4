"""Memory limits: what fits them."""

from __future__ import annotations

#: Memory is a sum of floats: what exceeds a limit by less, as a share, fits.
ROUNDING = 1e-9


def within(peak: float, limit: float) -> bool:
    """Return whether a peak fits a limit, in the same unit."""
    return peak <= limit * (1 + ROUNDING)
