"""Host activities: what hosts do, by name: a list that is data (``host_activities.toml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from bubbleviz.conventions._toml import load_toml
from bubbleviz.conventions.convention import plain
from bubbleviz.errors import InputError, UsageError

#: Activities that no name tells.
PROFILER, DEVICE, OTHER_DEVICE = "profiler", "device", "other device"
SHORT, UNTRACED, UNLINKED = "short gaps", "untraced", "unlinked"
LAUNCH, TRANSFER, CALLS = "launch", "transfer", "CUDA calls"
#: What the names of activities begin with that are ranges of any other name.
HOST = "host: "
#: Strengths: takes all inside, known by name, any other range, frames of Python.
WHOLE, KNOWN, NAMED, FRAME = 3, 2, 1, 0

_KEYS = frozenset(("name", "strength", "meaning", "advice", "match"))
_DIGITS = re.compile(r"\d+")
#: Of a range's name in the name of an activity, characters.
_LONGEST = 60


@dataclass(frozen=True)
class Activity:
    """Something a host does.

    Attributes:
        name: for people.
        strength: of the ranges and calls around an instant the strongest tells, of equally strong
            ones the innermost.
        meaning: in half a sentence.
        advice: what may help against it.
        match: regexes, tried anywhere in a name and in any case.
    """

    name: str
    strength: int
    meaning: str
    advice: str
    match: tuple[str, ...]


@dataclass(frozen=True)
class HostActivities:
    """Activities in the order in which they are tried."""

    all_of: tuple[Activity, ...]

    def named(self, name: str) -> Activity | None:
        """Return the activity of a name that says what it means; None for ``host: NAME``."""
        same = [own for own in self.all_of if own.name == name]
        return next((own for own in same if own.meaning), same[0] if same else None)

    def reading(self) -> Reading:
        """Return a fresh reading of names by these activities."""
        compiled = [
            (own, re.compile("|".join(f"(?:{r})" for r in own.match), re.IGNORECASE))
            for own in self.all_of
            if own.match
        ]
        return Reading(tuple(compiled), {})

    def extended(self, path: str | Path) -> HostActivities:
        """Return these with a user's own in front, from a TOML file.

        Raises:
            InputError: the file cannot be read.
            UsageError: it is no list of activities.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: cannot be read as activities ({type(error).__name__}); give a TOML file "
                "with [[activity]] tables of name and match"
            ) from error
        own = _from_text(text, str(path))
        told = {known.name for known in self.all_of if not known.match}
        taken = sorted(told & {activity.name for activity in own})
        if taken:
            raise UsageError(
                f"{path}: {taken[0]!r} is what no name tells; give the activity another name"
            )
        return HostActivities((*own, *self.all_of))


@dataclass(frozen=True)
class Reading:
    """Tells what names mean, each distinct one once.

    Attributes:
        compiled: activities that names tell, with their regexes.
        known: (activity, strength) of the names seen so far.
    """

    compiled: tuple[tuple[Activity, re.Pattern[str]], ...]
    known: dict[str, tuple[str, int]]

    def of(self, name: str) -> tuple[str, int]:
        """Return what a host does under a name, and how strongly that is told."""
        text = plain(name)
        if text not in self.known:
            self.known[text] = self._read(text)
        return self.known[text]

    def call(self, name: str) -> tuple[str, int]:
        """Return what a host does in a call of a name."""
        found = self.of(name)
        return (CALLS, KNOWN) if found[1] < KNOWN else found

    def _read(self, text: str) -> tuple[str, int]:
        for activity, regex in self.compiled:
            if regex.search(text):
                return activity.name, activity.strength
        return f"{HOST}{_DIGITS.sub('#', text)[:_LONGEST] or '(no name)'}", NAMED


@cache
def default_activities() -> HostActivities:
    """Return the activities that come with bubbleviz."""
    text = (
        files("bubbleviz.conventions").joinpath("host_activities.toml").read_text(encoding="utf-8")
    )
    return HostActivities(_from_text(text, "host_activities.toml"))


def _from_text(text: str, where: str) -> tuple[Activity, ...]:
    try:
        data = load_toml(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: not TOML ({error}); give [[activity]] tables of name and match"
        ) from error
    tables = data.get("activity")
    if not isinstance(tables, list) or not tables or set(data) != {"activity"}:
        raise UsageError(f"{where}: needs [[activity]] tables, and nothing else")
    return tuple(_activity(table, f"{where}: activity {i}") for i, table in enumerate(tables, 1))


def _activity(table: object, where: str) -> Activity:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UsageError(f"{where}: needs a name, a text")
    strange = sorted(set(table) - _KEYS)
    if strange:
        raise UsageError(
            f"{where}: unknown key {strange[0]!r}; the keys are {', '.join(sorted(_KEYS))}"
        )
    strength = table.get("strength", KNOWN)
    if isinstance(strength, bool) or strength not in (FRAME, NAMED, KNOWN, WHOLE):
        raise UsageError(f"{where}: strength must be 0, 1, 2 or 3, not {strength!r}")
    meaning, advice = table.get("meaning", ""), table.get("advice", "")
    if not isinstance(meaning, str) or not isinstance(advice, str):
        raise UsageError(f"{where}: meaning and advice must be texts")
    match = _regexes(table.get("match", []), where)
    return Activity(str(table["name"]), int(strength), meaning, advice, match)


def _regexes(texts: object, where: str) -> tuple[str, ...]:
    if (
        isinstance(texts, str)
        or not isinstance(texts, Sequence)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise UsageError(f"{where}: match must be a list of regular expressions")
    for text in texts:
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{where}: {text!r} is no regular expression ({error}); mend it"
            ) from error
    return tuple(texts)
