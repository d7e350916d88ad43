"""A model on disk: `model.safetensors` and `config.json` in a folder; nothing is ever unpickled.

The configuration is written last and holds a checksum of the tensors, so a torn model is recognised. It can be read
without loading torch.
"""

import hashlib
import json
import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpaan.data.atomic import replacing, write_atomically
from cpaan.data.json_file import read_json
from cpaan.data.limits import reading, require_file
from cpaan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "cpaan model"
FORMAT_VERSION = 1
TENSORS, CONFIG = "model.safetensors", "config.json"
_BLOCK_BYTES = 2**22


def encode_name(name: Hashable) -> Any:
    """Turn a class name into what JSON can hold and give back unchanged.

    >>> encode_name(("a", 1))
    {'tuple': ['a', 1]}
    """
    if name is None or isinstance(name, (str, bool, int, float)):
        return name
    if isinstance(name, tuple):
        return {"tuple": [encode_name(part) for part in name]}
    raise InputError(
        f"a model with the class name {name!r} cannot be saved: names must be text, numbers, booleans or tuples "
        "of these"
    )


def decode_name(name: Any) -> Hashable:
    """Undo `encode_name`.

    >>> decode_name({"tuple": ["a", 1]})
    ('a', 1)
    """
    if isinstance(name, dict) and name.keys() == {"tuple"} and isinstance(name["tuple"], list):
        return tuple(decode_name(part) for part in name["tuple"])
    if isinstance(name, dict | list) or (isinstance(name, float) and math.isnan(name)):
        raise InputError(f"{name!r:.100} is no class name")
    result: Hashable = name
    return result


def write_model(
    folder: str | os.PathLike[str], kind: str, tensors: "Mapping[str, Tensor]", config: Mapping[str, Any]
) -> None:
    """Write a model of some kind; a model that is there already is replaced."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write a model to {folder}: {error.strerror or error}") from error
    with replacing(folder / TENSORS) as temporary:
        try:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary)
        except SafetensorError as error:  # such as a full disk, in its own words
            raise OSError(str(error)) from error
        checksum = _checksum(temporary)
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind}
    whole = {**head, "sha256": checksum, **config}
    write_atomically(folder / CONFIG, json.dumps(whole, indent=1).encode())


def read_model(folder: str | os.PathLike[str], kind: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read the tensors of a model onto the CPU, and its configuration."""
    from safetensors.torch import load_file

    folder = Path(folder)
    config = read_config(folder)
    if config["kind"] != kind:
        raise InputError(f"{folder} holds a {config['kind']:.100}, not a {kind}")
    if not (folder / TENSORS).is_file():
        raise InputError(f"{folder} has no readable {TENSORS}")
    with reading(folder / TENSORS):
        if _checksum(folder / TENSORS) != config["sha256"]:
            raise InputError(
                f"{folder / TENSORS} is truncated or damaged: it does not match the checksum in {CONFIG}; copy the "
                "model again or train it anew"
            )
        # The library holds every place and size of the header against the length of the file.
        tensors: dict[str, Tensor] = load_file(folder / TENSORS)
        wrong = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
        if wrong:
            raise InputError(f"{folder / TENSORS}: {wrong[0]} is NaN or infinite; train the model anew")
    return tensors, config


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the configuration of a model, without its tensors."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; a model is a folder with {TENSORS} and {CONFIG}")
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} is not a model: it has no readable {CONFIG}")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{folder / CONFIG} is of another kind: it does not describe a {FORMAT}")
    if config.get("format_version") != FORMAT_VERSION:
        found = f"{config.get('format_version')!r:.20}"
        raise InputError(f"{folder} has format version {found}, and this cpaan reads {FORMAT_VERSION}")
    for name in ("kind", "sha256"):
        if not isinstance(config.get(name), str):
            raise InputError(f"{folder / CONFIG} is damaged: it has no {name}")
    return config


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of a model's tensors, and none of their values."""
    from safetensors import safe_open

    require_file(path)
    with reading(path, "is truncated or damaged"), safe_open(path, framework="numpy") as file:
        names = file.keys()  # what is open here has this, but cannot be iterated itself
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
