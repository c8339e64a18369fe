"""`kcg.autotuned`: tuned at the first call, kept by content, used by the next process, by one process at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

import kcg
from kcg import autotuning, tuning
from kcg.autotuning import facts_of, key_of
from kcg.compat.capture import is_hooked, recording
from kcg.compat.opened import open_default
from kcg.errors import UsageError
from kcg.kernel.opts.space import KernelSpace
from kcg.report.result import write_result
from kcg.types import ModelCheck, RegionResult, Result
from kcg.workloads.function import Call, capture_call
from tests.commands import python
from tests.sample_result import sample_result
from tests.small_result import finalist, unlike_baseline
from tests.ui_server import live_file
from tests.waiting import PATIENCE_S

open_default()
VALUES = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
X, Y = Tensor(VALUES).realize(), Tensor(VALUES[:16]).realize()


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    yield
    for one in list(tuning._installed):
        one.remove()
    assert not is_hooked()


def result_of(call: Call) -> Result:
    """A result with another schedule of every kernel of a call than tinygrad's own."""
    target, toolchain = facts_of(tuning.device_here())
    rows = []
    for found in capture_call(call, device="CPU").workload.calls:
        space = KernelSpace(found.region, target)
        base, other = finalist(space, space.baseline()), finalist(space, unlike_baseline(space))
        rows.append(RegionResult(found.region, found.calls, base, other, 1, "improved"))
    made = replace(sample_result(), target=target, toolchain=toolchain, regions=tuple(rows), recomputes=())
    return replace(made, expectations=(), model_check=None, planning=None, complete=True)


class Tuner:
    """In the place of a search: writes a result of the call, and counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.change: Callable[[Result], Result] = lambda result: result

    def __call__(self, call: Call, captured: Any, settings: Any, shown: Any, **rest: Any) -> tuning.Tuned:
        self.calls.append(captured.workload.preset)
        result, path = self.change(result_of(call)), settings.folder / "RESULT.json"
        write_result(result, path)
        return tuning.Tuned(result, path)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    made = Tuner()
    monkeypatch.setattr(autotuning, "optimized", made)
    return made


def step(x: Tensor, scale: float = 2.0) -> Tensor:
    return (x @ x.transpose()).relu().sum(axis=1) * scale


def expected(x: Tensor) -> Any:
    values = x.numpy()
    return np.maximum(values @ values.T, 0).sum(axis=1) * 2


def names_of(run: Callable[[], object]) -> set[str]:
    with recording() as recorder:
        run()
    return set(recorder.names.values())


@pytest.mark.slow
def test_it_is_tuned_once_for_each_shape_and_runs_what_was_found(tuner: Tuner, tmp_path: Path) -> None:
    """Whatever numbers it is called with, and under a `TinyJit` that captures it."""
    tuned = kcg.autotuned(cache=tmp_path, budget="20s", quiet=True)(step)
    assert tuned.__name__ == "step"
    for x in (X, Y, X, Y):
        assert np.allclose(tuned(x, 2.0).numpy(), expected(x), rtol=1e-4)
    assert tuner.calls == ["32×64 float", "16×64 float"]
    tuned(X, 3.0)
    assert len(tuner.calls) == 2 and len(tuned.results) == 2
    chosen = {kernel.name for result in tuned.results for kernel in result.kernels}
    assert names_of(lambda: tuned(X * 1.5, 2.0)) & chosen, "what it is given is computed apart"
    jitted = TinyJit(tuned)
    assert names_of(lambda: [jitted(X, 2.0) for _ in range(3)]) <= chosen
    first, *_ = tuning._installed
    first.remove()  # before the other one
    assert names_of(lambda: step(Y).realize()) <= chosen and not names_of(lambda: step(X).realize()) & chosen


def test_what_is_kept_is_used_without_tuning(tuner: Tuner, tmp_path: Path) -> None:
    first, second = (kcg.autotuned(cache=tmp_path, quiet=True)(step) for _ in range(2))
    first(X)
    second(X)
    assert len(tuner.calls) == 1
    assert [one.path for one in first.results] == [one.path for one in second.results]


@pytest.mark.parametrize(
    ("what", "times"),
    [("damaged", 2), ("another budget that was too short", 2), ("too short a budget", 1), ("killed in this budget", 2)],
)
def test_what_cannot_be_used_is_tuned_anew(tuner: Tuner, tmp_path: Path, what: str, times: int) -> None:
    """What this budget came to is used, unless the run was killed in it: what it had by then is no result of it."""
    if what != "damaged":
        tuner.change = lambda result: replace(result, complete=False, budget="1 s" if "another" in what else "60 s")
    first = kcg.autotuned(cache=tmp_path, quiet=True)(step)
    first(X)
    (kept,) = first.results
    if what == "damaged":
        kept.path.write_text(kept.path.read_text()[:-100])
    if "killed" in what:
        live_file(kept.path.parent)
    kcg.autotuned(cache=tmp_path, quiet=True)(step)(X)
    assert len(tuner.calls) == times


def test_a_key_is_of_kernels_target_and_tools() -> None:
    target, toolchain = facts_of(tuning.device_here())
    workload = capture_call(Call(step, (X,)), device="CPU").workload
    key = key_of(workload, target, toolchain)
    assert key == key_of(replace(workload, name="another", preset="name"), target, toolchain)
    others = {
        key_of(capture_call(Call(step, (Y,)), device="CPU").workload, target, toolchain),
        key_of(workload, replace(target, cores=99), toolchain),
        key_of(workload, target, replace(toolchain, driver="of next year")),
        key_of(workload, target, replace(toolchain, tinygrad="0.15.0")),
    }
    assert len(others | {key}) == 5


def test_a_result_that_failed_its_check_is_kept_and_not_used(
    tuner: Tuner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuner.change = lambda result: replace(result, model_check=ModelCheck(False, "it differs"))
    tuned = kcg.autotuned(cache=tmp_path, quiet=True)(step)
    assert np.allclose(tuned(X).numpy(), expected(X), rtol=1e-4)
    assert "step runs as tinygrad schedules it: the result failed its last check" in capsys.readouterr().err
    kcg.autotuned(cache=tmp_path, quiet=True)(step)(X)
    assert len(tuner.calls) == 1 and not is_hooked()


def test_who_realises_something_is_called_once(tuner: Tuner, tmp_path: Path) -> None:
    state, calls = Tensor.zeros(32).contiguous().realize(), list[int]()

    @kcg.autotuned(cache=tmp_path, quiet=True)
    def update(x: Tensor) -> Tensor:
        calls.append(1)
        return state.assign(state + x.sum(axis=1)).realize()

    tuner.change = lambda result: replace(result, regions=())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            autotuning, "optimized", lambda call, captured, settings, shown, **rest: tuner_without(settings)
        )
        assert np.allclose(update(X).numpy(), VALUES.sum(axis=1), rtol=1e-4)
    assert len(calls) == 1
    assert np.allclose(update(X).numpy(), 2 * VALUES.sum(axis=1), rtol=1e-4)


def tuner_without(settings: Any) -> tuning.Tuned:
    """A result in which nothing was found."""
    return tuning.Tuned(replace(sample_result(), regions=(), expectations=()), settings.folder / "RESULT.json")


def test_a_method_is_tuned_too(tuner: Tuner, tmp_path: Path) -> None:
    class Model:
        @kcg.autotuned(cache=tmp_path, quiet=True)
        def __call__(self, x: Tensor) -> Tensor:
            return step(x)

    model = Model()
    assert np.allclose(model(X).numpy(), expected(X), rtol=1e-4)
    assert np.allclose(model(X).numpy(), expected(X), rtol=1e-4)
    assert tuner.calls == ["32×64 float"]


def test_inside_of_another_result_it_is_left_alone(tuner: Tuner, tmp_path: Path) -> None:
    tuned = kcg.autotuned(cache=tmp_path, quiet=True)(step)
    with kcg.tuned(tuning.Tuned(result_of(Call(step, (Y,))), tmp_path / "RESULT.json")):
        assert np.allclose(tuned(X).numpy(), expected(X), rtol=1e-4)
    assert not tuner.calls
    tuned(X)
    assert len(tuner.calls) == 1


def test_bad_input_is_refused_when_it_decorates_or_at_the_first_call(tuner: Tuner, tmp_path: Path) -> None:
    for wrong, said in (({"budget": "0s"}, "budget '0s' is not"), ({"search": "mtcs"}, "did you mean mcts")):
        with pytest.raises(UsageError, match=said):
            kcg.autotuned(cache=tmp_path, **wrong)(step)
    with pytest.raises(UsageError, match="int is no function"):
        kcg.autotuned(5)  # type: ignore[call-overload]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to .*file.*choose another"):
        kcg.autotuned(cache=tmp_path / "file", quiet=True)(step)(X)


LIBRARY = """
import kcg
from tinygrad import Tensor

@kcg.autotuned(cache="kept", budget="8s")
def step(x):
    return (x @ x.transpose()).relu().sum(axis=1)
"""
CALL = "import library; from tinygrad import Tensor; print('sum', step(Tensor.ones(32, 64)).sum().item())".replace(
    "step(", "library.step("
)
SCRIPT = f"open('runs', 'a').write('run\\n')\n{CALL}\n"  # without `if __name__ == "__main__":`


@pytest.mark.slow
def test_of_two_processes_one_tunes_and_the_next_one_searches_nothing(tmp_path: Path) -> None:
    """A script that guards nothing, `python -c`, and then an interactive interpreter at a pipe: nowhere is the user's
    main module imported by a child, and standard output has what the program prints alone."""
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "script.py").write_text(SCRIPT)
    begun = [
        subprocess.Popen(
            [sys.executable, *arguments], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for arguments in (["script.py"], ["-c", CALL])
    ]
    ended = [process.communicate(timeout=PATIENCE_S) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], ended
    assert [out for out, _ in ended] == ["sum 65536.0\n"] * 2
    assert sum("as tinygrad schedules them" in err for _, err in ended) == 1
    assert (tmp_path / "runs").read_text() == "run\n"
    (folder,) = (path for path in (tmp_path / "kept").iterdir() if path.is_dir())
    kept = (folder / "RESULT.json").read_bytes()

    later = python("-i", "-q", cwd=tmp_path, stdin=CALL.replace("; ", "\n") + "\n")
    assert later.stdout == "sum 65536.0\n", later.stderr
    assert "as tinygrad schedules them" not in later.stderr and "Traceback" not in later.stderr
    assert (folder / "RESULT.json").read_bytes() == kept
