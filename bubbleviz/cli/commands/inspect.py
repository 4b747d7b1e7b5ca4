"""``bubbleviz inspect``: a first look at profiles."""

from __future__ import annotations

from bubbleviz.cli.help import ALL_DETAILS, argument, tables_of
from bubbleviz.cli.options import CONVENTIONS, command
from bubbleviz.cli.terminal import complain, show
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.private_names import anonymous
from bubbleviz.sources.paths import find_profiles, unreadable_profile


@command()
def inspect(
    profiles: list[str] = argument("PROFILES...", "Profiles, or directories of them."),
    convention: list[str] | None = CONVENTIONS,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show what a profile holds, names and lacks."""
    everything = bool(tables_of(details))
    files = find_profiles(profiles)
    from bubbleviz.analyses.inspection import inspect as inspect_profile
    from bubbleviz.cli.overview import inspection_parts

    unreadable: list[InputError | ProfileError] = []
    for file in files:
        try:
            inspection = inspect_profile(file.path, convention=convention or ())
        except (InputError, ProfileError) as error:
            if file.named:
                raise
            unreadable.append(error)
        else:
            show(inspection_parts(anonymous(inspection), everything=everything))
    if len(unreadable) == len(files):
        raise unreadable[0]
    for reason in map(str, unreadable):
        complain(unreadable_profile(reason).sentence, 0)
