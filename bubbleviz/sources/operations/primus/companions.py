"""Finds the files that a pipeline dump consists of besides the files of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: File with the sizes of the run, next to the files of the ranks.
CONFIG_FILE = "config.json"
_PREFIX = "pp_rank_"


def select_first_parts(files: Sequence[str]) -> list[str]:
    """Leave out the file of the run's sizes, which is read together with the file of each rank.

    The file is kept if no file of a rank in the same folder is given.
    """
    paths = [Path(file) for file in files]
    folders = {path.parent for path in paths if path.name.startswith(_PREFIX)}
    is_config = [path.name == CONFIG_FILE and path.parent in folders for path in paths]
    return [file for file, is_left_out in zip(files, is_config, strict=True) if not is_left_out]
