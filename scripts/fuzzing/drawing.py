"""Draws a kind of input, a valid input, damage to it, and a command from a seed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.fuzzing.byte_damage import damage_file_bytes
from scripts.fuzzing.judging import list_contents
from scripts.fuzzing.kinds import InputKind, folder_of

#: Probability that a step damages bytes instead of values or structure.
_BYTES_SHARE = 0.3
#: Probability that one of several files is removed or duplicated.
_FILES_SHARE = 0.05


@dataclass(frozen=True)
class DrawnInput:
    """A damaged input and the command that reads it.

    Attributes:
        kind: Name of the kind of input.
        path: The damaged file or folder.
        words: Arguments of the command line.
        outputs: Files that the command should write.
    """

    kind: str
    path: Path
    words: tuple[str, ...]
    outputs: tuple[Path, ...]


def draw_input(
    seed: int, kinds: Sequence[InputKind], inputs: Path, folder: Path, *, damaged: bool = True
) -> DrawnInput:
    """Write the input for a seed to an empty folder.

    Args:
        seed: Seed of all random choices.
        kinds: Kinds to draw from.
        inputs: Folder that contains the valid inputs.
        folder: Empty folder, in which the folders ``in`` and ``out`` are created.
        damaged: Whether to damage the input. Every command succeeds on an undamaged input.
    """
    chance = random.Random(seed)
    kind = chance.choice(kinds)
    good = chance.choice(sorted(folder_of(kind, inputs).iterdir()))
    path = folder / "in" / good.name
    path.parent.mkdir()
    (folder / "out").mkdir()
    if good.is_dir():
        shutil.copytree(good, path)
    else:
        shutil.copyfile(good, path)
    existing_files = list_contents(path.parent)
    # In some formats, a change is not possible and leaves the input unchanged, so try again.
    while damaged and list_contents(path.parent) == existing_files:
        _damage(path, kind, chance)
    template = chance.choice(kind.commands)
    places = {"in": path, "out": folder / "out", "good": good, "inputs": inputs}
    words = tuple(word.format_map(places) for word in template.split())
    outputs = tuple(Path(word) for word in words if word.startswith(f"{folder}/out/"))
    return DrawnInput(kind.name, path, words, outputs)


def _damage(path: Path, kind: InputKind, chance: random.Random) -> None:
    """Damage one or a few files of an input, each in one to three steps."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if len(files) > 1 and chance.random() < _FILES_SHARE:
        file = files.pop(chance.randrange(len(files)))
        if chance.random() < 0.5:
            file.unlink()
        else:
            shutil.copyfile(file, file.with_name(f"again-{file.name}"))
    # Bytes are damaged last, so that the other steps can read the file format.
    steps = chance.choice([1, 1, 1, 2, 3])
    byte_steps = sum(chance.random() < _BYTES_SHARE for _ in range(steps))
    for step in range(steps):
        is_of_bytes = step >= steps - byte_steps
        damage = damage_file_bytes if is_of_bytes else chance.choice(kind.damages)
        damage(chance.choice(files), chance)
