"""How frameworks are told of a layout: Megatron's string, and torchtitan's list of modules.

Sources: Megatron-LM, ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` (grammar and
what it refuses); torchtitan, ``pipeline_parallel_module_fqns_per_model_part`` of its options.
"""

from __future__ import annotations

import json
from itertools import groupby

from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout
from bubbleviz.schedules.plan import looped_placement

_LETTER = {
    LayerKind.EMBEDDING: "E",
    LayerKind.TRANSFORMER: "t",
    LayerKind.MTP: "m",
    LayerKind.HEAD: "L",
}
#: What torchtitan's models call an embedding and a head that is one layer of ours.
_EMBEDDING, _HEAD = ("tok_embeddings",), ("norm", "output")


def megatron_layout(layers: Layers, layout: Layout) -> str | None:
    """Return the value of ``--pipeline-model-parallel-layout``; None where Megatron refuses it.

    ``E`` is the embedding, ``t`` a transformer layer, ``m`` one of multi-token prediction, ``L``
    the loss, ``|`` stands between virtual stages: ``Et*3|(tt|)*29m|L``. The embedding stands on
    the first stage and the loss on the last, whether or not they were measured apart.
    """
    devices = max(layout.placement) + 1
    chunks = len(layout.placement) // devices
    if layout.placement != looped_placement(devices, chunks):
        return None
    stages = [_letters(layers, stage) for stage in layout.stages]
    ends = {"E": stages[1:], "L": stages[:-1]}
    apart = any(letter in stage for letter, others in ends.items() for stage in others)
    predicting = [at for at, stage in enumerate(stages) if "m" in stage]
    if apart or len(predicting) > 1 or any(at < devices * (chunks - 1) for at in predicting):
        return None
    stages[0] = "E" + stages[0].replace("E", "")
    stages[-1] = stages[-1].replace("L", "") + "L"
    return _repeated(stages)


def _letters(layers: Layers, stage: range) -> str:
    return "".join(_LETTER[layers.kinds[at]] for at in stage)


def _repeated(stages: list[str]) -> str:
    """Return stages with repetitions written once; the last has no line behind it."""
    words = []
    for stage, same in groupby(stages[:-1]):
        count = len(list(same))
        word = "".join(_counted(letter, len(list(run))) for letter, run in groupby(stage))
        words.append(f"({word}|)*{count}" if count > 1 else f"{word}|")
    last = "".join(_counted(letter, len(list(run))) for letter, run in groupby(stages[-1]))
    return "".join(words) + last


def _counted(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"


def torchtitan_layout(layers: Layers, layout: Layout) -> list[list[str]]:
    """Return torchtitan's ``module_fqns_per_model_part``: the modules of each virtual stage.

    Transformer layers are numbered through. An embedding or a head of one layer has the names that
    torchtitan's models give its parts, one of several layers keeps their names.
    """
    number = 0
    parts = []
    for stage in layout.stages:
        names: list[str] = []
        for at in stage:
            kind = layers.kinds[at]
            if kind is LayerKind.TRANSFORMER:
                names.append(f"layers.{number}")
                number += 1
            elif kind is LayerKind.MTP or layers.kinds.count(kind) > 1:
                names.append(layers.names[at])
            else:
                names += _EMBEDDING if kind is LayerKind.EMBEDDING else _HEAD
        parts.append(names)
    # Neither end is left to no stage where it was not measured apart.
    if LayerKind.EMBEDDING not in layers.kinds:
        parts[0] = [*_EMBEDDING, *parts[0]]
    if LayerKind.HEAD not in layers.kinds:
        parts[-1] = [*parts[-1], *_HEAD]
    return parts


def torchtitan_text(layers: Layers, layout: Layout) -> str:
    """Return the same as Python, and TOML, write it."""
    return json.dumps(torchtitan_layout(layers, layout))
