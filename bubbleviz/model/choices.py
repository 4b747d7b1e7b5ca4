"""Choices: the words that options take."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.paper_lengths import parse_millimetres
from bubbleviz.model.texts import suggest_word

#: How several hosts are put on one clock: by what waited for what, by their UTC, not at all.
ALIGNMENTS = ("causal", "utc", "none")
#: What transfers between ranks wait for: `bubbleviz.schedules.communication.transports`.
CARRIERS = ("buffered", "rendezvous", "streams", "blocking")
#: What a row of a picture or a table is.
ROWS = ("rank", "stage", "spread")
#: How a picture is set, and what may be set otherwise behind that, with examples.
STYLES = ("screen", "paper")
STYLE_KEYS = {
    "row": "row=30",
    "height": "height=60mm",
    "font": "font=Times",
    "legend": "legend=no",
    "labels": "labels=yes",
}
#: How a plan runs the backward: in its two halves, or as one operation.
BACKWARDS = ("split", "fused")
#: A device whose queue is full goes from one kernel to the next in 0.6 to 2.6 us (seen on A100 and
#: H100); no gap so short is the host's.
SHORTEST_US = 3.0


def parse_style(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the style that ``paper,font=Times,legend=no`` names, and what is set otherwise.

    Raises:
        UsageError: a style, key or value is unknown.
    """
    words = (text or "").split(",")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    (name, *more) = [word for word in words if "=" not in word and word] or [STYLES[0]]
    check_choice(name, STYLES, "--style")
    for key, value in settings.items():
        check_choice(key, tuple(STYLE_KEYS), "--style")
        if key in {"legend", "labels"}:
            check_choice(value, ("yes", "no"), f"--style {key}=")
        elif not value or (key == "row" and not (value.isdecimal() and 2 <= int(value) <= 500)):
            raise UsageError(f"--style {key}={value[:60]}: not of the form {STYLE_KEYS[key]}")
    if "height" in settings:
        parse_millimetres(settings["height"], "--style height", 1.0)
        if "row" in settings:
            raise UsageError("--style: row and height both set how high rows are; give one")
    if more:
        raise UsageError(f"--style {text[:60] if text else ''}: two styles; give one")
    return name, settings


def check_choice(value: str | None, choices: tuple[str, ...], option: str) -> None:
    """Check the value of an option; None is none given.

    Raises:
        UsageError: it is none of the choices.
    """
    if value is not None and value not in choices:
        raise UsageError(
            f"{option} {value[:60]!r}: not one of {', '.join(choices)}"
            f"{suggest_word(value, choices)}"
        )
