"""The process that runs Flux in tinygrad: as it schedules a step, and with results of kcg's. It makes the weights."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file

from evaluation.flux.equal.blocks import EXACT, INPUTS, WEIGHTS, Meter, NoMeter, commands_of
from evaluation.pytorch.serving import answering

Call = Callable[[], object]


class TinySteps:
    """See `blocks.Steps`."""

    def __init__(self, preset: str, device: str) -> None:
        self.preset, self.device = preset, device
        self.model: Any = None
        self.inputs: dict[str, Any] = {}

    def load(self, folder: Path) -> None:
        """The weights of the folder where they are there, else random ones, which are written there."""
        from kcg.workloads import flux
        from kcg.workloads.family import tensor_of
        from kcg.workloads.flux_weights import load_weights, random_inputs, random_weights

        self.model, _ = flux.build(self.preset)
        if (path := folder / WEIGHTS).exists():
            load_weights(self.model, str(path))
        else:
            random_weights(self.model, 0)
            write_weights(self.model, path)
        self.inputs = random_inputs(self.model.config, 1)
        for name in EXACT.keys() & self.inputs.keys():
            self.inputs[name] = tensor_of(np.array([EXACT[name]]), "float32")
        np.savez(folder / INPUTS, **{name: value.float().numpy() for name, value in self.inputs.items()})

    def ready(self, name: str, settings: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
        """`result` is the path of a RESULT.json; without one, as tinygrad schedules it."""
        from kcg.compat.programs import captured_at_once
        from kcg.compat.tiny import Context
        from kcg.handover.tuned import scheduling
        from kcg.report.result import read_result

        facts: dict[str, Any] = {}
        jitted = captured_at_once(lambda **varied: self.model(**varied, **fixed))
        varied = {key: self.inputs[key] for key in ("img", "txt", "y")}
        fixed = {key: value for key, value in self.inputs.items() if key not in varied}
        with contextlib.ExitStack() as stack:
            stack.enter_context(Context(BEAM=0, NOOPT=0))
            if settings.get("result"):
                result = read_result(Path(settings["result"]))
                place = stack.enter_context(scheduling(result, changed_only=True))
            jitted(**varied)
        if settings.get("result"):
            facts = {"served": len(place.served), "left": [list(map(str, one)) for one in place.sets_left]}
            facts |= {"result_revision": result.revision, "result_command": result.command}
            facts["result"] = hashlib.sha256(Path(settings["result"]).read_bytes()).hexdigest()[:16]
        return lambda: jitted(**varied), facts

    def output(self, call: Call) -> NDArray[np.float32]:
        found: Any = call()
        values: NDArray[np.float32] = found.float().numpy()
        return values

    def in_a_row_s(self, call: Call, count: int) -> list[float]:
        from kcg.compat.programs import in_a_row_s, synchronize

        synchronize(self.device)
        return in_a_row_s(self.device, call, count)

    def peak_bytes(self) -> int | None:
        """What is allocated now: tinygrad plans the memory of a captured step, so that is its peak."""
        from kcg.compat.hardware import allocated_bytes

        return allocated_bytes()

    def reference(self) -> NDArray[np.float32]:
        raise NotImplementedError("the float32 run is PyTorch's")


def write_weights(model: Any, path: Path) -> None:
    """A safetensors file of a model's parameters: all of them in memory at once, a tenth of the time of a copy each."""
    from kcg.compat.programs import buffer_of

    values = {name: np.frombuffer(buffer_of(one).as_memoryview(), np.uint8) for name, one in model.parameters.items()}
    tensors = {
        name: TensorSpec(
            dtype=model.config.dtype,
            shape=model.parameters[name].shape,
            data_ptr=bytes_of.ctypes.data,
            data_len=bytes_of.nbytes,
        )
        for name, bytes_of in values.items()
    }
    temporary = path.with_suffix(".part")
    serialize_file(tensors, temporary)
    temporary.rename(path)


def opened(job: dict[str, Any]) -> Any:
    """The commands, once the device is open."""
    from kcg.compat.device import prepare
    from kcg.compat.programs import synchronize

    prepare(job["dev"])
    synchronize(device := job["dev"].split(":")[0])  # which opens it: NVML is asked for the GPU that is open
    return commands_of(TinySteps(job["preset"], device), NoMeter() if device == "CPU" else Meter())


if __name__ == "__main__":
    answering(opened)
