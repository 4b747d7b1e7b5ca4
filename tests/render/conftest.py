"""What tests of renderers share: a browser, and pages opened in it."""

from __future__ import annotations

from tests.support.opened_pages import browser, opened

__all__ = ["browser", "opened"]
