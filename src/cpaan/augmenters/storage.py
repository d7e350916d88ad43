"""A trained model as named tensors and JSON, and back."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from cpaan.augmenters.model import Model
from cpaan.augmenters.summary import BaseSummary
from cpaan.data.model_folder import decode_name
from cpaan.functional.scaling import Scaling
from cpaan.nn.networks import Architecture, Networks
from cpaan.sampling.bank import ClassBank
from cpaan.training.recipe import Recipe


def model_details(model: Model) -> dict[str, Any]:
    """Give what is no tensor."""
    return {
        "variant": model.variant,
        "numbers": asdict(model.recipe),
        "temperature": model.temperature,
        "architecture": asdict(model.networks.architecture),
        "scale": model.base.scaling.factor,
    }


def model_tensors(model: Model) -> dict[str, Tensor]:
    """Give every tensor by name."""
    base = model.base
    tensors = {f"networks.{name}": value for name, value in model.networks.state_dict().items()}
    tensors |= {
        "base.counts": base.counts,
        "base.prototypes": base.prototypes,
        "base.factors": base.factors,
        "base.tails": base.tails,
        "base.origin": base.scaling.origin,
    }
    if base.reservoir is not None:
        tensors |= {
            "reservoir.deviations": base.reservoir.features,
            "reservoir.counts": base.reservoir.counts,
        }
    return tensors


def restore_model(tensors: dict[str, Tensor], config: dict[str, Any]) -> Model:
    """Put a model together again, on the CPU."""
    networks = Networks(Architecture(**config["architecture"]))
    prefix = "networks."
    networks.load_state_dict(
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    )
    base = BaseSummary(
        classes=tuple(decode_name(name) for name in config["classes"]),
        counts=tensors["base.counts"],
        prototypes=tensors["base.prototypes"],
        factors=tensors["base.factors"],
        tails=tensors["base.tails"],
        reservoir=_reservoir(tensors),
        scaling=Scaling(tensors["base.origin"], config["scale"]),
    )
    recipe = Recipe(**config["numbers"])
    return Model(networks.eval().requires_grad_(False), base, recipe, config["variant"], config["temperature"])


def _reservoir(tensors: dict[str, Tensor]) -> ClassBank | None:
    if "reservoir.deviations" not in tensors:
        return None
    counts = tensors["reservoir.counts"]
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    return ClassBank.from_examples(tensors["reservoir.deviations"], labels, len(counts))
