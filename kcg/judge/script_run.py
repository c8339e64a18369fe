"""One run of a user's script in a process of its own, and what it leaves: the child of `kcg.judge.whole_script`.

`python -m kcg.judge.script_run < job.json`. The script runs unchanged, as `python script.py` would run it, with the
seeds of Python, NumPy and tinygrad fixed, standard input empty, and what it prints thrown away. tinygrad is imported by
the script, after whatever the script sets in its environment. What it leaves is read when it is over and its threads
have ended, before its exit handlers run, and before tinygrad closes its devices. Replays of its `TinyJit`s are timed
one by one (`kcg.compat.replays`), and its steps are compared with those that tinygrad's own schedules make of the same
values (`kcg.compat.lockstep`): neither changes what it computes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.compat.lockstep import Lockstep
from kcg.compat.observing import Observer, Piece
from kcg.compat.replays import ReplayClock, Replayed
from kcg.errors import CodecError, KcgError
from kcg.files import write_whole
from kcg.measure import isolated
from kcg.types import ModelCheck
from kcg.workloads.left import load_pieces, save_pieces
from kcg.workloads.script import Form, Program, run_as_main

if TYPE_CHECKING:
    from kcg.compat.lockstep import Step
    from kcg.handover.tuned import InPlace
    from kcg.judge.lockstep import Steps

MAX_BYTES = 1 << 28
"""Of what a script leaves, so much is compared, the small tensors first."""

ANSWER = "answer.json"


@dataclass(frozen=True)
class Ran:
    """How a run of a script went, and what it left."""

    ended: str  # "" for a normal end, else what ended it, the same wherever it is the same
    words: str  # of that, for the reader
    pieces: tuple[Piece, ...]
    left_out: int  # tensors that were too large
    kernels: int  # of those with another schedule that occurred in it
    replaced: tuple[tuple[str, int], ...] = ()  # as in `ModelCheck`
    left: tuple[tuple[str, str, int], ...] = ()
    refused: str = ""  # why the chosen schedules could not be used at all
    steps: tuple[Replayed, ...] = ()
    untimed: str = ""  # why its replays were not timed
    clock: str = ""  # by which they were, in words
    given: int = 0  # kernels that ran as programs that were there
    lockstep: ModelCheck | None = None  # what its steps came to; None where they were not compared
    seconds: float = 0.0


def read_answer(folder: Path, *, seconds: float) -> Ran | None:
    """What the child wrote into `folder`; None where it did not come to that."""
    if not (folder / ANSWER).exists():
        return None
    answer = json.loads((folder / ANSWER).read_text())
    pieces = load_pieces(folder, answer["pieces"])
    sets = {name: tuple(map(tuple, answer[name])) for name in ("replaced", "left")}
    steps = tuple(Replayed(**{**step, "seconds": tuple(step["seconds"])}) for step in answer["steps"])
    lockstep = None if answer["lockstep"] is None else ModelCheck(**answer["lockstep"])
    return Ran(**{**answer, **sets, "pieces": pieces, "steps": steps, "lockstep": lockstep, "seconds": seconds})


# ---- in the child ----


class _Run:
    def __init__(self, job: dict[str, Any], *, dev: str) -> None:
        self.job, self.dev = job, dev
        self.folder = Path(job["folder"])
        self.program = Program(Form(job["form"]), job["what"], tuple(job["arguments"]))
        self.ended, self.words, self.refused = "", "", ""
        self._error: BaseException | None = None  # holds what was alive in the frames that it went through
        self._pid, self._done = os.getpid(), False
        self._changed, self._observed = frozenset(job["changed"]), frozenset(job["observed"])
        self._place: InPlace | None = None
        self._given: set[str] = set()
        self._known: dict[bytes, str] = {}
        self._stays = contextlib.ExitStack()  # until the process ends
        self._observer = Observer(self._asked, self._prepare, seed=job["seed"])
        self._lockstep = Lockstep(
            self._own_schedules, self._changed, self._judge, otherwise=self._summed_otherwise, most_bytes=MAX_BYTES
        )
        self._steps: Steps | None = None
        self._replaced: frozenset[str] = frozenset()  # kernels, alone or in regions
        self._clock = ReplayClock(self._observer.later)

    def run(self) -> None:
        """Run the script to its end, whatever that is. `finish` is called once its threads have ended too."""
        from kcg.compat.capture import opening

        self._watch_exit()
        self._stays.enter_context(opening(self.dev))
        self._stays.enter_context(self._observer.watch())
        self._stays.enter_context(self._clock.watch())
        if self.job["result"] and self.job["lockstep"]:
            self._stays.enter_context(self._lockstep.watch())
        try:
            run_as_main(self.program)
        except SystemExit as stop:
            self._error = stop
            self._exited(stop.code)
        except BaseException as error:  # whatever the script raises
            self._error = error
            self._raised(error)
        atexit.register(self.finish)  # the last that is registered is the first that runs

    def finish(self) -> None:
        """Write the answer, once, and only in the process of the script itself: not in one that it forked."""
        if self._done or os.getpid() != self._pid:
            return
        self._done = True
        pieces: list[Piece] = []
        left_out = 0
        try:
            if self.job["compared"]:
                pieces, left_out = self._observer.pieces(MAX_BYTES)
        except Exception as error:  # of the device: what ran before on it may have failed
            self._raised(error)
        answer = {
            "ended": self.ended,
            "words": self.words,
            "refused": self.refused,
            "left_out": left_out,
            "pieces": save_pieces(self.folder, pieces),
            "kernels": len(self._changed & self._place.served) if self._place is not None else 0,
            "replaced": self._place.sets_replaced if self._place is not None else (),
            "left": self._place.sets_left if self._place is not None else (),
            "steps": [asdict(step) for step in self._clock.steps()],
            "untimed": self._clock.why_not,
            "clock": self._clock.clock,
            "given": len(self._given),
            "lockstep": self._lockstep_answer(),
        }
        write_whole(self.folder / ANSWER, json.dumps(answer))

    def _lockstep_answer(self) -> dict[str, Any] | None:
        if self._steps is None or self._place is None:
            return None
        check = self._steps.check(self._changed & self._place.served, why_not=self._lockstep.why_not)
        return {name: getattr(check, name) for name in ("passed", "reason", "error", "tolerance", "compared")}

    def _own_schedules(self) -> contextlib.AbstractContextManager[None]:
        assert self._place is not None
        return self._place.own_schedules()

    def _judge(self, step: Step) -> None:
        assert self._steps is not None
        self._steps.judge(step)

    def _summed_otherwise(self, ast: Any) -> Any:
        from kcg.kernel.sums import summed_otherwise

        return summed_otherwise(ast) if self._asked(ast) in self._replaced else None

    def _watch_exit(self) -> None:
        """`os._exit` ends a process without exit handlers."""
        leave = os._exit

        def leave_after_writing(code: int) -> None:
            if os.getpid() == self._pid and not self._done:
                self._exited(code)
                self.finish()
            leave(code)

        os._exit = leave_after_writing  # type: ignore[assignment]

    def _exited(self, code: object) -> None:
        if code not in (None, 0):
            self.ended = "exit code " + (str(code) if isinstance(code, int) else "1")
            self.words = f"it ended with {self.ended if isinstance(code, int) else repr(str(code)[:300])}"

    def _raised(self, error: BaseException) -> None:
        """What is the same in two runs is where it was raised, not its message, which may hold numbers."""
        frames = traceback.extract_tb(error.__traceback__)
        path = getattr(sys.modules["__main__"], "__file__", None) or "<string>"  # code given with -c has no file
        lines = [frame.lineno for frame in frames if frame.filename in (path, str(Path(path).absolute()))]
        place = f" (line {lines[-1]})" if lines else ""
        text = next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), "")
        self.ended = type(error).__name__ + place
        self.words = "it raised " + type(error).__name__ + (f": {text}" if text else "") + place

    # ---- its kernels ----

    def _asked(self, ast: Any) -> str:
        """The id of a kernel that is looked at; empty of others."""
        from kcg.kernel.codec import kernel_of

        if ast.key not in self._known:
            kernel_id = ""
            with contextlib.suppress(CodecError):  # the script's own
                kernel_id = kernel_of(ast).id
            self._known[ast.key] = kernel_id if kernel_id in self._observed else ""
        return self._known[ast.key]

    def _prepare(self) -> None:
        if self.job["programs"]:
            self._given = self._stays.enter_context(_given(Path(self.job["programs"])))
        if not self.job["result"]:
            return
        from kcg.handover.tuned import scheduling
        from kcg.judge.lockstep import Steps
        from kcg.judge.whole import rounding_of
        from kcg.report.result import read_result

        try:
            result, files = read_result(Path(self.job["result"])), [Path(file) for file in self.job["kernels"]]
            self._place = self._stays.enter_context(scheduling(result, changed_only=True, kernels=files))
        except KcgError as error:  # another device than the result is for, for one
            self.refused = str(error)
            raise
        if self.job["lockstep"]:
            regions = [row.region for row in result.regions if row.region.id in self._changed]
            self._replaced = frozenset(kernel.id for region in regions for kernel in region.kernels)
            self._steps = Steps(rounding_of(result), seed=self.job["seed"], tries=self.job["tries"])
            self._lockstep.watch_planning()


def _given(path: Path) -> contextlib.AbstractContextManager[set[str]]:
    """Inside the block, kernels run the programs of a file, see `compiled_before`."""
    from kcg.handover.in_place import compiled_before
    from kcg.kernel.program import compiled_from
    from kcg.nouns import noun_from_json
    from kcg.types import Target

    values = json.loads(path.read_text())
    programs = {kernel: compiled_from(one) for kernel, one in values["programs"].items()}
    return compiled_before(programs, noun_from_json(Target, values["target"]))


def main() -> None:
    """Read a job, one line of standard input; run the script; write the answer into the job's folder."""
    job = isolated.listening(aside=True)()
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    _Run(job, dev=os.environ["DEV"]).run()


if __name__ == "__main__":
    # run as a module of the package, so that what the script imports does not see this one as __main__
    from kcg.judge.script_run import main as main_of_the_package

    main_of_the_package()
