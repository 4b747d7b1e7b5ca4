"""Properties of all output formats."""

from functools import cache

import pytest

import bubbleviz
from bubbleviz.render.formats import get_renderer, list_renderers
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.places import FIXTURES

NAMES = [renderer.name for renderer in list_renderers()]


@cache
def analyzed(_time: int) -> Report:
    return bubbleviz.analyze(FIXTURES / "1f1b", what_if=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_run_gives_the_same_bytes(name: str) -> None:
    renderer = get_renderer(name)
    assert renderer.render(analyzed(1), View()) == renderer.render(analyzed(2), View())
