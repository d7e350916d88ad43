"""How a run can be made again: the command, and the versions that it was made with."""

import shlex
from typing import Any

from cpaan.reporting.runs import RunRecord

_STATED = ("recipe", "device")


def bench_command(run: RunRecord) -> str:
    """Give the command that makes a run again; where the files of the data are not known, a word stands for them."""
    config, origin = run.config, run.origin
    words = ["cpaan", "bench", origin.get("bank") or "BANK", "--setup", origin.get("setup") or "SETUP"]
    words += [part for name in ("test", "part") if origin.get(name) is not None for part in _option(name, origin[name])]
    words += [part for path in origin.get("splits") or () for part in _option("splits", path)]
    words += _option("methods", ",".join(config["methods"])) + _option("shots", ",".join(map(str, config["shots"])))
    words += [part for name in ("trials", "classifier", "normalize", "seed") for part in _option(name, config[name])]
    settings = dict(config.get("settings") or {})
    words += [part for name in _STATED if name in settings for part in _option(name, settings.pop(name))]
    words += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    words += _option("representation", config["representation"])
    return shlex.join([*map(str, words), "-o", "runs/again"])


def install_command(run: RunRecord) -> str:
    """Give the command that installs the libraries in the versions that a run was made with."""
    # Without what a build adds to its version, such as +cpu: package indexes have none of it.
    wanted = [f"{name}=={version.partition('+')[0]}" for name, version in run.versions.items()]
    return shlex.join(["pip", "install", *wanted])


def _option(name: str, value: Any) -> list[str]:
    return [f"--{name}", str(value)]
