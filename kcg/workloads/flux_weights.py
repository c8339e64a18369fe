"""Weights and inputs for Flux: the published ones, a local safetensors file, or random ones that stay in range."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.nn.state import safe_load

from kcg.compat.programs import buffer_of, captured_at_once
from kcg.errors import WeightsError
from kcg.workloads.family import generator, tensor_of
from kcg.workloads.flux import PRESETS, VARIANTS, Flux, FluxConfig, flux_config, input_shapes, parameter_shapes

REPOSITORIES = {
    "black-forest-labs/FLUX.1-dev": "flux1-dev.safetensors",
    "black-forest-labs/FLUX.1-schnell": "flux1-schnell.safetensors",
}
"""The repositories on the Hugging Face Hub that hold weights under these names, and the file in each."""

PUBLISHED = "1024"
"""A preset that has the sizes of these."""

DRAWN_BY_HOST = 1 << 25
"""Up to so many random numbers the host draws in less time than compiling kernels for that takes."""

FORMATS = {"BF16", "F16", "F32", "F64"}
SHOWN = 3  # names per kind of fault in an error


def load_weights(model: Flux, path_or_repo: str) -> None:
    """Assign published weights to a model, from a local safetensors file or from one of `REPOSITORIES`.

    Every name and shape is checked before anything is assigned. Values are converted to the model's dtype.
    Raises `WeightsError` as `weights_file` does.
    """
    tensors = safe_load(weights_file(model, path_or_repo))
    for name, parameter in model.parameters.items():
        parameter.replace(tensors[name].to(parameter.device).cast(parameter.dtype).realize())


def weights_file(model: Flux, path_or_repo: str) -> Path:
    """The file of these weights, with the names and shapes of a model; one of `REPOSITORIES` is downloaded once.

    Raises `WeightsError` where the file cannot be had or read, or where its tensors are not exactly the model's.
    """
    if path_or_repo in REPOSITORIES:
        check_repository(model, path_or_repo)
        path = _download(path_or_repo)
    else:
        path = Path(path_or_repo)
    if not path.is_file():
        known = " or ".join(REPOSITORIES)
        raise WeightsError(f"no weights at {path_or_repo}: give a safetensors file, or {known}")
    _check(model, path)
    return path


def check_repository(model: Flux, repository: str) -> None:
    """Whether one of `REPOSITORIES` has the tensors of a model, by what is known of it: nothing is downloaded.

    Raises `WeightsError`.
    """
    variant = repository.rpartition("-")[2]
    _compare(model.config, repository, parameter_shapes(flux_config(PUBLISHED, variant=variant)))


def _check(model: Flux, path: Path) -> None:
    """Compare names and shapes; the library reads the header, and refuses one that does not fit its file."""
    try:
        with safe_open(path, framework="numpy") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            stored = {file.get_slice(name).get_dtype() for name in found}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {_first_line(error)}") from error
    if foreign := sorted(stored - FORMATS):
        raise WeightsError(
            f"{path} holds tensors of type {', '.join(foreign)}: one of {', '.join(sorted(FORMATS))} is needed"
        )
    _compare(model.config, path, found)


def _compare(config: FluxConfig, place: object, found: dict[str, tuple[int, ...]]) -> None:
    """Raises WeightsError where what is at a place are not the tensors of a model."""
    wanted = parameter_shapes(config)
    faults = {
        "missing": [name for name in wanted if name not in found],
        "extra": [name for name in found if name not in wanted],
        "misshapen": [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in wanted.items()
            if name in found and found[name] != shape
        ],
    }
    parts = [
        f"{len(names)} {fault} ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"
        for fault, names in faults.items()
        if names
    ]
    if parts:
        theirs = f"it holds those of {owner}; " if (owner := _owner(config, found)) else ""
        raise WeightsError(f"{place} does not hold the tensors of Flux.1 {config.variant}: {theirs}{'; '.join(parts)}")


def _owner(config: FluxConfig, found: dict[str, tuple[int, ...]]) -> str:
    """Which variant of a model, or which presets, have these tensors; empty where none is known."""
    for variant in VARIANTS:
        if parameter_shapes(replace(config, variant=variant)) == found:
            return variant
        presets = [name for name in PRESETS if parameter_shapes(flux_config(name, variant=variant)) == found]
        if presets:
            return f"{variant}, preset {' or '.join(presets)}"
    return ""


def _download(repository: str) -> Path:
    """The file of a repository from the Hub or its local cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repository, REPOSITORIES[repository]))
    except GatedRepoError as error:
        raise WeightsError(
            f"{repository} is gated: accept its licence at https://huggingface.co/{repository} and set HF_TOKEN"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise WeightsError(
            f"cannot download {repository} (offline, or no access?) and it is not in the local cache: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


CHUNK = 1 << 26
"""Random numbers are drawn this many at a time, or as many as the largest parameter has: no weight of Flux has more."""


def random_weights(model: Flux, seed: int = 0) -> None:
    """Assign random weights that keep every activation near unit size: uniform with variance 1/inputs.

    Others overflow bfloat16 after a few blocks. Biases are small, the scales of norms lie around 1. Those of a small
    model are drawn by the host, without a kernel. Of a large one one captured kernel draws the numbers of all
    parameters, and one for each shape writes them: scheduling each parameter by itself would take most of the time.
    """
    if sum(math.prod(p.shape) for p in model.parameters.values()) <= DRAWN_BY_HOST:
        for name, parameter in model.parameters.items():
            low, high = _bounds(name, parameter.shape)
            values = generator(seed, name).uniform(low, high, parameter.shape)
            parameter.replace(tensor_of(values, model.config.dtype))
        return
    Tensor.manual_seed(seed)
    count = min(CHUNK, max(math.prod(p.shape) for p in model.parameters.values()))
    device = next(iter(model.parameters.values())).device
    draw = TinyJit(lambda: Tensor.rand(count, device=device, dtype=dtypes.float32).realize())
    into: dict[tuple[Any, ...], Any] = {}  # parameters of one shape are filled by one captured kernel
    for name, parameter in model.parameters.items():
        buffer_of(parameter)  # whose memory it writes
        kind = (*parameter.shape, *_bounds(name, parameter.shape))
        if kind not in into:
            into[kind] = captured_at_once(functools.partial(_fill, bounds=_bounds(name, parameter.shape)))
        size = math.prod(parameter.shape)
        parts = [draw()]  # overwritten when the next are drawn
        if size > count:
            parts = [parts[0].clone().realize(), *(draw().clone().realize() for _ in range(count, size, count))]
        into[kind](parameter, *parts)


def _fill(parameter: Tensor, *drawn: Tensor, bounds: tuple[float, float]) -> None:
    """Write random numbers between two bounds over a parameter, made of numbers between 0 and 1."""
    low, high = bounds
    numbers = drawn[0].cat(*drawn[1:])[: math.prod(parameter.shape)].reshape(parameter.shape)
    parameter.assign((numbers * (high - low) + low).cast(parameter.dtype)).realize()


def _bounds(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Between which a random parameter lies."""
    if name.endswith(".scale"):
        return 0.8, 1.2
    bound = math.sqrt(3 / shape[1]) if len(shape) == 2 else 0.05
    return -bound, bound


def random_inputs(config: FluxConfig, seed: int = 0) -> dict[str, Tensor]:
    """Realised inputs of one step: normal tokens, positions of a square image, a timestep and a guidance. The host
    draws them: no kernel runs.

    The image is as near to square as its number of tokens allows.
    """
    width = next(w for w in range(math.isqrt(config.image_tokens), 0, -1) if config.image_tokens % w == 0)
    inputs: dict[str, Tensor] = {}
    for name, (shape, dtype) in input_shapes(config).items():
        if name == "img_ids":
            value = np.array([[[0, i // width, i % width] for i in range(shape[1])]])
        elif name == "txt_ids":
            value = np.zeros(shape)
        elif name in ("timestep", "guidance"):
            # the guidance is what the model was distilled on, 3.5; the timestep one in the middle of a run
            value = np.array([0.6 if name == "timestep" else 3.5])
        else:
            value = generator(seed, name).normal(size=shape)
        inputs[name] = tensor_of(value, dtype)
    return inputs
