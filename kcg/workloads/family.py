"""What a workload family is: a model in plain tinygrad with presets, its parameters, and its inputs.

A family is one module of `kcg.workloads.zoo`; adding a file there adds a workload. It has
- `ABOUT`, one line;
- `PRESETS`, name -> frozen config with at least a `dtype`. The first, `mini`, runs on a CPU in about a second; presets
  whose name begins with `mini` suit a CPU, all others a GPU, and the first of those is what a GPU gets by default;
- `inputs(config)`, what a step reads: name -> `Input`;
- `run(p, config, **inputs)`, the step itself: parameters are asked of `p` by name and shape where they are used.
  It gives a tensor or a tuple of them, not realised;
- `variables(config)`, where extents are symbolic: name -> bound `Variable`, which `run` takes too (or binds itself);
- `IN_PLACE = True` where a step changes its parameters (optimisers): such a family is captured but not run twice.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tinygrad import Tensor, dtypes

from kcg.compat.tiny import UOp
from kcg.types import Workload
from kcg.workloads.capture import step_workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Step:
    """One execution of a workload on random weights and inputs, all of them realised on the default device.

    Weights are scaled by fan-in (standard deviation `1/sqrt(fan_in)`), so that bfloat16 does not overflow.
    `run(**inputs)` gives the outputs, not realised; it may be called many times and must make the kernels that the
    workload's `capture` yields. How far the output moves when floating inputs change by a rounding unit is measured, so
    at least one is floating (a model that reads only tokens has its embedding table among the inputs), and what is
    exact by nature, such as positions or a timestep, is no input but bound in `run`.
    """

    inputs: dict[str, Tensor | UOp]  # a UOp is a bound variable, of which replays are told
    run: Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Input:
    """One input of a step: normal numbers of a floating dtype, or integers in [0, `below`)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0


class Config(Protocol):
    """What every config of a family has."""

    @property
    def dtype(self) -> str: ...


class Family(Protocol):
    """A module of `kcg.workloads.zoo`."""

    ABOUT: str
    PRESETS: Mapping[str, Any]

    def inputs(self, config: Any) -> dict[str, Input]: ...
    def run(self, p: Parameters, config: Any, **inputs: Any) -> Tensor | tuple[Tensor, ...]: ...


class Parameters:
    """The parameters of a model, made when first asked for: empty for scheduling, or random for a run.

    Random ones are drawn per name, so that their values do not depend on the order in which they are asked for.
    """

    def __init__(self, dtype: str, *, seed: int | None = None) -> None:
        self.dtype, self.seed = dtype, seed
        self.tensors: dict[str, Tensor] = {}

    def __call__(
        self, name: str, *shape: int, fan_in: int | None = None, around: float = 0.0, dtype: str | None = None
    ) -> Tensor:
        """The parameter `name`: normal around `around` with standard deviation 1/sqrt(fan_in), which is the product of
        all axes but the first unless given. Vectors (biases, scales of norms) have a deviation of 0.1.
        """
        if name not in self.tensors:
            dtype = dtype or self.dtype
            if self.seed is None:
                self.tensors[name] = Tensor.empty(*shape, dtype=getattr(dtypes, dtype))
            else:
                deviation = 0.1 if len(shape) == 1 and fan_in is None else (fan_in or math.prod(shape[1:])) ** -0.5
                self.tensors[name] = self.drawn(generator(self.seed, name), shape, around, deviation, dtype)
        found = self.tensors[name]
        if tuple(found.shape) != shape:
            raise ValueError(f"parameter {name!r} has shape {found.shape}, not {shape}")
        return found

    def drawn(
        self, random: np.random.Generator, shape: tuple[int, ...], around: float, deviation: float, dtype: str
    ) -> Tensor:
        """A realised tensor of normal numbers."""
        return tensor_of(random.normal(around, deviation, shape), dtype)

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Every parameter asked for so far, as the model sees it (rounded to its dtype), in float64."""
        return {name: array_of(t) for name, t in self.tensors.items()}


def generator(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on a seed and a name only."""
    import numpy as np

    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def tensor_of(values: NDArray[Any], dtype: str) -> Tensor:
    """A realised tensor of these values in that dtype, made without running a kernel."""
    return tensor_as_stored(as_stored(values, dtype), dtype)


def as_stored(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Values in a dtype; of bfloat16, which NumPy has not, the bits, as uint16."""
    import numpy as np

    if dtype == "bfloat16":  # the upper half of a float32, rounded to nearest
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(values.astype(getattr(dtypes, dtype).fmt and np.dtype(dtype)))


def tensor_as_stored(stored: NDArray[Any], dtype: str) -> Tensor:
    """A realised tensor of what `as_stored` gave."""
    if dtype == "bfloat16":
        return Tensor(stored.tobytes(), dtype=dtypes.bfloat16).reshape(stored.shape).realize()
    return Tensor(stored).realize()


def array_of(tensor: Tensor) -> NDArray[np.float64]:
    """The values of a tensor in float64 (integers too)."""
    import numpy as np

    return np.asarray(tensor.float().numpy() if tensor.dtype == dtypes.bfloat16 else tensor.numpy(), np.float64)


def random_inputs(wanted: Mapping[str, Input], seed: int) -> dict[str, Tensor]:
    """Realised inputs of a step."""
    made = {}
    for name, spec in wanted.items():
        rng = generator(seed, name)
        drawn = rng.integers(0, spec.below, spec.shape) if spec.below else rng.normal(size=spec.shape)
        made[name] = tensor_of(drawn, spec.dtype)
    return made


def capture(family: Family, name: str, preset: str) -> Workload:
    """The kernels of one step, without allocating anything."""
    config = family.PRESETS[preset]
    empty = {k: Tensor.empty(*i.shape, dtype=getattr(dtypes, i.dtype)) for k, i in family.inputs(config).items()}

    def build() -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        parameters = Parameters(config.dtype)
        made = family.run(parameters, config, **empty)
        return made if isinstance(made, tuple) else (made,), parameters.tensors

    return step_workload(name, preset, build)


def runnable(family: Family, preset: str, seed: int) -> Step:
    """A step on random parameters and inputs: what the whole model's check runs.

    Floating inputs are the step's inputs. A model that reads integers only has the largest of its parameters that is
    indexed by them, its embedding table, as the input that varies: `embedding` in its name.
    """
    config = family.PRESETS[preset]
    return step_of(family, config, Parameters(config.dtype, seed=seed), seed)


def step_of(family: Family, config: Any, p: Parameters, seed: int) -> Step:
    """As `runnable`, of any sizes and parameters."""
    drawn = random_inputs(family.inputs(config), seed + 1)
    family.run(p, config, **drawn)  # makes the parameters
    varied = {k: t for k, t in drawn.items() if dtypes.is_float(t.dtype)}
    fixed = {k: t for k, t in drawn.items() if k not in varied}
    bound: dict[str, UOp] = getattr(family, "variables", lambda _: {})(config)
    if varied:
        return Step({**varied, **bound}, lambda **inputs: family.run(p, config, **fixed, **inputs))
    table = next(name for name in p.tensors if "embedding" in name)

    def with_table(*, table_values: Tensor, **rest: UOp) -> Tensor | tuple[Tensor, ...]:
        p.tensors[table] = table_values
        return family.run(p, config, **fixed, **rest)

    return Step({"table_values": p.tensors[table], **bound}, with_table)
