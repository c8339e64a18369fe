"""Which predictor guides: the shipped one of the target, the analytic one, or that of a file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import DataError, UsageError
from kcg.predictor.calibrated import Calibrated, calibration_of
from kcg.predictor.header import read_tensors
from kcg.predictor.interface import Beside, Judge
from kcg.types import Prediction, Schedule, ScheduleKind, Target

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

AUTO, ROOFLINE = "auto", "roofline"
SHIPPED = Path(__file__).parent / "checkpoints"


def shipped_path(target: Target) -> Path | None:
    """The checkpoint inside the package that was trained on this target, or else on one of its device and renderer.

    The renderer counts: what is fast in clang's code says little about that of tinygrad's own assembler.
    """
    alike = [path for path in sorted(SHIPPED.glob("*.safetensors")) if _on_kind(path, target)]
    return next((path for path in alike if is_trained_on(path, target)), alike[0] if alike else None)


def _on_kind(path: Path, target: Target) -> bool:
    return _on(path, target.device, target.renderer)


def _on(path: Path, device: str, renderer: str) -> bool:
    return any(t["device"] == device and renderer in ("", t["renderer"]) for t in _trained_on(path))


def is_trained_on(path: Path, target: Target) -> bool:
    """Whether a checkpoint of the package was trained on this very target."""
    return any(t["fingerprint"] == target.fingerprint for t in _trained_on(path))


@functools.cache
def _trained_on(path: Path) -> tuple[dict[str, Any], ...]:
    """The targets of a checkpoint, off its header alone."""
    try:
        return tuple(read_tensors(path, "checkpoint", header_only=True)[0]["about"]["targets"])
    except (DataError, KeyError, TypeError) as error:
        raise DataError(f"{path}, which comes with kcg, cannot be read ({error}): install kcg again") from error


def check_choice(choice: str) -> str:
    """`auto`, `roofline`, or the path of a checkpoint. Raises UsageError where no file is there, DataError where it is
    no checkpoint by its header."""
    if choice in (AUTO, ROOFLINE):
        return choice
    if not Path(choice).is_file():
        raise UsageError(f"--predictor {choice}: write auto, roofline, or the path of a checkpoint (.safetensors)")
    from kcg.predictor.header import check_file

    check_file(Path(choice))
    return choice


def preload(choice: str, device: str, renderer: str) -> None:
    """Import what `choose_predictor` will, as far as that can be told before the target is known; an empty `renderer`
    is not known either."""
    shipped = any(_on(path, device, renderer) for path in SHIPPED.glob("*.safetensors"))
    if choice != ROOFLINE and (choice != AUTO or shipped):
        import kcg.predictor.checkpoint
        import kcg.predictor.learned  # noqa: F401


def choose_predictor(choice: str, target: Target, *, calibrated: bool = False) -> Predictor:
    """`auto` is what comes with kcg for the target's device and renderer, and the analytic one where nothing does;
    `calibrated` as `kcg calibrate` fitted it to this target, if it did. A checkpoint of what is seen as plans judges
    these, beside what `auto` is.

    Raises DataError where a checkpoint cannot be used.
    """
    found = _chosen(choice, target, calibrated=calibrated)
    return _fitted(found, choice, target) if calibrated else found


def _chosen(choice: str, target: Target, *, calibrated: bool) -> Predictor:
    """The same without the lines of `kcg calibrate`; where it is `calibrated` the target is one that was seen."""
    if (path := _path_of(choice, target)) is None:
        from kcg.predictor.roofline import Roofline

        return Roofline()
    from kcg.predictor.checkpoint import read
    from kcg.predictor.learned import LearnedPredictor

    kept = read(path)
    if kept.nets[0].settings.kind != ScheduleKind.OPTS:
        from kcg.predictor.plans import PlanPredictor

        return Beside(choose_predictor(AUTO, target, calibrated=calibrated), PlanPredictor(kept))
    known = calibration_of(target, kept.about.name) if calibrated and choice == AUTO else None
    return LearnedPredictor(kept, also_known=target.fingerprint if known is not None else "")


def _fitted(predictor: Predictor, choice: str, target: Target) -> Predictor:
    found = calibration_of(target, predictor.name) if choice == AUTO else None
    return predictor if found is None else Calibrated(predictor, found)


def _is_of_plans(path: Path) -> bool:
    """Whether a checkpoint is of what is seen as plans, off its header alone."""
    nets = read_tensors(path, "checkpoint", header_only=True)[0].get("nets") or [{}]
    return str(nets[0].get("kind", ScheduleKind.OPTS)) != ScheduleKind.OPTS


def _path_of(choice: str, target: Target) -> Path | None:
    """The checkpoint that is chosen; None where it is the analytic predictor."""
    return None if choice == ROOFLINE else shipped_path(target) if choice == AUTO else Path(choice)


@functools.lru_cache(4)
def kept_predictor(choice: str, target: Target, *, calibrated: bool = False) -> Predictor:
    """The same, read once in a process: for who asks again and again, of a file that does not change meanwhile."""
    return choose_predictor(choice, target, calibrated=calibrated)


def deferred(choice: str, target: Target, *, calibrated: bool = False) -> Predictor:
    """As `kept_predictor`, but a checkpoint is read when it is first asked: that takes tenths of a second, and who has
    others search may never ask. Raises DataError where it cannot be used, then at last."""
    path = _path_of(choice, target)
    if path is None or _is_of_plans(path):
        return kept_predictor(choice, target, calibrated=calibrated)
    if not calibrated:
        return _Unread(path, functools.partial(kept_predictor, choice, target))
    return _fitted(_Unread(path, functools.partial(_read_once, choice, target)), choice, target)


@functools.lru_cache(4)
def _read_once(choice: str, target: Target) -> Predictor:
    """What `kcg calibrate` fitted, without its lines."""
    return _chosen(choice, target, calibrated=True)


class _Unread:
    """What a checkpoint predicts; only its name is known at once."""

    def __init__(self, path: Path, read: Callable[[], Predictor]) -> None:
        self.name: str = read_tensors(path, "checkpoint", header_only=True)[0]["about"]["name"]
        self._read = read

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        return self._read().predict(space, schedules)

    def of(self, space: Space) -> Judge:
        """What it says of one kernel. It corrects itself, as every checkpoint does."""

        @functools.cache
        def judge() -> Judge:
            return self._read().of(space)

        def correct(schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
            known = judge().correct
            assert known is not None
            return known(schedules, measured)

        return Judge(lambda schedules: judge().predict(schedules), correct)
