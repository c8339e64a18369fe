"""Search workers: searches in processes of their own, so that sixteen cores draft for sixteen kernels at once.

Drafting a batch takes seconds of one core on a large kernel, measuring it tenths of a second: in one process a GPU
would mostly wait. A `Thinker` is a child that runs strategies on one core; each asks over a pipe when it may measure
(`Problem.ask`) and what a batch showed (`Problem.measure`), and what answers stands in the parent. To whoever runs the
searches, `SearchWorkers.strategy` is a strategy like any other. Where a child dies its searches go on in the parent.

What all of them need is loaded once on Linux: the first child reads the networks, and the others are forked from it.
None opens a device, and one that dies takes only its own searches with it, but for the first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any, Final

from kcg.kernel.kinds import SeeksStart, own_kind, space_of
from kcg.measure import lifetime
from kcg.predictor.interface import judge_of
from kcg.search.problem import Expected, Ledger, Observation, Problem, Strategy
from kcg.search.strategies import strategy
from kcg.search.uniform import Chance, Draws
from kcg.types import Region, Schedule, Target
from kcg.unexpected import place_of

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

log = logging.getLogger(__name__)

WARM, SEARCH, ANSWER = "warm", "search", "answer"  # to a child
READY, ASK, MEASURE, END, ERROR = "ready", "ask", "measure", "end", "error"  # from a child
DIED, OVER = "died", "over"
POLL_S: Final = 0.2
END_S: Final = 10.0  # how long the end of a child is waited for that was killed
ONE_CORE: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For a child, which drafts on one core beside others: NumPy's BLAS reads it when it is loaded, and would start a
thread for every core, which wait for those of the other children: twice the CPU time of four children on two cores
(`evaluation/search/bench_workers.py`)."""


class FromItsStart:
    """The space of one kind as a search sees it that has nothing of another kind to compare with: it begins with the
    start. What it is faster than at last is for others to say."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)

    def baseline(self) -> Schedule:
        start: Schedule = self._space.start()
        return start


@dataclass(frozen=True)
class SearchJob:
    """What a child needs to know of a search."""

    region: Region
    kind: str  # of the schedules that are searched
    target: Target
    predictor: str  # as `choose_predictor` takes it
    strategy: str
    strategies: Callable[[str], Strategy]  # by name: a function of a module, which the child imports
    seed: str
    batch_size: int
    drafting: int | None
    known: tuple[Observation, ...]
    deadline: float | None  # on the clock of the machine (`time.monotonic`)
    start: Schedule | None = None  # of its space, where that takes a while to find
    allow_tf32: bool = False  # see `kcg.kernel.kinds.Kind.space`
    draws: bool = False  # whether some of its measurements are drawn uniformly


class SearchWorkers:
    """Some children, each of which searches for several kernels. Use as a context manager."""

    def __init__(
        self,
        count: int,
        predictor: str,
        target: Target | None,
        initargs: tuple[Any, ...],
        *,
        strategies: Callable[[str], Strategy] = strategy,
        allow_tf32: bool = False,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        """They start at once and load what the predictor needs while there is something else to do; its networks are
        read once the target is known, which may be told later (`know`). `initargs` are those of
        `kcg.measure.lifetime.start`. `strategies` looks a name up, in a child too: a function of a module. `ready` is
        called in another thread when the networks were read."""
        self.predictor, self.target, self.count, self.strategies = predictor, target, count, strategies
        self.allow_tf32 = allow_tf32
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        together = [pipes] if sys.platform == "linux" else [[pipe] for pipe in pipes]
        self._children: list[_Worker] = []
        self._first: list[_Worker] = []  # of those that are one process until the predictor was read
        for some in together:
            theirs = [other for _, other in some]
            process = context.Process(target=_serve, args=[theirs, initargs, predictor], name="kcg-search", daemon=True)
            with _environment(ONE_CORE), lifetime.without_main():
                process.start()
            for pipe in theirs:
                pipe.close()
            workers = [_Worker(process, ours, ready) for ours, _ in some]
            self._children += workers
            self._first.append(workers[0])
        if target is not None:
            self.know(target)

    def know(self, target: Target) -> None:
        """Have them read the predictor of this target, if it was not known when they started."""
        self.target = target
        for child in self._first:
            child.tell(WARM, (self.predictor, target))

    def __enter__(self) -> SearchWorkers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill them; searches that still wait for one end."""
        for child in self._children:
            child.close()

    def strategy(self, name: str, region: Region, *, place: int, seed: str, kind: str = "") -> Strategy:
        """The strategy `name` of one kernel, run in a child; `place` says in which. It searches the schedules of the
        kind that the baseline is of, or those of another `kind`."""

        def remote(problem: Problem) -> Iterator[Observation]:
            child = self._children[place % len(self._children)]
            assert self.target is not None
            start = problem.space.start() if isinstance(problem.space, FromItsStart) else None
            job = SearchJob(
                region,
                kind or own_kind(region),
                self.target,
                self.predictor,
                name,
                self.strategies,
                seed,
                problem.batch_size,
                problem.drafting,
                tuple(problem.known.values()),
                problem.ledger.deadline,
                start,
                self.allow_tf32,
                problem.draws is not None,
            )
            try:
                yield from child.search(job, problem)
            except EOFError:
                log.warning("a process that searched died: its kernel is searched here")
                yield from self.strategies(name)(problem)

        return remote


class _Worker:
    """The parent's end of one child."""

    def __init__(self, process: SpawnProcess, pipe: Connection, ready: Callable[[], object]) -> None:
        """`process` is the child, or the one that it is forked from."""
        self._process, self._pipe, self._ready = process, pipe, ready
        self._sending = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[tuple[str, Any]]] = {}
        self._died = self._closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Kill it; searches that still wait for it end. With it ends what was forked from it."""
        self._closed = True
        guardians = [] if self._process.pid is None else lifetime.guardians_of([self._process.pid])
        self._process.kill()
        self._process.join(END_S)  # one in a call of a driver may not end
        lifetime.wake(guardians)

    def search(self, job: SearchJob, problem: Problem) -> Iterator[Observation]:
        """Every observation of one search. Raises EOFError where the child died, and what the search raised."""
        inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        key = id(inbox)
        self._answers[key] = inbox
        reported = {o.schedule for o in job.known}
        self.tell(SEARCH, key, job)
        while True:
            kind, value = self._next(inbox, problem)
            if kind == OVER:
                return
            if kind == ASK:
                count, gain, evaluations = value
                problem.ledger.evaluations += evaluations
                granted = problem.ask(count, gain) if problem.ask is not None else problem.ledger.remaining(count)
                news = [o for s, o in problem.known.items() if s not in reported]
                reported.update(o.schedule for o in news)
                over = granted < 1 and problem.ledger.exhausted
                self.tell(ANSWER, key, (granted, over, problem.ledger.deadline, news))
            elif kind == MEASURE:
                schedules, expectations, chances = value
                if problem.expected is not None:
                    problem.expected |= expectations
                if problem.chances is not None:
                    problem.chances |= chances
                futures = problem.measure(schedules)
                observations = [future.result() for future in futures]
                problem.known.update((o.schedule, o) for o in observations)
                reported.update(o.schedule for o in observations)
                self.tell(ANSWER, key, (observations, problem.batch_size))
                yield from observations
            elif kind == END:
                problem.ledger.evaluations += value
                return
            elif kind == ERROR:
                raise RuntimeError(f"a search failed in its process: {value}")
            else:
                raise EOFError

    def _next(self, inbox: queue.SimpleQueue[tuple[str, Any]], problem: Problem) -> tuple[str, Any]:
        """The next message of a search. Nobody waits for one that drafts while all is over."""
        while True:
            with contextlib.suppress(queue.Empty):
                return inbox.get(timeout=POLL_S)
            if self._closed or problem.ledger.exhausted:
                return OVER, None
            if self._died:
                return DIED, None

    def tell(self, *message: Any) -> None:
        """Send it a message."""
        with self._sending, contextlib.suppress(OSError):  # one that died is noticed by whoever listens
            self._pipe.send(message)

    def _listen(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    kind, key, value = self._pipe.recv()
                    if kind == READY:
                        self._ready()
                        continue
                    self._answers[key].put((kind, value))
        finally:
            self._died = True


# ---- in the child ----


class _Search:
    """One search in the child."""

    def __init__(self, pipe: Connection, sending: threading.Lock, key: int, job: SearchJob) -> None:
        self.pipe, self.sending, self.key, self.job = pipe, sending, key, job
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reported = 0  # evaluations that the parent knows of
        self.expected: dict[Schedule, Expected] = {}
        self.chances: dict[Schedule, Chance] = {}
        self.ledger = _Granted(deadline=job.deadline)

    def run(self) -> None:
        """Search until the parent grants nothing more."""
        from kcg.predictor.cost import guiding

        try:
            job = self.job
            space = space_of(job.region, job.target, job.kind, allow_tf32=job.allow_tf32)
            if (start := job.start) is not None and isinstance(space, SeeksStart):
                space.begin_at(lambda: start)
            judge = judge_of(guiding(space, _predictor(job.predictor, job.target)), space)
            searched = space if job.kind == own_kind(job.region) else FromItsStart(space)
            self.problem = Problem(
                space=searched,
                predict=judge.predict,
                measure=self.measure,
                ledger=self.ledger,
                rng=random.Random(job.seed),
                batch_size=job.batch_size,
                drafting=job.drafting,
                known={o.schedule: o for o in job.known},
                correct=judge.correct,
                ask=self.ask,
                expected=self.expected,
                chances=self.chances,
                draws=Draws(searched, judge.predict, job.seed) if job.draws else None,
            )
            for _ in job.strategies(job.strategy)(self.problem):
                pass
            self.send(END, self.ledger.evaluations - self.reported)
        except Exception as error:
            log.debug("a search failed", exc_info=True)
            self.send(ERROR, place_of(error))  # not itself: not every error can be sent

    def ask(self, count: int, gain: float) -> int:
        evaluations, self.reported = self.ledger.evaluations - self.reported, self.ledger.evaluations
        self.send(ASK, (count, gain, evaluations))
        granted, self.ledger.over, self.ledger.deadline, news = self.inbox.get()
        self.problem.known.update((o.schedule, o) for o in news)
        return int(granted)

    def measure(self, schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        expected = {one: self.expected.pop(one) for one in schedules if one in self.expected}
        chances = {one: self.chances.pop(one) for one in schedules if one in self.chances}
        self.send(MEASURE, (list(schedules), expected, chances))
        futures = []
        observations, self.problem.batch_size = self.inbox.get()
        for observation in observations:
            future: Future[Observation] = Future()
            future.set_result(observation)
            futures.append(future)
        return futures

    def send(self, kind: str, value: Any) -> None:
        with self.sending:
            self.pipe.send((kind, self.key, value))


@dataclass
class _Granted(Ledger):
    """A search in a child asks the parent for everything; here it only learns that it is over."""

    over: bool = False

    def remaining(self, wanted: int) -> int:
        return 0 if self.over else super().remaining(wanted)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """What is started inside finds these variables so."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipes: Sequence[Connection], initargs: tuple[Any, ...], predictor: str) -> None:
    """Searches that a parent asks for, until it closes the pipe or dies. Of several pipes this process has the first:
    once it has read the predictor it forks another for each of the others."""
    from kcg.predictor.choice import preload

    lifetime.start(*initargs)
    with contextlib.suppress(Exception):  # raised again where it is read
        device, _, renderer = str(initargs[0]).partition(":")
        preload(predictor, device, renderer)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        _, asked = pipes[0].recv()
        _predictor(*asked)
        for pipe in pipes[1:]:
            _fork(pipe, [other for other in pipes if other is not pipe])
        for pipe in pipes[1:]:
            pipe.close()
        pipes[0].send((READY, 0, None))
        _search_for(pipes[0])


def _fork(pipe: Connection, others: Sequence[Connection]) -> None:
    """Fork a process that does what is asked for on a pipe; nobody would see its end if another had that pipe too. It
    is of the group of this one, whose guardian kills both."""
    if os.fork():
        return
    try:
        for other in others:
            with contextlib.suppress(OSError):
                other.close()
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            _search_for(pipe)
    finally:  # on no path into what the process that it was forked from would do at its end
        os._exit(0)


def _search_for(pipe: Connection) -> None:
    """Do the searches that are asked for, each in a thread."""
    sending = threading.Lock()
    searches: dict[int, _Search] = {}
    while True:
        message = pipe.recv()
        if message[0] == SEARCH:
            search = searches[message[1]] = _Search(pipe, sending, *message[1:])
            threading.Thread(target=search.run, daemon=True).start()
        else:
            searches[message[1]].inbox.put(message[2])


def _predictor(choice: str, target: Target) -> Predictor:
    from kcg.predictor.choice import kept_predictor

    return kept_predictor(choice, target, calibrated=True)
