"""Encoders turn images into features: a trained backbone, or a network or object of the user's."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, encode_images, move_network
from cpaan.representations.decoding import decode_pil
from cpaan.representations.loading import Decode, TransformFailed

FloatArray = npt.NDArray[np.float32]
_MATRIX = 2  # dimensions
_PAIR = 2
_USUAL_SIZE, _USUAL_RESIZE = 224, 256


def make_encoder(
    given: Any, *, device: torch.device, size: int | None = None, resize: int | None = None, name: str | None = None
) -> "Encoder":
    """Make an encoder of a backbone, a module or an object.

    Parameters
    ----------
    given : Backbone, nn.Module, (nn.Module, transform), or an object with `encode`
        A transform maps an image of Pillow to a tensor, as those of torchvision and timm do; without one, a module
        gets images normalised by ImageNet's mean and standard deviation. On a GPU, modules compute in bfloat16.
        `encode` is called with a list of images of Pillow, even if the object is a module; a pair is always called as
        a module.
    device : torch.device
        Where a module computes.
    size, resize : int, optional
        Pixels that a module sees, and length of the shorter side they are cut from; by default 224 and 256, or those
        a backbone was trained with.
    name : str, optional
        Name in messages.

    Examples
    --------
    >>> encoder = make_encoder(nn.Flatten(), device=torch.device("cpu"), size=2, resize=2)
    >>> encoder.encode(torch.zeros(3, 3, 2, 2, dtype=torch.uint8)).shape
    (3, 12)
    """
    shown = name or type(given).__name__
    if isinstance(given, Backbone):
        size, resize = given.recipe.size if size is None else size, given.recipe.stored if resize is None else resize
        return _network_encoder(given.network, shown, device, size, resize)
    if isinstance(given, tuple) and len(given) == _PAIR and isinstance(given[0], nn.Module) and callable(given[1]):
        return _network_encoder(given[0], shown, device, 1, 1, _Transform(given[1]))
    if isinstance(given, nn.Module) and not hasattr(given, "encode"):
        size = _USUAL_SIZE if size is None else size
        resize = round(size * _USUAL_RESIZE / _USUAL_SIZE) if resize is None else resize
        return _network_encoder(given, shown, device, size, resize)
    if callable(getattr(given, "encode", None)) and not isinstance(given, str):  # strings have an encode, too
        return Encoder(shown, f"{shown}, {_weights_digest(given)}", given.encode, decode=decode_pil)
    raise InputError(
        f"{shown} is a {type(given).__name__}, which cannot encode images; give a torch module, a pair of a module and "
        "a transform, or an object with encode()"
    )


def find_encoder(spec: str, *, device: torch.device, size: int | None = None, resize: int | None = None) -> "Encoder":
    """Load a backbone from its folder, or import and call `package.module:function`, which runs its code.

    The function takes no arguments and returns anything that `make_encoder` accepts.
    """
    folder = Path(spec)
    if folder.is_dir():
        return make_encoder(Backbone.load(folder), device=device, size=size, resize=resize, name="backbone")
    module, colon, function = spec.partition(":")
    if not colon or not function:
        raise InputError(f"{spec} is neither the folder of a backbone nor a name like package.module:function")
    return make_encoder(_call_imported(module, function, spec), device=device, size=size, resize=resize, name=spec)


@dataclass(frozen=True)
class Encoder:
    """Turns batches of decoded images into features."""

    name: str  # in messages
    identity: str  # what the features depend on, to recognise an interrupted extraction
    compute: Callable[[Any], Any]
    resize: int = 1  # side of the pixels that images are decoded to, if there is no `decode`
    decode: Decode | None = None

    def encode(self, images: Any) -> FloatArray:
        """Compute the features of a batch, n × D; an InputError names the user's code that failed."""
        try:
            features = self.compute(images)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.name} failed on a batch of images: {type(error).__name__}: {error}") from error
        return _as_matrix(features, len(images), self.name)


def _network_encoder(
    network: nn.Module, name: str, device: torch.device, size: int, resize: int, decode: Decode | None = None
) -> Encoder:
    """Show a network the centre of `size` from images of `resize` pixels, or what `decode` returns."""
    move_network(network, device).eval()

    @torch.no_grad()
    def compute(images: Any) -> Tensor:
        if not isinstance(images, Tensor):
            kinds = ", ".join(sorted({type(image).__name__ for image in images})) or "nothing"
            raise InputError(f"the transform of {name} must return tensors of one shape, not {kinds}")
        moved = images.to(device, non_blocking=True)
        return encode_images(network, center_view(moved, size) if decode is None else moved)

    identity = f"{name}, {_weights_digest(network)}, {size} of {resize} pixels"
    return Encoder(name, identity, compute, resize, decode)


@dataclass(frozen=True)
class _Transform:
    """Decode with Pillow and apply a user's transform; a class, so that workers can unpickle it."""

    transform: Callable[[Any], Any]

    def __call__(self, content: bytes) -> Any:
        image = decode_pil(content)
        try:
            return self.transform(image)
        except Exception as error:
            # The image is not at fault and must not be skipped.
            raise TransformFailed(f"the transform failed: {type(error).__name__}: {error}") from error


def _call_imported(module: str, function: str, spec: str) -> Any:
    if "" not in sys.path:  # installed commands do not search the current folder
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise InputError(f"{spec}: cannot import {module!r} ({type(error).__name__}: {error})") from error
    if not callable(getattr(found, function, None)):
        raise InputError(f"{spec}: {module} has no function {function}")
    try:
        return getattr(found, function)()
    except Exception as error:
        raise InputError(f"{spec}: {function}() failed: {type(error).__name__}: {error}") from error


def _weights_digest(encoder: Any) -> str:
    if not isinstance(encoder, nn.Module):
        return "unknown weights"
    digest = hashlib.sha256()
    for name, value in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _as_matrix(features: Any, n_images: int, name: str) -> FloatArray:
    if isinstance(features, Tensor):
        features = features.detach().float().cpu().numpy()
    if not isinstance(features, np.ndarray):
        raise InputError(
            f"{name} returns a {type(features).__name__} for a batch of images; it must return an n × D tensor or array"
        )
    if features.ndim != _MATRIX:
        raise InputError(
            f"{name} returns an array of shape {features.shape} for {n_images} images, but features must be 2-d; "
            "average over positions, or take the output of an earlier layer"
        )
    if len(features) != n_images:
        raise InputError(f"{name} returns {len(features)} rows of features for {n_images} images, not one for each")
    return features.astype(np.float32, copy=False)
