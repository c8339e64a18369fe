"""Strategies are compared on equal terms: each replays by the same rules, and nothing twice."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.search.comparison import (
    ALONE,
    BEAM,
    DRAFT,
    ROLLOUT,
    Bench,
    Contender,
    Replay,
    Settings,
    Turn,
    is_within,
    replay,
    replay_all,
    the_field,
    turns,
)
from evaluation.search.regret import Board, headline
from evaluation.search.replays import append_replays, compare, guides_of, policy_of, read_replays
from evaluation.search.rollouts import Led
from kcg.dataset.reading import Export, read_export
from kcg.errors import DataError, MismatchError, UnknownName, UsageError
from kcg.predictor.network import NetSettings
from kcg.rl.policy import Policy, PolicyAbout, Proposal, save_policy
from kcg.search.replay import FILE, RecordedKernel, ReplayTable, kernels_of
from kcg.training.policy_network import PolicyNet
from kcg.types import Schedule
from tests.evaluation.search.boards import CHECKPOINT, FEW, ROOT, board, recorded
from tests.known_targets import KNOWN_TARGETS
from tests.replay_table import chain_table, synthetic_table
from tests.waiting import PATIENCE_S

H200 = ROOT / "datasets" / "h200"


def even(table: ReplayTable, schedules: Sequence[Schedule]) -> list[Proposal]:
    """A policy that takes every step as often, and hardly stops."""
    counts = [len(table.actions(s)) for s in schedules]
    return [Proposal(0.01 if n else 1.0, (0.99 / max(n, 1),) * n) for n in counts]


# -- playing


def test_failures_are_counted_and_leave_what_needs_no_search() -> None:
    kernel = recorded(chain_table([4e-6, None, 2e-6], baseline=1))
    found = replay("random", Bench(kernel, None).problem("random", seed=0, budget=4), seed=0)
    assert (found.failures, found.measurements, found.end_s) == (1, 2, 2e-6)
    assert kernel.hand_coded_s == 4e-6  # the baseline failed: the unoptimised kernel
    made = board(replace(FEW, beams=(), budget=2, contenders=("random",), default="random"), [kernel])
    assert made.known("random")[0, 0, 0] == 4e-6


def test_what_draws_nothing_plays_once() -> None:
    kernel = recorded(synthetic_table())
    settings = replace(FEW, contenders=("greedy", "random", "mcts/oracle"), beams=())
    made = replay_all(Bench(kernel, None), settings, {})
    seeds = {name: [seed for other, seed, _ in made if other == name] for name in settings.contenders}
    assert seeds == {"greedy": [0], "random": [0, 1, 2], "mcts/oracle": [0, 1, 2]}
    assert turns(kernel, settings, made, has_policy=False) == []
    assert replay_all(Bench(kernel, None), settings, made) == {}


def test_within_the_table_the_default_gets_as_many_measurements_as_beam() -> None:
    kernel, settings = recorded(synthetic_table()), replace(FEW, seeds=1, budget=4, beams=(1, 8))
    made = replay_all(Bench(kernel, None), settings, {})
    widest = made[f"{BEAM}:8", 0, None]
    assert widest.measurements > 4 and is_within(kernel, widest.end_s), "BEAM ends on the near side of the valley"
    longer = made["mcts/oracle", 0, widest.measurements]
    assert longer.end_s == kernel.table.best_s
    count, gain = Board([kernel], [made], settings).with_beams_measurements(8)
    assert (
        count == 1
        and gain is not None
        and gain.weighted == pytest.approx(widest.end_s / longer.end_s)
        and (gain.weighted > 1.03)
    )


def test_policies_join_where_there_is_one() -> None:
    table, lines = synthetic_table(), []
    names = ("mcts", "policy", "random")
    field = replace(FEW, contenders=names, default="mcts", beams=(4,), seeds=1)
    assert field.checked(has_policy=False, log=lines.append).contenders == ("mcts", "random")
    assert lines == ["policy is left out: there is no policy"]
    settings = field.checked(has_policy=True, log=lines.append)
    bench = Bench(recorded(table), None, led=Led(functools.partial(even, table)))
    replays = replay_all(bench, settings, {})
    assert replays[ROLLOUT, 0, 0].measurements == replays[DRAFT, 0, 0].measurements == 0
    assert replays[ROLLOUT, 0, 0].end_s != table.records[table.start()].observation.time_s, "the policy walked on"
    found = headline(Board([bench.kernel], [replays], settings))
    assert {
        "default_vs_random_at_16",
        "default_vs_random_at_16_low",
        "unmeasured_vs_beam4",
        "unmeasured_policy_vs_beam4",
        "unmeasured_policy_s_per_kernel",
        "measurements_vs_beam4",
        "quality_vs_beam4",
    } <= set(found)


def test_the_field_holds_every_strategy_and_every_ablation() -> None:
    names = the_field("mcts")
    assert {
        "random",
        "evolution",
        "annealing",
        "predicted-beam",
        ALONE,
        "mcts/oracle",
        "mcts/uncorrected",
        "mcts/constant",
        "policy",
        "ppo",
        "tinygrad-mcts",
    } <= set(names)
    assert all(Contender.of(name).search() for name in names)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"contenders": ("mtcs",), "default": "mtcs"}, UnknownName, "did you mean mcts"),
        ({"contenders": ("mcts/oracel",)}, UnknownName, "did you mean oracle"),
        ({"contenders": ("mcts/",)}, UnknownName, "guide"),
        ({"beams": (0,)}, UnknownName, "full-beam:0"),
        ({"budget": 1}, UsageError, "from a budget of 2"),
        ({"seeds": 0}, UsageError, "one seed"),
        ({"default": "greedy"}, UsageError, "greedy is not among what is replayed: random, mcts/oracle"),
    ],
)
def test_bad_settings_are_one_line(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        replace(FEW, **change).checked(has_policy=False, log=print)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# -- the journal


def test_nothing_is_replayed_twice_and_a_cut_line_is_left_aside(tmp_path: Path) -> None:
    journal = tmp_path / "plays.jsonl"
    kernel = recorded(synthetic_table())
    settings = replace(FEW, seeds=2, budget=8)
    made = replay_all(Bench(kernel, None), settings, {})
    append_replays(journal, "a", "r", made.values())
    assert read_replays(journal, "a") == {"r": made} and read_replays(journal, "b") == {}
    journal.write_text(journal.read_text()[:-40])  # killed while writing
    left = read_replays(journal, "a")["r"]
    assert len(left) == len(made) - 1
    again = replay_all(Bench(kernel, None), settings, left)
    assert len(again) == 1
    append_replays(journal, "a", "r", again.values())
    found = read_replays(journal, "a")["r"]
    assert {t: replace(p, seconds=0) for t, p in found.items()} == {t: replace(p, seconds=0) for t, p in made.items()}
    journal.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="remove it to replay all"):
        read_replays(journal, "a")


# -- recorded kernels of the H200


@functools.cache
def real_kernels() -> list[RecordedKernel]:
    return kernels_of(read_export(H200), "other")


def a_real_kernel() -> RecordedKernel:
    return min(real_kernels(), key=lambda k: (len(k.table.records), k.region.id))


def real_settings() -> Settings:
    return replace(
        FEW, contenders=("mcts", "mcts/uncorrected", "random"), default="mcts", beams=(1,), seeds=1, budget=8
    )


def test_parts_are_those_of_the_split() -> None:
    found = real_kernels()
    assert {k.part for k in found} == {"train", "validation"} and "flux" not in {k.family for k in found}
    assert {k.calls for k in found} > {1, 2} and all(k.table.best_s < k.hand_coded_s for k in found)
    with pytest.raises(UnknownName, match="did you mean other"):
        kernels_of(Export(H200, {}), "othr")


def test_a_dataset_without_tables_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"replay.parquet cannot be read"):
        kernels_of(Export(tmp_path, {}), "test")


def test_a_checkpoint_guides_and_what_was_replayed_is_kept(tmp_path: Path) -> None:
    kernel, lines = a_real_kernel(), []
    guides, journal = guides_of(CHECKPOINT), tmp_path / "new" / "plays.jsonl"
    settings = real_settings()

    def again(settings: Settings) -> dict[Turn, Replay]:
        return compare([kernel], guides, settings, tables=H200 / FILE, journal=journal, log=lines.append)[
            kernel.region.id
        ]

    replays, size = again(settings), journal.stat().st_size
    assert replays["mcts", 0, 8].evaluations > 8 and replays["random", 0, 8].evaluations == 0
    assert replays["mcts", 0, 8] != replays["mcts/uncorrected", 0, 8]
    picked = replays[DRAFT, 0, 0].end_s
    assert kernel.table.best_s <= picked < kernel.hand_coded_s, "prediction alone beats hand-coded on this kernel"
    assert again(settings) == replays and journal.stat().st_size == size
    assert lines[-1].startswith("1 of 1 kernels were replayed before")
    more = again(replace(settings, seeds=2))
    assert {turn[:2] for turn in set(more) - set(replays)} == {("mcts", 1), ("mcts/uncorrected", 1), ("random", 1)}


def test_a_checkpoint_of_another_target_is_refused(tmp_path: Path) -> None:
    kernel = replace(a_real_kernel(), target=KNOWN_TARGETS["gfx942"])
    with pytest.raises(MismatchError, match="was trained on NVIDIA H200, the tables are of AMD Instinct MI300X"):
        compare([kernel], guides_of(CHECKPOINT), FEW, tables=H200 / FILE, journal=tmp_path / "plays.jsonl")


def test_a_policy_of_a_file_proposes_the_steps_of_the_table(tmp_path: Path) -> None:
    kernel, path = a_real_kernel(), tmp_path / "policy.safetensors"
    for targets in ((kernel.target.fingerprint,), ("another",)):
        about = PolicyAbout("untrained", targets, (), "workload")
        save_policy(Policy(PolicyNet(NetSettings(hidden=8, layers=1)).network(), about), path)
        led_of = guides_of(CHECKPOINT, path).led_of
        assert led_of is not None
        if targets == ("another",):
            with pytest.raises(MismatchError, match="not trained on NVIDIA H200"):
                led_of(kernel.region, kernel.target, kernel.table)
            continue
        schedules = list(kernel.table.records)[:8]
        led = led_of(kernel.region, kernel.target, kernel.table)
        for schedule, proposal in zip(schedules, led.proposals(schedules), strict=True):
            assert len(proposal.steps) == len(kernel.table.actions(schedule))
        policy_of.cache_clear()


@pytest.mark.slow
def test_the_script_compares_two_kernels_in_two_processes(tmp_path: Path) -> None:
    document = tmp_path / "search.md"
    document.write_text((ROOT / "docs" / "experiments" / "2026-11-23-search-strategies.md").read_text())
    command = [
        sys.executable, "-m", "evaluation.search.compare", "--replay", "--tables", "2", "--seeds", "2",
        "--budget", "16", "--strategies", "random,mcts,mcts/oracle", "--beams", "1,4", "--jobs", "2",
        "--work", str(tmp_path), "--out", str(tmp_path / "out.json"), "--docs", str(document),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["headline"] == json.loads(done.stdout)
    assert report["headline"]["quality_at_16"] <= 1.0 and "quality_vs_beam4" in report["headline"]
    reported = report["runs"]["h200 test"]
    assert set(reported["contenders"]) == {"random", "mcts", "mcts/oracle"}
    assert {k["family"] for k in reported["kernels"]} == {"flux"}
    assert (tmp_path / "search-test.svg").is_file() and "| mcts/oracle | " in document.read_text()


@pytest.mark.parametrize(("arguments", "message"), [("", "say --replay"), ("--replay --beams four", "write widths")])
def test_the_script_says_what_is_wrong_in_one_line(arguments: str, message: str) -> None:
    command = [sys.executable, "-m", "evaluation.search.compare", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
