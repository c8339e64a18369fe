"""What the ablation tries: the predictor with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AXES, TREES = "axes", "trees"


@dataclass(frozen=True)
class Variant:
    """One row of the table: what is changed, by the names of `settings.names_of`."""

    says: str
    changes: Mapping[str, Any]
    form: str = AXES  # of the input; TREES are no network, and have one seed


VARIANTS: dict[str, Variant] = {
    "base": Variant("as shipped", {}),
    "no-messages": Variant("no messages: a perceptron on pooled nodes", {"net.messages": False}),
    "no-schedule": Variant("without numbers of the whole schedule", {"net.schedule": False}),
    "no-kernel": Variant("without numbers of the kernel", {"net.kernel": False}),
    "layers-1": Variant("1 round of messages", {"net.layers": 1}),
    "layers-3": Variant("3 rounds", {"net.layers": 3}),
    "layers-4": Variant("4 rounds", {"net.layers": 4}),
    "hidden-32": Variant("32 wide", {"net.hidden": 32}),
    "hidden-48": Variant("48 wide", {"net.hidden": 48}),
    "hidden-128": Variant("128 wide", {"net.hidden": 128}),
    "no-dropout": Variant("without dropout", {"net.dropout": 0.0}),
    "attention": Variant("attention between the candidates of a kernel", {"net.compare": True}),
    "listwise": Variant("listwise loss instead of pairs and it", {"weights.pairs": 0.0, "weights.listwise": 1.0}),
    "pairs": Variant("pairs alone, without the listwise loss", {"weights.listwise": 0.0}),
    "time-only": Variant(
        "loss on time alone", {"weights.pairs": 0.0, "weights.listwise": 0.0, "weights.level": 0.0}
    ),
    "no-level": Variant("without the loss on a kernel's level", {"weights.level": 0.0}),
    "trees": Variant("LightGBM on pooled nodes", {}, TREES),
}  # fmt: skip
