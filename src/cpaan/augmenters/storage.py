"""A trained model as named tensors and JSON, and back."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from cpaan.augmenters.model import Completion, Model
from cpaan.augmenters.size_search import LARGEST
from cpaan.augmenters.summary import BaseSummary
from cpaan.centers.class_center import CenterConstants, CenterModel
from cpaan.data.arguments import as_whole_number
from cpaan.data.folders import decode_name
from cpaan.data.untrusted import positive_number, require_arrays, require_counts
from cpaan.errors import InputError
from cpaan.gan.networks import Architecture, Networks
from cpaan.gan.objective import find_variant
from cpaan.gan.recipe import Recipe
from cpaan.math.linear_gaussian import LinearGaussian
from cpaan.math.scaling import Scaling
from cpaan.training.bank import ClassBank
from cpaan.training.weights import load_weights

# What models that were saved before there was a choice were trained with.
_BEFORE = {
    "anchor": "shots",
    "completion": False,
    "center_noise": 1.0,
    "search_rounds": 1,
    "patience": 0,
    "adversarial_weight": 1.0,
    "spread": 1.0,
}
_GAUSSIAN = ("mean", "axes", "inverse_axes", "ratios")
_BASE_FORMS = {
    "base.counts": "C int64",
    "base.prototypes": "CD float32",
    "base.factors": "CRD float16",
    "base.tails": "C float32",
    "base.origin": "D float64",
}
_CENTER_FORMS = {
    "center.mean": "D float64",
    "center.axes": "DD float64",
    "center.inverse_axes": "DD float64",
    "center.ratios": "D float64",
    "center.base_means": "CD float64",
}
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
        "completion": None if model.completion is None else model.completion.tail,
        "size": model.size,
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
    if model.completion is not None:
        tensors["completion.factor"] = model.completion.factor
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
    except Exception as error:  # a configuration may come from anywhere and hold anything
        first = f"{error}".partition("\n")[0]
        raise InputError(
            f"the model is damaged: its configuration and its tensors do not fit one another ({first})"
        ) from error


def _restored(tensors: dict[str, Tensor], config: dict[str, Any]) -> Model:
    classes = tuple(decode_name(name) for name in config["classes"])
    architecture = Architecture(**config["architecture"])
    for name in ("gain", "negative_slope"):
        positive_number(getattr(architecture, name), name, or_zero=True)
    sizes = {"C": len(classes), "D": architecture.dimension}
    require_arrays(tensors, _BASE_FORMS, **sizes)
    networks = load_weights(lambda: Networks(architecture), _part(tensors, "networks."))
    base = BaseSummary(
        classes=classes,
        counts=tensors["base.counts"],
        prototypes=tensors["base.prototypes"],
        factors=tensors["base.factors"],
        tails=tensors["base.tails"],
        reservoir=_reservoir(tensors, sizes),
        scaling=Scaling(tensors["base.origin"], positive_number(config["scale"], "scale")),
    )
    recipe = Recipe(**{**_BEFORE, **config["numbers"]})
    networks.eval().requires_grad_(False)
    find_variant(config["variant"])
    temperature = positive_number(config["temperature"], "temperature")
    return Model(
        networks,
        base,
        recipe,
        config["variant"],
        temperature,
        center=_center(tensors, config, sizes),
        completion=_completion(tensors, config, sizes),
        size=_size(config),
    )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def restore_gain(saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """Put the expected gain together again, of lists that were tuples."""
    if saved is None:
        return None
    intervals = {name: [tuple(pair) for pair in saved[name]] for name in ("lsl", "glsl")}
    return {"shots": tuple(saved["shots"]), **intervals}


def _center_numbers(center: CenterModel) -> dict[str, Any]:
    return {**{name: getattr(center, name) for name in _CENTER_NUMBERS}, "constants": asdict(center.constants)}


def _center(tensors: dict[str, Tensor], config: dict[str, Any], sizes: dict[str, int]) -> CenterModel | None:
    numbers = config.get("center")
    if numbers is None:
        return None
    require_arrays(tensors, _CENTER_FORMS, **sizes)
    constants: dict[str, Any] = {
        name: tuple(positive_number(each, name, or_zero=True) for each in v) if isinstance(v, list) else v
        for name, v in numbers["constants"].items()
    }
    positive_number(constants["ridge"], "ridge", or_zero=True)
    if len({len(constants[name]) for name in ("shots", "lengths", "posterior_lengths")}) > 1:
        raise ValueError("constants of the centre are not as many as shots")
    return CenterModel(
        gaussian=LinearGaussian(*(tensors[f"center.{name}"] for name in _GAUSSIAN)),
        base_means=tensors["center.base_means"],
        constants=CenterConstants(**constants),
        **{name: positive_number(numbers[name], name, or_zero=True) for name in _CENTER_NUMBERS},
    )


def _completion(tensors: dict[str, Tensor], config: dict[str, Any], sizes: dict[str, int]) -> Completion | None:
    tail = config.get("completion")
    if tail is None:
        return None
    require_arrays(tensors, {"completion.factor": "RD float32"}, **sizes)
    return Completion(tensors["completion.factor"], positive_number(tail, "completion", or_zero=True))


def _size(config: dict[str, Any]) -> int:
    size = as_whole_number(config.get("size", 1), "size", 1)
    if size > LARGEST:
        raise ValueError(f"size is {size}, larger than novel classes are ever made")
    return size


def _reservoir(tensors: dict[str, Tensor], sizes: dict[str, int]) -> ClassBank | None:
    if "reservoir.deviations" not in tensors:
        return None
    require_arrays(tensors, {"reservoir.deviations": "ND float16", "reservoir.counts": "C int64"}, **sizes)
    counts = tensors["reservoir.counts"]
    require_counts(counts, len(tensors["reservoir.deviations"]), "reservoir.counts")
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    return ClassBank.from_examples(tensors["reservoir.deviations"], labels, len(counts))
