"""A trained model as named tensors and JSON, and back."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from cpaan.augmenters.model import Model
from cpaan.augmenters.summary import BaseSummary
from cpaan.data.model_folder import decode_name
from cpaan.errors import InputError
from cpaan.functional.class_center import CenterConstants, CenterModel
from cpaan.functional.linear_gaussian import LinearGaussian
from cpaan.functional.scaling import Scaling
from cpaan.nn.networks import Architecture, Networks
from cpaan.sampling.bank import ClassBank
from cpaan.training.recipe import Recipe

# What models that were saved before there was a choice were trained with.
_BEFORE = {"anchor": "shots", "search_rounds": 1, "adversarial_weight": 1.0, "spread": 1.0}
_GAUSSIAN = ("mean", "axes", "inverse_axes", "ratios")
_CENTER_NUMBERS = ("example_length", "center_length", "within_deviation", "temperature")


def model_details(model: Model) -> dict[str, Any]:
    """Give what is no tensor."""
    return {
        "variant": model.variant,
        "numbers": asdict(model.recipe),
        "temperature": model.temperature,
        "architecture": asdict(model.networks.architecture),
        "scale": model.base.scaling.factor,
        "center": None if model.center is None else _center_numbers(model.center),
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
    if model.center is not None:
        gaussian = model.center.gaussian
        tensors |= {f"center.{name}": getattr(gaussian, name) for name in _GAUSSIAN}
        tensors["center.base_means"] = model.center.base_means
    return tensors


def restore_model(tensors: dict[str, Tensor], config: dict[str, Any]) -> Model:
    """Put a model together again, on the CPU.

    Raises
    ------
    InputError
        Where tensors and configuration are not of one model.
    """
    try:
        return _restored(tensors, config)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        first = str(error).splitlines()[0]
        raise InputError(
            f"the model is damaged: its configuration and its tensors do not fit one another ({first})"
        ) from error


def _restored(tensors: dict[str, Tensor], config: dict[str, Any]) -> Model:
    networks = _networks(tensors, Architecture(**config["architecture"]))
    base = BaseSummary(
        classes=tuple(decode_name(name) for name in config["classes"]),
        counts=tensors["base.counts"],
        prototypes=tensors["base.prototypes"],
        factors=tensors["base.factors"],
        tails=tensors["base.tails"],
        reservoir=_reservoir(tensors),
        scaling=Scaling(tensors["base.origin"], config["scale"]),
    )
    recipe = Recipe(**{**_BEFORE, **config["numbers"]})
    networks.eval().requires_grad_(False)
    return Model(networks, base, recipe, config["variant"], config["temperature"], _center(tensors, config))


def _networks(tensors: dict[str, Tensor], architecture: Architecture) -> Networks:
    prefix = "networks."
    weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    # Without memory at first: a configuration may come from anywhere and ask for networks of any size.
    with torch.device("meta"):
        expected = {name: value.shape for name, value in Networks(architecture).state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise ValueError("networks of other sizes")
    networks = Networks(architecture)
    networks.load_state_dict(weights)
    return networks


def restore_gain(saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """Put the expected gain together again, of lists that were tuples."""
    if saved is None:
        return None
    intervals = {name: [tuple(pair) for pair in saved[name]] for name in ("lsl", "glsl")}
    return {"shots": tuple(saved["shots"]), **intervals}


def _center_numbers(center: CenterModel) -> dict[str, Any]:
    return {**{name: getattr(center, name) for name in _CENTER_NUMBERS}, "constants": asdict(center.constants)}


def _center(tensors: dict[str, Tensor], config: dict[str, Any]) -> CenterModel | None:
    numbers = config.get("center")
    if numbers is None:
        return None
    constants: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in numbers["constants"].items()
    }
    return CenterModel(
        gaussian=LinearGaussian(*(tensors[f"center.{name}"] for name in _GAUSSIAN)),
        base_means=tensors["center.base_means"],
        constants=CenterConstants(**constants),
        **{name: numbers[name] for name in _CENTER_NUMBERS},
    )


def _reservoir(tensors: dict[str, Tensor]) -> ClassBank | None:
    if "reservoir.deviations" not in tensors:
        return None
    counts = tensors["reservoir.counts"]
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    return ClassBank.from_examples(tensors["reservoir.deviations"], labels, len(counts))
