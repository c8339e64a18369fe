"""The end of a run names the commands that use its result, or that look further, with everything filled in."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kcg.optimize.console import print_result
from kcg.report.endings import outlook_lines
from kcg.report.formats import format_seconds
from kcg.report.next_steps import next_steps, resumed, with_option
from kcg.report.page import render_report
from kcg.types import ModelCheck, Outlook, Result, ScheduleKind
from kcg.workloads.script import Form, Program, bounded, workload_name
from tests.sample_result import sample_plan, sample_result

PATH = Path("kcg-out/flux/RESULT.json")


def commands(result: Result, path: Path = PATH) -> list[str]:
    return [step.command for step in next_steps(result, path)]


def of_script(command: str, program: Program, result: Result | None = None) -> Result:
    preset = bounded(shlex.join(program.arguments))
    return replace(result or sample_result(), workload=workload_name(program), preset=preset, command=command)


def nothing_found(command: str, *, complete: bool = True, warnings: tuple[str, ...] = ()) -> Result:
    sample = sample_result()
    rows = tuple(replace(row, chosen=row.baseline, outcome="kept") for row in sample.regions)
    check = replace(sample.model_check or ModelCheck(None), passed=None)
    return replace(
        sample, regions=rows, command=command, complete=complete, warnings=warnings, model_check=check, expectations=()
    )


def test_opts_go_into_tinygrads_own_cache_first() -> None:
    assert commands(sample_result()) == [
        "kcg apply kcg-out/flux/RESULT.json --beam 2",
        "DEV=CUDA BEAM=2 python your_program.py",
        "kcg export kcg-out/flux/RESULT.json --python tuned_flux.py",
    ]


def test_programs_that_the_cache_cannot_hold_are_used_by_kcg_or_a_module_first() -> None:
    assert any(row.chosen.schedule.kind != ScheduleKind.OPTS for row in sample_plan().deployed)
    run, export, apply = next_steps(sample_plan(), PATH)
    assert run.command == "kcg run --result kcg-out/flux/RESULT.json your_program.py"
    assert export.command == "kcg export kcg-out/flux/RESULT.json --python tuned_flux.py"
    assert apply.command == "kcg apply kcg-out/flux/RESULT.json --beam 2" and "Opts alone" in apply.does


def test_a_script_and_its_arguments_are_filled_in_and_quoted() -> None:
    program = Program(Form.SCRIPT, "my models/train.py", ("--name", "a b", "--resume"))
    command = shlex.join(["kcg", "optimize", "my models/train.py", "--budget", "5m", "--", *program.arguments])
    path = Path("my out/RESULT.json")
    run = "'my models/train.py' --name 'a b' --resume"
    assert commands(of_script(command, program), path) == [
        "kcg apply 'my out/RESULT.json' --beam 2",
        f"DEV=CUDA BEAM=2 python {run}",
        "kcg export 'my out/RESULT.json' --python tuned_train.py",
    ]
    planned = of_script(command, program, sample_plan())
    assert commands(planned, path)[0] == f"kcg run --result 'my out/RESULT.json' {run}"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python -m kcg.optimize -m pkg.train --budget 5m -- -v", Program(Form.MODULE, "pkg.train", ("-v",))),
        ("kcg optimize --budget 5m -- -m pkg.train -v", Program(Form.MODULE, "pkg.train", ("-v",))),
        ("kcg optimize -c 'print(1)'", Program(Form.CODE, "print(1)")),
        ("kcg optimize train.py one two", Program(Form.SCRIPT, "train.py", ("one", "two"))),
        ("kcg optimize --report train.py train.py", Program(Form.SCRIPT, "train.py")),
    ],
)
def test_a_program_is_named_as_it_was(command: str, program: Program) -> None:
    (_, used, _) = commands(of_script(command, program))
    assert used == f"DEV=CUDA BEAM=2 python {shlex.join(program.command)}"


def test_a_compiler_that_tinygrad_does_not_find_is_named_and_without_any_nothing_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = sample_result()
    on_cpu = replace(sample, target=replace(sample.target, device="CPU", renderer="CLANG"))
    monkeypatch.setattr("kcg.report.next_steps.missing_clang", lambda target: "/cache/kcg/a clang")
    assert commands(on_cpu)[1] == "CC='/cache/kcg/a clang' DEV=CPU:CLANG BEAM=2 python your_program.py"
    monkeypatch.setattr("kcg.report.next_steps.missing_clang", lambda target: "")
    assert [command.split()[1] for command in commands(on_cpu)] == ["run", "export"]


def test_kernels_that_are_written_by_hand_need_their_files() -> None:
    sample = sample_result()
    first, *others = sample.regions
    by_hand = replace(first.chosen, schedule=replace(first.chosen.schedule, kind=str(ScheduleKind.SOURCE)))
    rows = (replace(first, chosen=by_hand, opts=first.chosen), *others)
    command = "kcg optimize flux --kernels 'my kernels.py' --kernels=b.py"
    run, export, apply = commands(replace(sample, regions=rows, command=command))
    for line in (run, export):
        assert "--kernels 'my kernels.py' --kernels b.py" in line
    assert "--kernels" not in apply


def test_what_is_wrong_as_a_whole_is_not_to_be_used() -> None:
    assert next_steps(replace(sample_result(), model_check=ModelCheck(False, "it differs")), PATH) == ()


ADVICE = "nothing was searched: the budget of 60 s is too short to search in: it takes long: try --budget 130s"


@pytest.mark.parametrize(
    ("result", "command"),
    [
        (nothing_found("kcg optimize flux"), "kcg optimize flux --effort thorough"),
        (nothing_found("kcg optimize flux --effort quick"), "kcg optimize flux --effort thorough"),
        (nothing_found("kcg optimize flux --effort=thorough"), ""),
        (nothing_found("kcg optimize a.py --budget 5m -- -x"), "kcg optimize a.py --resume --budget 600s -- -x"),
        (nothing_found("kcg optimize a.py -- -x", complete=False), "kcg optimize a.py --resume -- -x"),
        (nothing_found("kcg optimize flux --resume", complete=False), "kcg optimize flux --resume"),
        (nothing_found("kcg optimize flux --budget 60s", complete=False), "kcg optimize flux --budget 60s --resume"),
        (
            nothing_found("kcg optimize flux --budget 60s", complete=False, warnings=("a", ADVICE)),
            "kcg optimize flux --resume --budget 130s",
        ),
        (nothing_found(""), ""),
        (nothing_found("kcg 'optimize"), ""),
        (nothing_found("kcg optimize flux --budget oops"), ""),
    ],
)
def test_where_nothing_improved_there_is_a_way_to_look_further(result: Result, command: str) -> None:
    assert commands(result) == ([command] if command else [])


def test_a_run_that_ended_early_names_what_it_found_and_how_to_go_on() -> None:
    ended = replace(sample_result(), complete=False, command="kcg optimize flux --budget 60s")
    *use, last = commands(ended)
    assert len(use) == 3 and last == "kcg optimize flux --budget 60s --resume"


def test_what_more_time_is_expected_to_bring_is_said_with_the_command_that_goes_on() -> None:
    outlook = Outlook(unjudged=3, unjudged_s=1.25e-3, searches=1, expected_s=0.5e-3)
    command = "kcg optimize 'my train.py' --budget 60s"
    sample = replace(sample_result(), command=command)
    some = replace(sample, outlook=outlook)
    more = "kcg optimize 'my train.py' --resume --budget 120s"
    assert commands(some) == [*commands(sample), more] and more not in commands(sample)
    (judging, search), total = outlook_lines(some), format_seconds(some.total_after_s)
    assert judging == f"found and not judged in time: 3 kernels and regions, 1.25 ms of {total} by the search"
    assert search == f"1 search was stopped before the next measurements, which are expected to save 500 µs of {total}"
    console = Console(width=400, file=io.StringIO())
    print_result(some, console, files=(PATH, PATH))
    printed, page = console.file.getvalue(), render_report(some, PATH)  # type: ignore[attr-defined]
    assert all(line in printed and line[1:] in page for line in (judging, search))
    assert printed.splitlines()[-1].split("  #")[0].strip() == more
    some = replace(some, command="kcg optimize a.py --measurements 50")
    assert commands(some)[-1] == "kcg optimize a.py --resume --measurements 100"
    assert outlook_lines(replace(sample, outlook=Outlook())) == outlook_lines(sample) == []


def test_options_are_put_before_those_of_the_program() -> None:
    assert resumed("kcg optimize a.py -- --resume") == "kcg optimize a.py --resume -- --resume"
    assert resumed("kcg optimize a.py --resume") == "kcg optimize a.py --resume"
    changed = with_option("kcg optimize 'a b.py' --budget 1m --seed 3 -- --budget 2", "--budget", "9s")
    assert changed == "kcg optimize 'a b.py' --seed 3 --budget 9s -- --budget 2"
