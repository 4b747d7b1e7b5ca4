"""Framework options that set a layout: Megatron's layout string and torchtitan's list of modules.

References: Megatron-LM, ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` (grammar
    and
restrictions); torchtitan, option ``pipeline_parallel_module_fqns_per_model_part``.
"""

from __future__ import annotations

from itertools import groupby

from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout
from bubbleviz.schedules.plan import make_looped_placement

_LETTER = {
    LayerKind.EMBEDDING: "E",
    LayerKind.TRANSFORMER: "t",
    LayerKind.MTP: "m",
    LayerKind.HEAD: "L",
}
#: Names of the modules that form the embedding and the head in torchtitan's models.
_EMBEDDING, _HEAD = ("tok_embeddings",), ("norm", "output")


def format_megatron_layout(layers: Layers, layout: Layout) -> str | None:
    """Return the value for ``--pipeline-model-parallel-layout``, or None if Megatron refuses it.

    ``E`` is the embedding, ``t`` a transformer layer, ``m`` a layer of multi-token prediction,
    ``L`` the loss, and ``|`` separates virtual stages: ``Et*3|(tt|)*29m|L``. The embedding is
    always on the first stage and the loss on the last stage, even if they were not measured
    separately.

    Megatron refuses a layout in any of these cases:

    - The placement is not looped.
    - An embedding is not on the first virtual stage, or a head is not on the last virtual stage.
    - Layers of multi-token prediction are on several virtual stages or outside the last chunk.
    """
    devices = max(layout.placement) + 1
    chunks = len(layout.placement) // devices
    if layout.placement != make_looped_placement(devices, chunks):
        return None
    stages = ["".join(_LETTER[layers.kinds[at]] for at in stage) for stage in layout.stages]
    other_stages = {"E": stages[1:], "L": stages[:-1]}
    is_misplaced = any(
        letter in stage for letter, others in other_stages.items() for stage in others
    )
    predicting = [at for at, stage in enumerate(stages) if "m" in stage]
    if is_misplaced or len(predicting) > 1 or any(at < devices * (chunks - 1) for at in predicting):
        return None
    stages[0] = "E" + stages[0].replace("E", "")
    stages[-1] = stages[-1].replace("L", "") + "L"
    return _abbreviate(stages)


def _abbreviate(stages: list[str]) -> str:
    """Return the text for all stages, separated by ``|``, with repetitions abbreviated.

    Three or more identical layers in a row are written like ``t*3``. Two or more identical stages
    in a row are written like ``(tt|)*2``. The last stage is always written separately, without a
    ``|`` at the end.
    """

    def format_stage(stage: str) -> str:
        runs = ((letter, len(list(run))) for letter, run in groupby(stage))
        return "".join(each * n if n < 3 else f"{each}*{n}" for each, n in runs)

    words = []
    for stage, group in groupby(stages[:-1]):
        count = len(list(group))
        words.append(
            f"({format_stage(stage)}|)*{count}" if count > 1 else f"{format_stage(stage)}|"
        )
    return "".join(words) + format_stage(stages[-1])


def list_torchtitan_modules(layers: Layers, layout: Layout) -> list[list[str]]:
    """Return torchtitan's ``module_fqns_per_model_part``: the modules of each virtual stage.

    - Transformer layers are numbered across all stages: ``layers.0``, ``layers.1`` and so on.
    - A single embedding layer is named ``tok_embeddings``. The names of several embedding layers
      are unchanged.
    - A single head layer is named ``norm`` and ``output``. The names of several head layers are
      unchanged.
    - The names of multi-token prediction layers are unchanged.

    If the model has no embedding layer, the embedding module is added at the start of the first
    virtual stage. If the model has no head layer, the head modules are added at the end of the last
    virtual stage.
    """
    number = 0
    parts = []
    for stage in layout.stages:
        names: list[str] = []
        for layer in stage:
            kind = layers.kinds[layer]
            if kind is LayerKind.TRANSFORMER:
                names.append(f"layers.{number}")
                number += 1
            elif kind is LayerKind.MTP or layers.kinds.count(kind) > 1:
                names.append(layers.names[layer])
            else:
                names += _EMBEDDING if kind is LayerKind.EMBEDDING else _HEAD
        parts.append(names)
    # An embedding or head must be part of a stage even if it was not measured separately.
    if LayerKind.EMBEDDING not in layers.kinds:
        parts[0] = [*_EMBEDDING, *parts[0]]
    if LayerKind.HEAD not in layers.kinds:
        parts[-1] = [*parts[-1], *_HEAD]
    return parts
