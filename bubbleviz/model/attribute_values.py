"""Base class of values that users may mistake for methods."""

from __future__ import annotations

from typing import NoReturn


class SummaryValue:
    """Base class of the attribute ``summary`` of reports. An attempt to call it says what to do."""

    __slots__ = ()

    def __call__(self) -> NoReturn:
        """Say that ``summary`` is an attribute.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "summary is an attribute and not a method; use report.summary without parentheses, or "
            "print(report)"
        )
