"""Weights & Biases where it is wanted; and the metrics of a training run, which are lines of JSON in its folder too.

Weights & Biases is never waited for long: its start and its last upload have limits of seconds, and where there is no
key or no network the run is kept offline, in the same folder, for `wandb sync`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from kcg.cli import pip_install
from kcg.errors import DataError, UnknownName, UsageError
from kcg.types import canonical_json, content_id

log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
ONLINE, OFFLINE, DISABLED = "online", "offline", "disabled"
MODES = (ONLINE, OFFLINE, DISABLED)
PROJECT = "kcg-predictor"
START_S = 15.0  # without a network the service would try for 90
UPLOAD_S = 60.0  # what is not sent by then stays on the disk


@dataclass(frozen=True)
class Tracking:
    """Where metrics go beside the file. `explicit` tells a mode that the user named from the default."""

    mode: str = DISABLED
    group: str = ""  # the runs of one training stand together under it
    config: dict[str, Any] = field(default_factory=dict)
    project: str = PROJECT  # unless WANDB_PROJECT names one


def wanted_mode(mode: str | None) -> str:
    """The mode that a command line asks for; None is the default, offline where Weights & Biases is installed.

    Raises UnknownName for another word, and UsageError where a mode was named and it is not installed.
    """
    if mode is not None and mode not in MODES:
        raise UnknownName("mode of --wandb", mode, list(MODES))
    if mode == DISABLED or find_spec("wandb") is not None:
        return mode or OFFLINE
    if mode is not None:
        raise UsageError(f"--wandb {mode} needs Weights & Biases, which is not installed: {pip_install('train')}")
    how = pip_install("train")
    log.warning("Weights & Biases is not installed (%s): the metrics go to %s only", how, METRICS)
    return DISABLED


class Tracker:
    """The metrics of one run in its folder. A line whose `key` is already there is dropped, so that a run that was cut
    after it wrote and before it kept its state tells nothing twice; without a key, a line that is there as it is."""

    def __init__(self, folder: Path, tracking: Tracking | None = None, *, name: str = "", key: str = "epoch") -> None:
        """Raises DataError where the folder's file holds something else than metrics."""
        self.folder, self.name, self.key = folder, name or folder.name, key
        self.tracking = tracking or Tracking()
        self.path = folder / METRICS
        folder.mkdir(parents=True, exist_ok=True)
        self._written = {self._identity(line) for line in _mended(self.path)}
        self._run = WandbRun(
            folder, self.tracking, name=self.name, warn=log.warning, instead=f"the metrics go to {METRICS} only"
        )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.finish(failed=kind is not None)

    @property
    def mode(self) -> str:
        """Where Weights & Biases keeps the run now."""
        return self._run.mode

    def log(self, values: dict[str, Any]) -> None:
        """Write one line, whole or not at all, and tell Weights & Biases. What is not a finite number is null."""
        values = {name: _plain(value) for name, value in values.items()}
        identity = self._identity(values)
        if identity in self._written:
            return
        self.begin()
        with self.path.open("ab", buffering=0) as file:
            file.write(canonical_json(values).encode() + b"\n")
        self._written.add(identity)
        self._run.guarded(lambda run: run.log({name: value for name, value in values.items() if value is not None}))

    def _identity(self, values: dict[str, Any]) -> str:
        return canonical_json(values.get(self.key) if self.key else values)

    def begin(self) -> None:
        """Start the run at Weights & Biases, unless it is. The first `log` does, so that a run that has nothing more to
        say leaves none."""
        self._run.begin()

    def artifact(self, path: Path, name: str) -> None:
        """Keep a file with the run, as a model."""
        self._run.artifact(path, name, kind="model")

    def finish(self, *, failed: bool = False) -> None:
        """Close the run. What could not be uploaded in a minute stays in the folder."""
        self._run.finish(failed=failed)


class WandbRun:
    """One run at Weights & Biases, whose start and end have limits of seconds. Where something fails, `warn` gets one
    line, which ends with what is had `instead`, and the run is given up: whoever reports to it goes on."""

    def __init__(
        self, folder: Path, tracking: Tracking, *, name: str, warn: Callable[[str], object], instead: str
    ) -> None:
        self.folder, self.tracking, self.name = folder, tracking, name
        self.mode = tracking.mode
        self._warn, self._instead = warn, instead
        self._run: Any = None

    def begin(self) -> None:
        """Start it, unless it is."""
        if self._run is None and self.mode != DISABLED:
            self._run = self._begun(self.mode)

    def artifact(self, path: Path, name: str, *, kind: str) -> None:
        """Keep a file with the run."""

        def send(run: Any) -> None:
            import wandb

            artifact = wandb.Artifact(name, type=kind)
            artifact.add_file(str(path))
            run.log_artifact(artifact)

        self.guarded(send)

    def finish(self, *, failed: bool = False) -> None:
        """Close it. What could not be uploaded in a minute stays in the folder."""
        self.guarded(lambda run: run.finish(exit_code=int(failed)))
        self._run = None

    def guarded(self, act: Callable[[Any], object]) -> None:
        """Do something with the run, if there is one."""
        if self._run is None:
            return
        try:
            act(self._run)
        except Exception as error:  # its service died, or its disk is full: kcg has everything, and goes on
            self._given_up(error)

    def _given_up(self, error: Exception) -> None:
        self._warn(f"{self.name}: Weights & Biases failed ({_line(error)}): {self._instead}")
        self._run, self.mode = None, DISABLED

    def _begun(self, mode: str) -> Any:
        # it reads these before any settings: no notes on the terminal, no reports of crashes to its makers
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if mode == ONLINE:
            try:
                if not wandb.login(prompt=False, verify=False):
                    return self._fallen_back("there is no key for Weights & Biases (`wandb login` keeps one)")
                return self._started(wandb, mode)
            except wandb.errors.Error as error:
                return self._fallen_back(f"Weights & Biases cannot be reached ({_line(error)})")
        try:
            return self._started(wandb, mode)
        except Exception as error:  # errors of its service have no common base
            self._given_up(error)

    def _fallen_back(self, reason: str) -> Any:
        self._warn(f"{reason}: {self.name} is kept offline, `wandb sync` sends it later")
        self.mode = OFFLINE
        return self._begun(OFFLINE)

    def _started(self, wandb: Any, mode: str) -> Any:
        # nothing of the machine is told, and nothing of its terminal: metrics, settings and the model are
        settings = wandb.Settings(
            init_timeout=START_S,
            finish_timeout=UPLOAD_S,
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="",
        )
        # the same folder is the same run, also when it goes on; a start that failed keeps its id in use
        identity = content_id([str(self.folder.resolve()), self.tracking.config, mode])[:16]
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or self.tracking.project,
            name=self.name,
            group=self.tracking.group or None,
            dir=str(self.folder),
            mode=mode,
            config=self.tracking.config,
            settings=settings,
            reinit="create_new",
            id=identity,
            resume="allow" if mode == ONLINE else None,
        )
        if mode == ONLINE:
            self._warn(f"{self.name}: {run.url}")
        return run


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _plain(value: Any) -> Any:
    """A number as JSON has it; NaN and infinities are null."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _mended(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics. A last line that a crash cut off is taken away. Raises DataError."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole, _, torn = text.rpartition(b"\n")
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise DataError(f"{path} is no file of metrics ({error}): remove it, or name another folder") from error
    if not all(isinstance(line, dict) for line in lines):
        raise DataError(f"{path} is no file of metrics: remove it, or name another folder")
    if torn:
        os.truncate(path, len(text) - len(torn))
    return lines
