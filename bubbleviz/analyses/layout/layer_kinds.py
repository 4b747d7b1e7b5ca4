"""Kinds of layers, by the words that names of layers are told by."""

from __future__ import annotations

from collections.abc import Mapping

from bubbleviz.conventions.layer_names import EMBEDDING, HEAD, LAYER, MTP
from bubbleviz.schedules.layout.layers import LayerKind

KINDS: Mapping[str, LayerKind] = {
    LAYER: LayerKind.TRANSFORMER,
    EMBEDDING: LayerKind.EMBEDDING,
    MTP: LayerKind.MTP,
    HEAD: LayerKind.HEAD,
}
