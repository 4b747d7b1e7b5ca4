"""Classification of host activities by the name of a range or call (``host_activities.toml``)."""

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

#: Activities that are inferred from other evidence than a name.
PROFILER, DEVICE, OTHER_DEVICE = "profiler", "stream or rank dependency", "other device"
SHORT, UNTRACED, UNLINKED = "kernel-to-kernel gaps", "no host trace", "launch not recorded"
MIGRATION, UNRECORDED = "page migration", "work not recorded"
BLOCKED_BY_COMMUNICATION = "blocked by communication"
BLOCKED_BY_COPIES, BLOCKED_BY_COMPUTE = "blocked by copies", "blocked by compute"
WAITING = "waiting"
LAUNCH, TRANSFER, CALLS = "launch", "transfer", "API calls"
#: Prefix of the activity of a range whose name matches no listed activity.
HOST = "host: "
#: Strengths of activities: includes everything inside it, known by name, any other range, Python
#: frame.
WHOLE, KNOWN, NAMED, FRAME = 3, 2, 1, 0

_FIELD_TYPES = {"name": str, "strength": int, "meaning": str, "advice": str, "match": list}
_DIGITS = re.compile(r"\d+")
#: Maximum number of characters of a range name in the name of an activity.
_MAX_NAME_LENGTH = 60


@dataclass(frozen=True)
class Activity:
    """A kind of work that a host does.

    Attributes:
        name: Display name.
        strength: Precedence among the ranges and calls around an instant. The strongest wins; of
            equally strong ones the innermost.
        meaning: Description in half a sentence.
        advice: Advice on how to reduce it.
        match: Regexes, searched anywhere in a name and ignoring case.
    """

    name: str
    strength: int = KNOWN
    meaning: str = ""
    advice: str = ""
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActivityList:
    """Activities in the order in which they are matched.

    Attributes:
        activities: The activities.
        cache: Name and strength of the activity of each classified name; see :meth:`copy`.
    """

    activities: tuple[Activity, ...]
    cache: dict[str, tuple[str, int]] = field(default_factory=dict, compare=False)

    def find(self, name: str) -> Activity | None:
        """Return the activity with this name, or None if it is not listed, such as ``host: NAME``.

        Several entries may share a name; the first one with a meaning is preferred.
        """
        same_name = [activity for activity in self.activities if activity.name == name]
        return next((a for a in same_name if a.meaning), same_name[0] if same_name else None)

    def copy(self) -> ActivityList:
        """Return a copy with an empty cache, so that the cache does not outlive an analysis."""
        return ActivityList(self.activities)

    def classify_range(self, name: str) -> tuple[str, int]:
        """Return name and strength of the activity of a range.

        The first activity in the list with a matching regex wins; the result is cached. Ranges that
        match no activity become ``host: NAME``, with digits replaced by ``#``.
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
        """Return name and strength of the activity of an API call.

        Calls that match no activity of strength ``KNOWN`` or more become "API calls".
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
        """Return the list with the activities of a TOML file placed first, so that they win.

        Raises:
            InputError: The file cannot be read.
            UsageError: The file is not a list of activities, or uses a reserved name.
        """
        hint = "give a TOML file with [[activity]] tables of name and match"
        added = _parse_activities(toml_files.read(path, "activities", hint), str(path))
        reserved = {activity.name for activity in self.activities if not activity.match}
        conflicts = sorted(reserved & {activity.name for activity in added})
        if conflicts:
            raise UsageError(
                f"{path}: {conflicts[0]!r} is reserved for inferred activities; give the "
                "activity another name"
            )
        return ActivityList((*added, *self.activities))


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
        source: Path of the file, for messages.

    Raises:
        UsageError: The text is not TOML, contains anything else, or a table is invalid.
    """
    try:
        data = toml_files.load(text)
    except ValueError as error:
        raise UsageError(
            f"{source}: is not valid TOML ({error}); give [[activity]] tables of name and match"
        ) from error
    tables = data.get("activity")
    if not isinstance(tables, list) or not tables or set(data) != {"activity"}:
        raise UsageError(f"{source}: must contain only [[activity]] tables")
    return tuple(
        _parse_activity(table, f"{source}: activity {i}") for i, table in enumerate(tables, 1)
    )


def _parse_activity(table: object, source: str) -> Activity:
    """Parse one ``[[activity]]`` table.

    Raises:
        UsageError: The table is invalid; the message names the key.
    """
    fields = toml_files.check_fields(table, _FIELD_TYPES, source)
    if not fields.get("name"):
        raise UsageError(f"{source}: needs name = a string")
    if fields.get("strength", KNOWN) not in (FRAME, NAMED, KNOWN, WHOLE):
        raise UsageError(f"{source}: strength must be 0, 1, 2 or 3, not {fields['strength']!r}")
    return Activity(**fields | {"match": toml_files.check_regexes(fields.get("match", ()), source)})
