"""`kcg.tune` and its handle: tuned in this process, checked by calling the function again, used, kept, loaded."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tinygrad import Tensor, nn

import kcg
from kcg import tuning
from kcg.compat.capture import is_hooked, recording
from kcg.compat.opened import open_default
from kcg.errors import KcgError, UsageError, VerificationError
from kcg.handover.tuned import HoldsResult
from kcg.judge.whole_function import Function, _explained, step_of
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.optimize.settings import Settings
from kcg.tuning import Tuned
from kcg.types import ModelCheck, Result
from kcg.workloads.function import Call, capture_call
from tests.small_result import finalist, unlike_baseline

open_default()
LAYER = nn.Linear(64, 48)
X = Tensor(np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)).realize()
MEASUREMENTS = 5


def layer(x: Tensor) -> Tensor:
    return LAYER(x).relu().sum(axis=0)


def few(settings: Settings) -> Settings:
    """So many measurements instead of a budget: however busy the machine is, the same is done."""
    return replace(settings, budget_s=None, measurements=MEASUREMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned")


@pytest.fixture(scope="module")
def real(folder: Path) -> Tuned:
    """As tuning it really was."""
    made = tuning.settings_of
    with mock.patch.object(tuning, "settings_of", lambda *args, **kwargs: few(made(*args, **kwargs))):
        return kcg.tune(layer, X, folder=folder, quiet=True)


@pytest.fixture(scope="module")
def changed(real: Tuned, folder: Path) -> Tuned:
    """The same with another schedule of every kernel, whatever the search found."""
    rows = []
    for row in real.result.regions:
        space = KernelSpace(row.region, real.result.target)
        base, other = finalist(space, space.baseline()), finalist(space, unlike_baseline(space))
        rows.append(replace(row, baseline=base, chosen=replace(other, cold_s=1e-6), outcome="improved"))
    result = replace(real.result, regions=tuple(rows), expectations=(), planning=None, model_check=None)
    return Tuned(result, folder / "changed" / "RESULT.json")


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    yield
    assert not is_hooked(), "a test left a result in use"


def names_of(run: Any) -> set[str]:
    with recording() as recorder:
        run()
    return set(recorder.names.values())


@pytest.mark.slow
def test_the_result_is_that_of_a_run_and_nothing_of_this_process_changed(real: Tuned, folder: Path) -> None:
    result = real.result
    assert result.workload == "function:layer" and result.preset == "32×64 float"
    assert 1 <= result.measurements <= MEASUREMENTS and real.path == folder / "RESULT.json"
    assert 0 < real.total_after_s <= real.total_before_s == result.total_before_s
    assert real.report() == folder / "report.html" and real.report().is_file()
    assert {kernel.name for kernel in real.kernels} == {row.chosen.name for row in result.regions}
    assert result.command == "kcg.tune(layer, budget='60s', search='mcts')"
    assert os.environ["DEV"] == result.target.tinygrad_device


def test_the_handle_prints_as_a_table_that_fits_a_terminal(real: Tuned) -> None:
    lines = repr(real).splitlines()
    is_faster = any(row.outcome == "improved" for row in real.result.regions)
    assert lines[0].startswith("layer: ") and (" → " in lines[0]) is is_faster
    assert any(line.startswith("whole function: ") for line in lines)
    assert all(any(line.startswith((kernel.layer or kernel.name)[:20]) for line in lines) for kernel in real.kernels)
    many = replace(real, result=replace(real.result, regions=real.result.regions * 40))
    assert len(str(many).splitlines()) <= 24
    too_short = ("nothing was searched: the budget of 2 s is too short to search in: try --budget 30s",)
    assert "try budget=30s" in str(replace(many, result=replace(many.result, complete=False, warnings=too_short)))
    page = real._repr_html_()
    assert page.count("<tr>") == 1 + len(real.kernels) and "µs" in page


def test_the_function_is_called_again_and_compared(changed: Tuned) -> None:
    (check,) = Function(Call(layer, (X,))).checks([changed.result], timeout_s=600.0)
    assert check.passed is True and check.kernels == len(changed.result.regions)
    assert check.before_s is not None and check.after_s is not None and check.compared


def test_a_check_that_fails_to_call_it_again_says_so_and_raises_nothing(changed: Tuned) -> None:
    asked: list[int] = []

    def moody(x: Tensor) -> Tensor:
        asked.append(1)
        raise RuntimeError("not again")

    (check,) = Function(Call(moody, (X,))).checks([changed.result], timeout_s=600.0)
    assert check.passed is None and "not again" in check.reason and asked


@pytest.mark.slow
def test_a_function_that_does_not_repeat_itself_is_compared_by_one_of_its_calls(changed: Tuned) -> None:
    numbers = itertools.count(1)
    call = Call(lambda x: layer(x).contiguous() * next(numbers), (X,))
    (check,) = Function(call).checks([changed.result], timeout_s=600.0)
    assert check.passed, check


def wrongly(changed: Tuned, call: Call) -> Result:
    """A result that has a wrong schedule of a maximum over 16, the first kernel of a call: it makes one that writes
    nothing (tests/measure/test_verify.py)."""
    wrong = schedule_of([Opt("PADTO", 1, 32), Opt("UNROLL", 0, 32)])
    found, *_ = capture_call(call, device="CPU").workload.calls
    space = KernelSpace(found.region, changed.result.target)
    row = replace(changed.result.regions[0], region=found.region, baseline=finalist(space, space.baseline()))
    return replace(changed.result, regions=(replace(row, chosen=finalist(space, wrong)),))


def test_a_wrong_schedule_fails_the_check(changed: Tuned) -> None:
    """Memory holds what is right: the function ran just before."""
    x = X[:16, :48].contiguous().realize()
    call = Call(lambda x: x.max(axis=0), (x,))
    result = wrongly(changed, call)
    for _ in range(3):
        call.function(x).realize()
    (check,) = Function(call).checks([result], timeout_s=600.0)
    assert check.passed is False and "differs" in check.reason
    whole = Tensor([1, 2, 3]).realize()
    explained = _explained(check, step_of(Call(lambda: whole.max(axis=0))), result)
    assert explained.passed is None and "neither its arguments nor what it reads are floating" in explained.reason


@pytest.mark.slow
def test_a_wrong_schedule_of_a_function_that_does_not_repeat_itself_is_wrong(changed: Tuned) -> None:
    numbers = itertools.count(1)
    call = Call(lambda x: x.max(axis=0).contiguous() * next(numbers), (X[:16, :48].contiguous().realize(),))
    (check,) = Function(call).checks([wrongly(changed, call)], timeout_s=600.0)
    assert check.passed is False and "differs" in check.reason


def test_tensors_of_a_call_are_the_inputs_once_each(changed: Tuned) -> None:
    step = step_of(Call(lambda a, b, *, c, n: (a + b + c) * n, (X, X), {"c": X + 1, "n": 3}))
    assert len(step.inputs) == 2
    (returned,) = step.run(**step.inputs)
    assert np.allclose(returned.numpy(), (3 * X.numpy() + 1) * 3)


@pytest.mark.parametrize("way", ["apply", "block", "tuned", "path"])
def test_it_is_used_until_it_is_taken_out(changed: Tuned, folder: Path, way: str) -> None:
    chosen = {kernel.name for kernel in changed.kernels}
    assert not chosen & names_of(lambda: layer(X).realize())
    if way == "apply":
        installed = changed.apply()
        assert names_of(lambda: layer(X).realize()) == chosen
        installed.remove()
    else:
        saved = changed.save(folder / "saved" / "RESULT.json")
        given: Path | HoldsResult = {"block": changed, "tuned": kcg.load(saved), "path": saved.parent / saved.name}[way]
        with changed.apply() if way == "block" else kcg.tuned(given):
            assert names_of(lambda: layer(X).realize()) == chosen
    assert not chosen & names_of(lambda: layer(X).realize())


def test_what_is_saved_is_loaded_the_same(real: Tuned, folder: Path) -> None:
    saved = real.save(folder / "elsewhere" / "mine.json")
    assert kcg.load(saved).result == real.result == kcg.load(folder).result
    assert kcg.load(saved).report() == folder / "elsewhere" / "report.html"


def test_a_result_that_failed_its_check_is_not_used(changed: Tuned) -> None:
    failed = replace(changed, result=replace(changed.result, model_check=ModelCheck(False, "it differs")))
    assert "FAILED, not used: it differs" in str(failed)
    with pytest.raises(VerificationError, match="it differs"):
        failed.apply()


def test_tuning_inside_of_a_block_is_refused_and_what_is_applied_is_left_out(changed: Tuned) -> None:
    with kcg.tuned(changed), pytest.raises(UsageError, match=r"tune outside of the block of kcg\.tuned"):
        kcg.tune(layer, X, quiet=True)
    with changed.apply():
        with pytest.raises(UsageError, match="ran no kernel"):
            kcg.tune(lambda: None, quiet=True)
        assert names_of(lambda: layer(X).realize()) == {kernel.name for kernel in changed.kernels}, "in use again"


def test_what_the_function_raises_goes_through_with_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        kcg.tune(lambda x: x / (1 // 0), X, quiet=True)
    assert raised.value.__notes__ == ["kcg called lambda to see which kernels it runs, and it raised this"]


def _file(path: Path) -> Path:
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fn": 5}, "int is no function: give one"),
        ({"fn": lambda x: None}, "lambda ran no kernel of CPU that can be searched"),
        ({"budget": 0}, "budget '0' is not a positive time: write for example 120s"),
        ({"budget": "soon"}, "budget 'soon' is not a positive time"),
        ({"search": "mtcs"}, "unknown search strategy 'mtcs': did you mean mcts?"),
        ({"device": "TPU"}, "unknown device 'TPU'"),
        ({"device": "CPU:CLANG"}, "CPU:CLANG"),
        ({"folder": "a file"}, "cannot write to .*: choose|choose another folder with folder="),
    ],
)
def test_bad_input_is_one_line(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    asked = {"fn": layer, "folder": tmp_path, "quiet": True, **given}
    if asked["folder"] == "a file":
        asked["folder"] = _file(tmp_path / "file") / "inside"
    with pytest.raises(KcgError, match=said) as raised:
        kcg.tune(asked.pop("fn"), X, **asked)
    assert "\n" not in str(raised.value)
