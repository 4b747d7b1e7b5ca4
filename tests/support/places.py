"""Paths of the checkout, the example profiles and the test files."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FIXTURES = CHECKOUT / "fixtures"
FAKES = CHECKOUT / "tests" / "fakes"
GOLDEN = CHECKOUT / "tests" / "golden"
#: The profile of the 1F1B example.
EXAMPLE = FIXTURES / "1f1b" / "node0.sqlite"
