"""Optional libraries: imported when they are used, with a message that says what to install if they are missing."""

from importlib import import_module
from types import ModuleType

from cpaan.errors import InputError

# Library → the extra that installs it.
EXTRAS = {
    "dask": "cluster",
    "huggingface_hub": "hub",
    "matplotlib": "report",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "tune",
    "pyarrow": "parquet",
    "tensorboard": "tensorboard",
}


def import_extra(module: str, purpose: str, library: str | None = None) -> ModuleType:
    """Import a module of an optional library.

    The message for a missing library begins with `purpose`, such as "a parquet file". `library` is the package to
    install, if that is not the first part of the module's name.

    >>> import_extra("no_such_library", "a test")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: a test needs no_such_library: pip install no_such_library
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(library or module.partition(".")[0], purpose) from error


def missing_extra(library: str, purpose: str) -> InputError:
    """Make the error for a missing library.

    >>> print(missing_extra("pyarrow", "a parquet file"))
    a parquet file needs pyarrow: pip install 'cpaan[parquet]'
    """
    extra = EXTRAS.get(library)
    package = library if extra is None else f"'cpaan[{extra}]'"
    return InputError(f"{purpose} needs {library}: pip install {package}")
