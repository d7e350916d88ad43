"""Writing and reading a model."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from cpaan.augmenters.model import Model
from cpaan.augmenters.model_files import (
    CONFIG,
    FORMAT,
    FORMAT_VERSION,
    TENSORS,
    decode_name,
    encode_name,
    read_config,
)
from cpaan.augmenters.summary import BaseSummary
from cpaan.data.atomic import write_atomically
from cpaan.errors import InputError
from cpaan.functional.scaling import Scaling
from cpaan.nn.networks import Architecture, Networks
from cpaan.sampling.bank import ClassBank
from cpaan.training.recipe import Recipe


def save_model(folder: str | os.PathLike[str], model: Model, extra: dict[str, Any]) -> None:
    """Write a model; `extra` goes into the configuration as it is.

    The configuration is written last and holds a checksum of the tensors, so a torn model is recognised.
    """
    tensors = save(_tensors(model))
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "variant": model.variant,
        "numbers": asdict(model.recipe),
        "temperature": model.temperature,
        "architecture": asdict(model.networks.architecture),
        "scale": model.base.scaling.factor,
        "classes": [encode_name(name) for name in model.base.classes],
        "sha256": hashlib.sha256(tensors).hexdigest(),
        **extra,
    }
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write a model to {folder}: {error.strerror or error}") from error
    write_atomically(folder / TENSORS, tensors)
    write_atomically(folder / CONFIG, json.dumps(config, indent=1).encode())


def load_model(folder: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
    """Read a model onto the CPU, with its configuration."""
    folder = Path(folder)
    config = read_config(folder)
    try:
        raw = (folder / TENSORS).read_bytes()
    except OSError as error:
        raise InputError(f"{folder} has no readable {TENSORS}: {error.strerror or error}") from error
    if hashlib.sha256(raw).hexdigest() != config["sha256"]:
        raise InputError(
            f"{folder / TENSORS} is truncated or damaged: it does not match the checksum in {CONFIG}; copy the "
            "model again or train it anew"
        )
    return _model(load(raw), config), config


def _tensors(model: Model) -> dict[str, Tensor]:
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
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _model(tensors: dict[str, Tensor], config: dict[str, Any]) -> Model:
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
