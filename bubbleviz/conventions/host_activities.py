"""Host activities: what hosts do, by name of range or call (``host_activities.toml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from bubbleviz.conventions import toml_files
from bubbleviz.conventions.kinds import any_regex
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import matched_part

#: Activities that are inferred without a name.
PROFILER, DEVICE, OTHER_DEVICE = "profiler", "stream or rank dependency", "other device"
SHORT, UNTRACED, UNLINKED = "kernel-to-kernel gaps", "no host trace", "launch not recorded"
MIGRATION, UNRECORDED = "page migration", "work not recorded"
BLOCKED_BY_COMMUNICATION = "blocked by communication"
BLOCKED_BY_COPIES, BLOCKED_BY_COMPUTE = "blocked by copies", "blocked by compute"
WAITING = "waiting"
LAUNCH, TRANSFER, CALLS = "launch", "transfer", "API calls"
#: Prefix of activities that are ranges of any other name.
HOST = "host: "
#: Strengths: takes all inside, known by name, any other range, Python frames.
WHOLE, KNOWN, NAMED, FRAME = 3, 2, 1, 0

_KINDS = {"name": str, "strength": int, "meaning": str, "advice": str, "match": list}
_DIGITS = re.compile(r"\d+")
#: Characters of a range's name in the name of an activity.
_LONGEST = 60


@dataclass(frozen=True)
class Activity:
    """Something a host does.

    Attributes:
        name: for people.
        strength: of the ranges and calls around an instant the strongest decides, of equally
            strong ones the innermost.
        meaning: in half a sentence.
        advice: what may help against it.
        match: regexes, tried anywhere in a name and in any case.
    """

    name: str
    strength: int = KNOWN
    meaning: str = ""
    advice: str = ""
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActivityList:
    """Activities in the order in which they are tried.

    Attributes:
        all_of: the activities.
        known: (activity, strength) of the names seen so far; see :meth:`lookup`.
    """

    all_of: tuple[Activity, ...]
    known: dict[str, tuple[str, int]] = field(default_factory=dict, compare=False)

    def named(self, name: str) -> Activity | None:
        """Return the activity of that name, with a meaning if any has; None for ``host: NAME``."""
        same = [activity for activity in self.all_of if activity.name == name]
        return next((a for a in same if a.meaning), same[0] if same else None)

    def lookup(self) -> ActivityList:
        """Return the same, which has seen no name yet; each is matched once."""
        return ActivityList(self.all_of)

    def of(self, name: str) -> tuple[str, int]:
        """Return the activity of a range's name, and its strength."""
        text = bare_name(name)
        if text not in self.known:
            matched = matched_part(text)
            other = f"{HOST}{_DIGITS.sub('#', matched)[:_LONGEST] or '(no name)'}", NAMED
            found = (
                (activity.name, activity.strength)
                for activity, regex in self._compiled
                if regex.search(matched)
            )
            self.known[text] = next(found, other)
        return self.known[text]

    def call(self, name: str) -> tuple[str, int]:
        """Return the activity of a call's name, and its strength."""
        activity, strength = self.of(name)
        return (activity, strength) if strength >= KNOWN else (CALLS, KNOWN)

    @cached_property
    def _compiled(self) -> list[tuple[Activity, re.Pattern[str]]]:
        return [(activity, any_regex(activity.match)) for activity in self.all_of if activity.match]

    def extended(self, path: str | Path) -> ActivityList:
        """Return these with a user's own in front, from a TOML file.

        Raises:
            InputError: the file cannot be read.
            UsageError: it is not a list of activities.
        """
        hint = "give a TOML file with [[activity]] tables of name and match"
        added = _from_text(toml_files.read(path, "activities", hint), str(path))
        reserved = {activity.name for activity in self.all_of if not activity.match}
        taken = sorted(reserved & {activity.name for activity in added})
        if taken:
            raise UsageError(
                f"{path}: {taken[0]!r} is reserved for what is inferred without a name; give the "
                "activity another name"
            )
        return ActivityList((*added, *self.all_of))


@cache
def default_activities() -> ActivityList:
    """Return the activities that come with bubbleviz."""
    return ActivityList(
        _from_text(toml_files.built_in("host_activities.toml"), "host_activities.toml")
    )


def _from_text(text: str, where: str) -> tuple[Activity, ...]:
    try:
        data = toml_files.load(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: not TOML ({error}); give [[activity]] tables of name and match"
        ) from error
    tables = data.get("activity")
    if not isinstance(tables, list) or not tables or set(data) != {"activity"}:
        raise UsageError(f"{where}: needs [[activity]] tables, and nothing else")
    return tuple(_activity(table, f"{where}: activity {i}") for i, table in enumerate(tables, 1))


def _activity(table: object, where: str) -> Activity:
    told = toml_files.fields_of(table, _KINDS, where)
    if not told.get("name"):
        raise UsageError(f"{where}: needs a name, a text")
    if told.get("strength", KNOWN) not in (FRAME, NAMED, KNOWN, WHOLE):
        raise UsageError(f"{where}: strength must be 0, 1, 2 or 3, not {told['strength']!r}")
    return Activity(**told | {"match": toml_files.regexes_of(told.get("match", ()), where)})
