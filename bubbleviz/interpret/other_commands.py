"""Other commands: what tells something of a profile that an analysis refuses.

A refusal must lead somewhere, and never to a command that refuses the same profile.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bubbleviz.conventions.kinds import is_nccl
from bubbleviz.errors import ProfileError
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import Profile
from bubbleviz.model.texts import shell_word
from bubbleviz.sources.readers import OpenFile

#: What names of instructions hold, as XLA writes them.
_INSTRUCTION = "hlo_op="


def work_in(file: OpenFile) -> Profile | None:
    """Return the profile of an open file without its ranges; None where it has no work."""
    try:
        return file.read((), partial=True)
    except ProfileError:
        return None


def other_commands(profile: Profile | None, path: str, names: Iterable[str] = ()) -> str:
    """Return a clause on the commands that need no operations; "" where none has enough.

    Args:
        profile: with its work; None without any.
        path: that it goes by.
        names: of its ranges.
    """
    if profile is None:
        return ""
    activities, file = profile.activities, shell_word(path)
    working = activities.end_ns > activities.start_ns
    if not working.any() or np.bincount(activities.rank[working]).max() < 2:
        # Between the start of the first and the end of the last there is no idle time.
        return ""
    clauses = [f"bubbleviz idle {file} breaks down idle time"]
    used = distinct(activities.name_id[: activities.kernels]).tolist()
    kernels = [activities.names[number] for number in used]
    if any(map(is_nccl, kernels)):
        clauses.append(f"bubbleviz nccl {file} shows what NCCL did")
    if any(_INSTRUCTION in name for name in names):
        clauses.append(f"bubbleviz pgle {file} measures each instruction of XLA")
    *first, last = clauses
    return f"{', '.join(first)}, and {last}" if first else last
