"""Allowed values of command-line options."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.paper_lengths import parse_millimeters
from bubbleviz.model.texts import suggest_word

#: Methods for aligning host clocks: by data dependencies, by UTC, or not at all.
ALIGNMENTS = ("causal", "utc", "none")
#: How transfers between ranks behave; see `bubbleviz.schedules.communication.transports`.
CARRIERS = ("buffered", "rendezvous", "streams", "blocking")
#: What each row of a picture or table shows: a rank, a stage, or the spread across replicas.
ROWS = ("rank", "stage", "spread")
#: Styles of pictures. Settings may follow the style; ``STYLE_KEYS`` has an example of each setting.
STYLES = ("screen", "paper")
STYLE_KEYS = {
    "row": "row=30",
    "height": "height=60mm",
    "font": "font=Times",
    "legend": "legend=no",
    "labels": "labels=yes",
}
#: Whether a plan splits each backward into two operations (B and W) or runs it as a single one.
BACKWARDS = ("split", "fused")
#: Default minimum length of an idle gap, in us. Gaps shorter than this are not caused by the host.
#: A100 and H100 GPUs need 0.6 to 2.6 us between two kernels even if their queue is full.
SHORTEST_US = 3.0


def parse_style(text: str | None) -> tuple[str, dict[str, str]]:
    """Parse a style and its settings, such as ``paper,font=Times,legend=no``.

    If the text names no style, its settings apply to the default style, ``STYLES[0]``.

    Args:
        text: Text entered by the user, or None for the default style without settings.

    Returns:
        name: Name of the style.
        settings: Values of the settings, keyed by name. If a setting is repeated, the last value
            wins.

    Raises:
        UsageError: A style, setting or value is invalid, two styles are given, or both ``row`` and
            ``height`` are given.
    """
    words = (text or "").split(",")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    (name, *further_styles) = [word for word in words if "=" not in word and word] or [STYLES[0]]
    check_choice(name, STYLES, "--style")
    for key, value in settings.items():
        check_choice(key, tuple(STYLE_KEYS), "--style")
        if key in {"legend", "labels"}:
            check_choice(value, ("yes", "no"), f"--style {key}=")
        elif not value or (key == "row" and not (value.isdecimal() and 2 <= int(value) <= 500)):
            raise UsageError(f"--style {key}={value[:60]}: must have the form {STYLE_KEYS[key]}")
    if "height" in settings:
        parse_millimeters(settings["height"], "--style height", 1.0)
        if "row" in settings:
            raise UsageError("--style: row and height both set the row height; pass only one")
    if further_styles:
        raise UsageError(f"--style {text[:60] if text else ''}: only one style is allowed")
    return name, settings


def check_choice(value: str | None, choices: tuple[str, ...], option: str) -> None:
    """Check that the value of an option is one of the allowed choices. None is always accepted.

    Raises:
        UsageError: The value is not one of the choices. The message suggests a similar choice.
    """
    if value is not None and value not in choices:
        raise UsageError(
            f"{option} {value[:60]!r}: must be one of {', '.join(choices)}"
            f"{suggest_word(value, choices)}"
        )
