"""Fixtures for tests of renderers: a report, a browser, and pages opened in it."""

from __future__ import annotations

import pytest

import bubbleviz
from bubbleviz.report.report import Report
from tests.support.opened_pages import browser, opened
from tests.support.places import FIXTURES

__all__ = ["browser", "opened"]


@pytest.fixture(scope="session")
def report() -> Report:
    """Return the report of the 1F1B example."""
    return bubbleviz.analyze([FIXTURES / "1f1b"])
