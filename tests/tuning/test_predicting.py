"""`kcg.predict`: microseconds with an interval, without a device, for functions, tensors and kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tinygrad import Tensor, nn

import kcg
from kcg.errors import KcgError, ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.targets import TARGETS
from kcg.predicting import COVERAGE
from kcg.predictor.choice import is_trained_on, shipped_path
from kcg.types import Kernel

A, B = Tensor.empty(512, 256, dtype="bfloat16", device="CPU"), Tensor.empty(256, 1024, dtype="bfloat16", device="CPU")
DOCUMENT = Path(__file__).parents[2] / "docs" / "predictor.md"


def kernel() -> Kernel:
    return kernel_of((A @ B).schedule_linear().src[0].src[0])


def test_a_kernel_a_function_and_tensors_are_predicted_alike() -> None:
    found = kcg.predict(kernel())
    (one,) = found.kernels
    assert 0 < one.interval_us[0] < one.us < one.interval_us[1] and one.calls == 1 and one.fails < 0.5
    assert found.us == one.us and found.interval_us == one.interval_us
    for same in (lambda: A @ B, A @ B, [A @ B]):
        assert kcg.predict(same) == found
    assert kcg.predict((A @ B).schedule_linear().src[0].src[0]) == found
    assert kcg.predict(kernel(), one.schedule) == found


def test_a_schedule_is_predicted_in_the_place_of_tinygrads_own() -> None:
    poor = kcg.predict(kernel(), schedule_of([]))
    assert poor.us > kcg.predict(kernel()).us
    with pytest.raises(ScheduleError):
        kcg.predict(kernel(), schedule_of([Opt("UPCAST", 7, 4)]))


def test_totals_are_of_all_calls_and_weights_of_a_new_model_are_given() -> None:
    layer = nn.Linear(256, 256)
    found = kcg.predict(lambda: layer(layer(A.float())).sum(axis=1))
    assert found.us == pytest.approx(sum(one.calls * one.us for one in found.kernels))
    low, high = found.interval_us
    assert low < found.us < high
    assert not any("THREEFRY" in one.name for one in found.kernels) and len(found.kernels) <= 3
    lines = str(found).splitlines()
    assert re.match(r"[\d.]+ µs in all, [\d.]+ to [\d.]+, on NVIDIA H200 \(sm_90\) by ", lines[-2])
    many = replace(found, kernels=found.kernels * 30)
    assert len(str(many).splitlines()) <= 24


def test_what_an_interval_holds_is_reported_where_it_was_measured() -> None:
    """On the very target that the checkpoint was trained on; the figure is that of the document."""
    trained, other = TARGETS["sm_90"], TARGETS["sm_80"]
    path = shipped_path(trained)
    assert path is not None and is_trained_on(path, trained) and not is_trained_on(path, other)
    (share,) = re.findall(r"(\d+)% lie in the interval meant for 95 %", DOCUMENT.read_text(encoding="utf-8"))
    assert kcg.predict(kernel()).coverage == COVERAGE[path.stem] == int(share) / 100
    for name in ("sm_80", "gfx942", "x86_64"):
        found = kcg.predict(kernel(), target=name)
        assert found.coverage is None and "was not measured" in str(found) and found.us > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "sm90"}, "unknown target 'sm90': did you mean sm_90"),
        ({"fn_or_kernel": 5}, "int is no kernel, lazy tensors, or function that returns such"),
        ({"fn_or_kernel": lambda: None}, "lambda returns no lazy tensors"),
        ({"fn_or_kernel": A}, "these tensors are realised already"),
        ({"fn_or_kernel": lambda: (A @ B, A + 1), "schedule": schedule_of([])}, "a schedule is of one kernel"),
    ],
)
def test_bad_input_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(KcgError, match=said) as raised:
        kcg.predict(**{"fn_or_kernel": kernel(), **given})
    assert "\n" not in str(raised.value)
