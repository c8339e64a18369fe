"""kcg optimize flux | script.py -- args | -m module -- args | -c code

`apply` and `export` as its first word are `kcg.apply` and `kcg.export`, as they were before these were modules.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()

import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Annotated  # noqa: E402

import typer  # noqa: E402

from kcg.cli import command_app, command_text, examples, guarded, interrupted, run_app, showing  # noqa: E402
from kcg.commands import SETTINGS, command_name, program_name  # noqa: E402
from kcg.errors import ExitCode, UsageError  # noqa: E402
from kcg.files import cache_folder  # noqa: E402

if TYPE_CHECKING:
    from kcg.types import Result
    from kcg.workloads.script import Form

app = command_app()

EXIT_CODES = """\b
Exit codes:
  0    improved, and checked as a whole
  2    wrong usage
  3    searched, and nothing was verified to be faster
  4    something is proven wrong
  5    the device is unusable
  6    nothing was searched
  7    improved, part by part: the whole was not checked
  130  interrupted"""


def complete_workload(incomplete: str) -> list[str]:
    """Names of workloads; where there are none the shell completes files."""
    from kcg.workloads.registry import completions

    return completions(incomplete)


@app.command(
    context_settings={**SETTINGS, "allow_extra_args": True},
    epilog=f"{EXIT_CODES}\n\n"
    + examples(
        "kcg optimize flux/mini --budget 60s",
        "kcg optimize train.py --budget 5m -- --its-own arguments",
        "kcg optimize -m package.module",
        "kcg list                                # the workloads that are known by name",
        "kcg apply kcg-out/train/RESULT.json     # hand the result over to plain tinygrad",
        "kcg export kcg-out/train/RESULT.json --python FILE",
    ),
)
def optimize(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="a name such as flux or flux/mini, or the path of a tinygrad script",
            autocompletion=complete_workload,
        ),
    ] = None,
    script_args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="after --: the program's own arguments")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="instead: a module or package to run, as of python")
    ] = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="instead: code to run, as of python")] = None,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="a preset of the workload; auto takes what fits the device")
    ] = "auto",
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, CPU, CPU:X86, CPU:CLANG, CUDA, AMD, METAL …")
    ] = "auto",
    search: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="mcts, predicted-beam, evolution, greedy, epsilon-greedy, annealing, beam, beam:8, full-beam:4, "
            "ppo, random, prior, hand-coded, tinygrad-beam:2; a name that is unknown lists the rest; or by kind of "
            "schedule: opts=beam,tile=random",
        ),
    ] = "mcts",
    predictor: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="auto: the one shipped for the device; roofline: the analytic one; or a checkpoint"
        ),
    ] = "auto",
    effort: Annotated[
        str, typer.Option(metavar="NAME", help="how long to search: quick, normal or thorough")
    ] = "normal",
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="from start to result, e.g. 120s, 2m, 1h, instead of the effort's"),
    ] = None,
    measurements: Annotated[
        int | None,
        typer.Option(metavar="N", help="the search stops at so many binaries timed; 0 predicts only, then verifies"),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="a folder, or hf://OWNER/NAME@REVISION: what it has is verified and not searched, what is found added",
        ),
    ] = "",
    kernels: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="a Python file of hand-written kernels, which is imported in workers; may be repeated"
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="published ones for the last check, the whole model: a safetensors file or a repository",
        ),
    ] = "",
    no_script_check: Annotated[
        bool, typer.Option("--no-script-check", help="do not run a script again at the end to compare its results")
    ] = False,
    regions: Annotated[
        bool | None,
        typer.Option(
            "--regions/--no-regions",
            show_default=False,
            help="also search programs of several kernels, and plan where they run; by default where there are some",
        ),
    ] = None,
    allow_tf32: Annotated[
        bool,
        typer.Option("--allow-tf32", help="products may round float32 operands to 10 bits of mantissa"),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="of the search")] = 0,
    gpus: Annotated[
        int, typer.Option(min=1, metavar="N", help="GPUs that measure for the search; the first of them judges")
    ] = 1,
    fleet: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="a fleet that measures for the search, too: its scheduler tls://HOST:PORT, or local: all GPUs here",
        ),
    ] = "",
    certificates: Annotated[Path | None, typer.Option(metavar="DIR", help="of a fleet, which TLS needs")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait while another optimisation uses the GPU")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the journal of the same output folder")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, measure nothing")] = False,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout, without ASTs")] = False,
    asts: Annotated[bool, typer.Option("--asts", help="with --json: as RESULT.json has it, with every AST")] = False,
    report: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="for RESULT.json, report.html and the journal; else kcg-out/WORKLOAD"),
    ] = None,
    wandb: Annotated[
        str,
        typer.Option(metavar="MODE", help="keep the finished run at Weights & Biases: online, offline or disabled"),
    ] = "disabled",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Find faster kernel schedules for a workload, verify them, and write RESULT.json and report.html."""
    from kcg.cli import parse_budget
    from kcg.optimize.settings import Settings, check_effort, check_folder, check_measurements, check_search
    from kcg.predictor.choice import check_choice
    from kcg.predictor.tracking import wanted_mode
    from kcg.workloads.registry import named_preset

    wandb_mode = wanted_mode(wandb)
    what, form, own_args = _workload(workload, tuple(script_args or ()), module, code)
    if form is None:
        what, preset = named_preset(what, preset)
    settings = Settings(
        workload=what,
        form=form,
        preset=preset,
        device=device,
        search=check_search(search),
        predictor=check_choice(predictor),
        effort=check_effort(effort),
        budget_s=parse_budget(budget) if budget is not None else None,
        measurements=check_measurements(measurements),
        seed=seed,
        resume=resume,
        wait=wait,
        gpus=gpus,
        fleet=fleet,
        certificates=certificates,
        folder=Path("kcg-out") / _folder_name(what, form) if report is None else check_folder(report),
        script_args=own_args,
        script_check=not no_script_check,
        weights=weights,
        regions=regions,
        store=store,
        kernels=tuple(path.absolute() for path in kernels or ()),
        allow_tf32=allow_tf32,
        costs=cache_folder("costs"),
        command=command_text("optimize"),
    )
    if asts and not json_mode:
        raise UsageError("--asts says what --json prints: add --json")
    if own_args and not settings.is_script:
        raise UsageError(f"arguments after the workload are for scripts; {what} is not a .py file")
    if no_script_check and not settings.is_script:
        raise UsageError(f"--no-script-check is for scripts; {what} is not a .py file")
    ended = run(settings, dry_run=dry_run, json_mode=json_mode, asts=asts, quiet=quiet, wandb=wandb_mode)
    raise typer.Exit(int(ended))


def _workload(
    workload: str | None, script_args: tuple[str, ...], module: str | None, code: str | None
) -> tuple[str, Form | None, tuple[str, ...]]:
    """What to optimise, the form of a program, and its arguments."""
    from kcg.workloads.script import Form, program_of

    if module is None and code is None:
        if workload is None:
            raise UsageError(
                f"what is to be optimised? The name of a workload ({program_name()} list), the path of a script, "
                "-m MODULE, or -c CODE"
            )
        if workload in ("-m", "-c"):  # after --, as of python
            program = program_of([workload, *script_args])
            return program.what, program.form, program.arguments
        return workload, None, script_args
    if module is not None and code is not None:
        raise UsageError("-m and -c: choose one")
    words = sys.argv[1:]
    if workload is not None and ("--" not in words or workload in words[: words.index("--")]):
        raise UsageError(
            f"{workload} and {'-m' if code is None else '-c'}: choose one; a program's arguments come after --"
        )
    form, what = (Form.MODULE, module) if code is None else (Form.CODE, code)
    return str(what), form, (*(() if workload is None else (workload,)), *script_args)


def _folder_name(workload: str, form: Form | None) -> str:
    from kcg.workloads.script import Program

    return (Path(workload).stem if form is None else Program(form, workload).name) or "out"


def run(
    settings: object,
    *,
    dry_run: bool,
    json_mode: bool,
    quiet: bool,
    asts: bool = False,
    wandb: str = "disabled",
) -> ExitCode:
    """Run and print; everything but the result goes to stderr. `wandb` is a mode of `kcg.predictor.tracking`."""
    from kcg.optimize.console import print_result, progress
    from kcg.optimize.settings import Settings, check_gpu_count, check_names, with_fleet
    from kcg.report.endings import incomplete
    from kcg.report.next_steps import resumed

    assert isinstance(settings, Settings)
    with progress(quiet=quiet, json_mode=json_mode) as shown:
        from kcg import __version__
        from kcg.compat.device import choose_device

        choice = choose_device(settings.device)
        check_names(settings, choice.device)  # before anything is opened, and before anything else is said
        settings = with_fleet(settings, choice)
        check_gpu_count(settings, choice)
        shown.line(f"kcg {__version__}: {settings.workload} on {choice.dev} ({choice.why})")
        if dry_run:
            from kcg.optimize.run import preview
            from kcg.store.location import check_store

            if settings.store:
                check_store(settings.store)
            preview(settings, shown, json_mode=json_mode)
            return ExitCode.OK
        if settings.fleet:
            from kcg.fleet import unpickling
            from kcg.fleet.settings import configure

            configure()
            unpickling.install()
        from kcg.optimize.run import optimize as optimize_now

        finished = optimize_now(settings, shown, started=STARTED)
    with showing():  # the files are written: who cannot print has lost nothing
        if json_mode:
            from kcg.report.result import to_dict
            from kcg.types import canonical_json

            sys.stdout.write(canonical_json(to_dict(finished.result, asts=asts)) + "\n")
        elif finished.result.total_before_s or finished.exit_code != ExitCode.INTERRUPTED:  # else nothing was timed
            from rich.console import Console

            files = finished.result_path, finished.report_path
            print_result(finished.result, Console(highlight=False), files=files)
    if finished.exit_code == ExitCode.INTERRUPTED:
        interrupted(f"interrupted; to go on: {resumed(settings.command)}")
    elif finished.exit_code == ExitCode.DEVICE_UNUSABLE:
        message = f"{finished.lost}; what was measured is kept: when the device is back, go on with"
        shown.line(f"kcg: {message} {resumed(settings.command)}", important=True)
    elif finished.exit_code == ExitCode.VERIFICATION_FAILED:
        shown.line(f"kcg: {not_verified(finished.result)}", important=True)
    elif finished.exit_code == ExitCode.NOTHING_IMPROVED:
        shown.line(nothing_faster(finished.result))
    elif (why := incomplete(finished.result)) and why not in finished.result.warnings:  # else it was said before
        shown.line(why)
    if wandb != "disabled" and finished.exit_code != ExitCode.INTERRUPTED:  # who interrupts it waits for nothing more
        from kcg.optimize.tracking import send

        send(
            finished.result,
            finished.report_path,
            mode=wandb,
            warn=lambda line: shown.line(f"kcg: {line}", important=True),
        )
    return finished.exit_code


def not_verified(result: Result) -> str:
    """Why a run that came to its end has the exit code of a failed verification, in one line."""
    if result.model_check is not None and result.model_check.passed is False:
        what = "script" if result.model_check.runs else "model"
        return f"the whole {what} is wrong with these schedules, do not use them: {result.model_check.reason}"
    from kcg.report.counts import share_of

    wrong = [region for region in result.regions if region.chosen.verification.wrong]
    of_these = share_of((row.region for row in wrong), (row.region for row in result.regions))
    first = f"the first is {wrong[0].baseline.name}: {wrong[0].note}"
    return f"{of_these} are wrong with tinygrad's own schedule, and keep it; {first}"


def nothing_faster(result: Result) -> str:
    """What is said where nothing is verified to be faster, in one line."""
    from kcg.report.counts import how_many
    from kcg.report.result import TIME_OVER, UNTIMED, USED_UP

    notes = [region.note for region in result.regions if region.outcome == "not searched"]
    more_time = "give it more time with --budget"
    advice = {USED_UP: "give it more with --measurements", TIME_OVER: more_time, UNTIMED: more_time}
    undecided = [row.region for row in result.regions if row.outcome == "undecided"]
    if undecided:
        idle = _not_searched(result)
        return f"nothing was verified to be faster in time, and {how_many(undecided)} may be{idle}; {more_time}"
    what_to_do = next((advice[note] for note in notes if note in advice), "try --effort thorough")
    return f"nothing was faster than tinygrad's own schedules, which are kept{_not_searched(result)}; {what_to_do}"


def _not_searched(result: Result) -> str:
    from kcg.report.counts import share_of
    from kcg.report.result import NO_OTHER

    rows = [row for row in result.regions if row.outcome == "not searched" and row.note != NO_OTHER]
    missing = share_of((row.region for row in rows), (row.region for row in result.regions))
    return f" ({missing} were not searched)" if rows else ""


def main() -> ExitCode:
    """Dispatch: `apply` and `export` are commands of their own, everything else names a workload."""
    if "".join(sys.argv[1:2]) in ("apply", "export"):
        from kcg import apply, export

        return apply.main() if sys.argv.pop(1) == "apply" else export.main()
    return run_app(app, command_name("optimize"))


if __name__ == "__main__":
    guarded(main)
