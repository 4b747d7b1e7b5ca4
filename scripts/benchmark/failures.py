"""What a benchmark that cannot go on says, in one sentence."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot go on."""
