"""Classifies range and call names as host activities, using ``host_activities.toml``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from bubbleviz.conventions import toml_files
from bubbleviz.conventions.kinds import combine_regexes
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import truncate_for_matching

#: Names of activities that are inferred from evidence other than a range or call name.
PROFILER, DEVICE, OTHER_DEVICE = "profiler", "stream or rank dependency", "other device"
SHORT, UNTRACED, UNLINKED = "kernel-to-kernel gaps", "no host trace", "launch not recorded"
MIGRATION, UNRECORDED = "page migration", "work not recorded"
BLOCKED_BY_COMMUNICATION = "blocked by communication"
BLOCKED_BY_COPIES, BLOCKED_BY_COMPUTE = "blocked by copies", "blocked by compute"
WAITING, PYTHON = "waiting", "Python"
LAUNCH, TRANSFER, CALLS = "launch", "transfer", "API calls"
#: Prefix of the activity name used for ranges that match no listed activity, as in ``host: NAME``.
HOST = "host: "
#: Strengths of activities, in descending order. ``WHOLE`` takes precedence over everything inside
#: it, and ``KNOWN`` has a listed name. ``NAMED`` is any other range or call, and ``FRAME`` is a
#: Python frame.
WHOLE, KNOWN, NAMED, FRAME = 3, 2, 1, 0

_FIELD_TYPES = {"name": str, "strength": int, "meaning": str, "advice": str, "match": list}
_DIGITS = re.compile(r"\d+")
#: Maximum number of characters of a range name that are used in an activity name.
_MAX_NAME_LENGTH = 60


@dataclass(frozen=True)
class Activity:
    """A kind of host work, such as data loading or garbage collection.

    Attributes:
        name: Display name.
        strength: Precedence of the activity, from ``WHOLE`` to ``FRAME``. If several ranges and
            calls cover an instant, the one with the highest strength wins. On ties, the innermost
            range or call wins.
        meaning: Short description of the activity.
        advice: Advice on how to reduce the time spent in the activity.
        match: Regexes that are searched for anywhere in a name, ignoring case.
    """

    name: str
    strength: int = KNOWN
    meaning: str = ""
    advice: str = ""
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActivityList:
    """A list of activities that classifies names. The first activity that matches wins.

    Attributes:
        activities: The activities, in matching order.
        cache: Maps each name that has been classified to its activity's name and strength. See
            :meth:`copy`.
    """

    activities: tuple[Activity, ...]
    cache: dict[str, tuple[str, int]] = field(default_factory=dict, compare=False)

    def find(self, name: str) -> Activity | None:
        """Return the activity with this name, or None if the list has no such activity.

        If several activities share the name, the first one with a meaning wins. If none of them has
        a meaning, the first one wins. ``Python: NAME`` is found as ``Python``. Names such as
        ``host: NAME`` are never listed.
        """
        name = get_listed_name(name)
        same_name = [activity for activity in self.activities if activity.name == name]
        return next((a for a in same_name if a.meaning), same_name[0] if same_name else None)

    def copy(self) -> ActivityList:
        """Return a copy with an empty cache, so that each analysis has its own cache."""
        return ActivityList(self.activities)

    def classify_range(self, name: str) -> tuple[str, int]:
        """Return the name and strength of the activity that a range belongs to.

        The first activity in the list with a matching regex wins. If no activity matches, the
        activity name is ``host: NAME`` and the strength is ``NAMED``. NAME is the range name,
        truncated to 60 characters, with each run of digits replaced with ``#``. If the range name
        is empty, NAME is ``(no name)``.
        """
        text = bare_name(name)
        if text not in self.cache:
            matched = truncate_for_matching(text)
            default = f"{HOST}{_DIGITS.sub('#', matched)[:_MAX_NAME_LENGTH] or '(no name)'}", NAMED
            matches = (
                (activity.name, activity.strength)
                for activity, regex in self._compiled
                if regex.search(matched)
            )
            self.cache[text] = next(matches, default)
        return self.cache[text]

    def classify_call(self, name: str) -> tuple[str, int]:
        """Return the name and strength of the activity that an API call belongs to.

        If no activity of strength ``KNOWN`` or more matches, the result is ("API calls",
        ``KNOWN``).
        """
        activity, strength = self.classify_range(name)
        return (activity, strength) if strength >= KNOWN else (CALLS, KNOWN)

    @cached_property
    def _compiled(self) -> list[tuple[Activity, re.Pattern[str]]]:
        return [
            (activity, combine_regexes(activity.match))
            for activity in self.activities
            if activity.match
        ]

    def add_from_file(self, path: str | Path) -> ActivityList:
        """Return a new list in which the activities of a TOML file come first and take precedence.

        Raises:
            InputError: The file cannot be read.
            UsageError: The file is not a list of activities, or uses a name that is reserved for
                inferred activities.
        """
        hint = "pass a TOML file with [[activity]] tables that contain name and match"
        added = _parse_activities(toml_files.read(path, "activities", hint), str(path))
        reserved = {activity.name for activity in self.activities if not activity.match}
        conflicts = sorted(reserved & {activity.name for activity in added})
        if conflicts:
            raise UsageError(
                f"{path}: the name {conflicts[0]!r} is reserved for inferred activities; rename "
                "the activity"
            )
        return ActivityList((*added, *self.activities))


def get_listed_name(activity: str) -> str:
    """Return the name under which an activity is listed: ``Python`` for ``Python: FUNCTION``."""
    return PYTHON if activity.startswith(f"{PYTHON}: ") else activity


@cache
def default_activities() -> ActivityList:
    """Return the built-in activities."""
    return ActivityList(
        _parse_activities(toml_files.read_built_in("host_activities.toml"), "host_activities.toml")
    )


def _parse_activities(text: str, source: str) -> tuple[Activity, ...]:
    """Parse the ``[[activity]]`` tables of a TOML text.

    Args:
        text: Content of the file.
        source: Path to the file, used in messages.

    Raises:
        UsageError: The text is not valid TOML, has no ``[[activity]]`` table or has other keys, or
            a table is invalid.
    """
    try:
        data = toml_files.load(text)
    except ValueError as error:
        raise UsageError(
            f"{source}: is not valid TOML ({error}); use [[activity]] tables with name and match"
        ) from error
    tables = data.get("activity")
    if not isinstance(tables, list) or not tables or set(data) != {"activity"}:
        raise UsageError(f"{source}: must contain only [[activity]] tables, and at least one")
    return tuple(
        _parse_activity(table, f"{source}: activity {i}") for i, table in enumerate(tables, 1)
    )


def _parse_activity(table: object, source: str) -> Activity:
    """Parse one ``[[activity]]`` table.

    Raises:
        UsageError: The table is invalid. The message names the offending key.
    """
    fields = toml_files.check_fields(table, _FIELD_TYPES, source)
    if not fields.get("name"):
        raise UsageError(f"{source}: name is missing; set it to the name of the activity")
    if fields.get("strength", KNOWN) not in (FRAME, NAMED, KNOWN, WHOLE):
        raise UsageError(f"{source}: strength must be 0, 1, 2 or 3, not {fields['strength']!r}")
    return Activity(**fields | {"match": toml_files.check_regexes(fields.get("match", ()), source)})
