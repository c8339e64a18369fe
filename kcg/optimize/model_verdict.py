"""How far apart two outputs of a whole model are, and how much of that is rounding.

The error. An output is taken as rows along its last axis (a token, a line of pixels): the error is the largest, over
all rows, of ‖tuned - own‖, divided by the root mean square of ‖own‖ over the rows, in float64. It is never less than
‖tuned - own‖ / ‖own‖ of the whole output, and a single wrong row among thousands does not drown in it. NaN and
infinities never pass, nor does an output of zeros.

The tolerance. How much of a difference is rounding depends on the model, so it is measured on the spot: tinygrad's own
schedules run twice more, every floating input changed at random by one rounding unit of its dtype, up or down. Nearly
all intermediate values are then rounded anew, so the error of these runs (D, at least one rounding unit) holds both
what the model makes of a small change and the rounding of all its layers. What it may not hold is another order of
summation: K terms added one after the other have a relative error of about 0.2·√K rounding units of the dtype they are
summed in (a random walk; padded and unrolled they have less), tinygrad's own order may be much better, and storing a
value, which D does hold, is good for 0.3 units. Thus

    tolerance = 3 · D · max(1, √K · eps(sum) / eps(model)), with the largest √K · eps(sum) of all kernels

where eps(model) is that of the coarsest dtype among inputs and outputs. The last factor counts in float32 models only:
in bfloat16, sums are float32 and their order is lost below the rounding of what is stored. Where the tolerance comes
out above 0.25, the model is too sensitive on random weights for a verdict, and none is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FACTOR = 3.0  # between two runs whose rounding is independent and the worst that is still taken for rounding
MAX_TOLERANCE = 0.25


def judge(
    tuned: Sequence[list[Array]], own: list[Array], shaken: Sequence[list[Array]], *, eps: float, sums: float
) -> ModelCheck:
    """The verdict on the outputs of runs with the chosen schedules.

    `own` and `shaken` are the outputs with tinygrad's own schedules, of the inputs and of slightly changed ones; `eps`
    is that of the model's dtype, `sums` is what `rounding_of_sums` gives.
    """
    import numpy as np

    if not all(np.isfinite(o).all() for o in own):
        return ModelCheck(None, "no verdict: the output is not finite with tinygrad's own schedules either")
    if not all(np.any(o) for o in own):
        return ModelCheck(None, "no verdict: the output is zero with tinygrad's own schedules either")
    moved = max(relative_error(outputs, own) for outputs in shaken)
    tolerance = FACTOR * max(moved, eps) * max(1.0, sums / eps)
    error = max(relative_error(outputs, own) for outputs in tuned)
    if not math.isfinite(error):
        reason = "the output with the chosen schedules is not finite, or of another shape"
        return ModelCheck(False, reason, error, tolerance if math.isfinite(tolerance) else None)
    if not tolerance <= MAX_TOLERANCE:
        reason = f"no verdict: one rounding unit at the inputs moves the output by {moved:.2g}, too much to tell"
        return ModelCheck(None, reason, error, tolerance if math.isfinite(tolerance) else None)
    if error > tolerance:
        reason = f"the output differs by {error:.2g} of its size from that with tinygrad's own schedules; "
        return ModelCheck(False, reason + f"rounding explains {tolerance:.2g}", error, tolerance)
    return ModelCheck(True, "", error, tolerance)


def relative_error(outputs: Sequence[Array], own: Sequence[Array]) -> float:
    """The error as this module's docstring defines it, the largest of all outputs; infinite where a value is not."""
    import numpy as np

    worst = 0.0
    for ours, theirs in zip(outputs, own, strict=True):
        if ours.shape != theirs.shape or not np.isfinite(ours).all():
            return math.inf
        width = theirs.shape[-1] if theirs.ndim else 1
        rows = np.linalg.norm((ours - theirs).reshape(-1, width), axis=1)
        size = math.sqrt(float(np.mean(np.square(np.linalg.norm(theirs.reshape(-1, width), axis=1)))))
        worst = max(worst, float(rows.max()) / size if size else math.inf)
    return worst


def perturbed(inputs: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """Every floating input times 1 plus or minus the eps of its dtype, at random; others as they are."""
    from tinygrad import Tensor, dtypes

    Tensor.manual_seed(seed)
    changed = {}
    for name, value in inputs.items():
        if not dtypes.is_float(value.dtype):
            changed[name] = value
            continue
        wide = dtypes.float64 if value.dtype == dtypes.float64 else dtypes.float32
        up = Tensor.rand(*value.shape, dtype=dtypes.float32, device=value.device) < 0.5
        factor = up.where(1.0 + eps_of(value.dtype), 1.0 - eps_of(value.dtype)).cast(wide)
        changed[name] = (value.cast(wide) * factor).cast(value.dtype).contiguous().realize()
    return changed


def eps_of(dtype: Any) -> float:
    """Distance from 1 to the next number of a floating dtype."""
    from tinygrad import dtypes

    return float(2.0 ** -dtypes.finfo(dtype)[1])


def rounding_of_sums(result: Result) -> float:
    """The largest √K·eps of all kernels: K is the number of terms of a sum, eps that of the dtype it is summed in."""
    from kcg.compat.tiny import Ops, dtypes
    from kcg.kernel.codec import ast_of

    largest = 0.0
    for kernel in {kernel for row in result.regions for kernel in row.region.kernels}:
        for node in ast_of(kernel).toposort():
            if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and dtypes.is_float(node.dtype):
                terms = math.prod(int(axis.vmax) + 1 for axis in node.src[1:])
                largest = max(largest, math.sqrt(terms) * eps_of(node.dtype))
    return largest
