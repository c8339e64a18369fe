from pathlib import Path
p = Path("kcg/optimize/__main__.py")
s = p.read_text()
s = s.replace('''    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Find faster''', '''    wandb: Annotated[
        str, typer.Option(help="keep the finished run at Weights & Biases: online, offline or disabled")
    ] = "disabled",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Find faster''')
s = s.replace('''    from kcg.predictor.choice import check_choice

    what,''', '''    from kcg.predictor.choice import check_choice
    from kcg.predictor.tracking import wanted_mode

    wandb_mode = wanted_mode(wandb)
    what,''')
s = s.replace('''raise typer.Exit(int(run(settings, dry_run=dry_run, json_mode=json_mode, quiet=quiet)))''',
'''raise typer.Exit(int(run(settings, dry_run=dry_run, json_mode=json_mode, quiet=quiet, wandb=wandb_mode)))''')
s = s.replace('''def run(settings: object, *, dry_run: bool, json_mode: bool, quiet: bool) -> ExitCode:
    """Run and print; everything but the result goes to stderr."""''', '''def run(settings: object, *, dry_run: bool, json_mode: bool, quiet: bool, wandb: str) -> ExitCode:
    """Run and print; everything but the result goes to stderr. `wandb` is a mode of `kcg.predictor.tracking`."""''')
s = s.replace('''        shown.line(incomplete(finished.result))
    return finished.exit_code
''', '''        shown.line(incomplete(finished.result))
    if wandb != "disabled" and finished.exit_code != ExitCode.INTERRUPTED:  # who interrupts it waits for nothing more
        from kcg.optimize.tracking import send

        send(
            finished.result,
            finished.report_path,
            mode=wandb,
            warn=lambda line: shown.line(f"kcg: {line}", important=True),
        )
    return finished.exit_code
''')
p.write_text(s)
