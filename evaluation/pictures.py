"""Pictures of the report and of the page of all runs, for README and docs/ui.md.

    python -m evaluation.pictures
    python -m evaluation.pictures --runs FOLDER

Optimises README's script twice by `evaluation.own_script`, first with a short budget, and then as README says, which
README quotes; with `--runs` it takes what such runs left. Opens the report of the second run and the pages of
`kcg ui` in headless Chromium, as a desktop and as a phone, and writes docs/pictures/*.png of at most `MOST_BYTES`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from evaluation import own_script
from kcg.cli import run_script
from kcg.errors import KcgError
from kcg.ui.runs import Folder
from tests.browser import CHROMIUM, Browser
from tests.ui_server import serving

OUT = own_script.ROOT / "docs" / "pictures"
RUNS = "kcg-out"
SHORT = "20s"  # the budget of the run that the other is compared with
MOST_BYTES = 150_000
COLORS = (128, 64, 32, 16)  # of a palette: as many as fit
DESKTOP, WIDE, PHONE = 1280, 1760, 390


@dataclass(frozen=True)
class Shot:
    """One picture: of which page, in a window of which width, and how many pixels of it from its top."""

    name: str
    page: str  # its path on the server
    width: int
    most: int = 1400


def shots_of(folder: Folder) -> tuple[Shot, ...]:
    """All pictures of a folder of runs. Raises KcgError where it has fewer than two."""
    runs = sorted(folder.look().runs, key=lambda run: run.created)
    if len(runs) < 2:
        raise KcgError(f"{folder.root} has {len(runs)} runs: two are compared")
    last = runs[-1].id
    first = next(run.id for run in runs if run.workload == runs[-1].workload)
    if first == last:
        raise KcgError(f"{folder.root} has one run of {runs[-1].workload}: two are compared")
    return (
        Shot("report", f"/report/{last}", DESKTOP),
        Shot("report-wide", f"/report/{last}", WIDE, 1180),
        Shot("report-phone", f"/report/{last}", PHONE, 1600),
        Shot("runs", "/", DESKTOP, 1000),
        Shot("runs-phone", "/", PHONE, 1200),
        Shot("run", f"/run/{last}", DESKTOP, 1200),
        Shot("comparison", f"/compare?run={first}&run={last}", DESKTOP, 1200),
    )


def make_runs(folder: Path, budget: str = own_script.BUDGET) -> None:
    """A run of README's script with a short budget, and the one that README quotes, below a folder."""
    own_script.printed_by(own_script.SCRIPT, folder, budget=SHORT, report=f"{RUNS}/block-{SHORT}")
    own_script.measure(folder, budget=budget)


def take(browser: Browser, shot: Shot, address: str, path: Path) -> None:
    """Write one picture of a page."""
    browser.open(address.rstrip("/") + shot.page, width=shot.width)
    browser.wait("document.documentElement?.dataset.script === 'ready'")
    browser.js("document.fonts.ready.then(() => new Promise(done => requestAnimationFrame(() => done(true))))")
    browser.picture(path, most=shot.most)
    compress(path)


def compress(path: Path) -> None:
    """A PNG with a palette of as many colours as `MOST_BYTES` allow."""
    from PIL import Image

    with Image.open(path) as opened:
        whole = opened.convert("RGB")
    for colors in COLORS:
        whole.quantize(colors, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise KcgError(f"{path.name} takes {path.stat().st_size:,} bytes")


def take_all(folder: Path, out: Path) -> list[Path]:
    """Write all pictures of the runs in `kcg-out` below a folder. Raises KcgError where there is no browser."""
    if CHROMIUM is None:
        raise KcgError("there is no Chromium on the path")
    out.mkdir(parents=True, exist_ok=True)
    made = []
    with (
        inside(folder),
        own_script.commands_on_path(),
        tempfile.TemporaryDirectory() as profile,
        serving(Path(RUNS)) as server,
    ):
        address = server.url.partition("/?")[0]
        with Browser(Path(profile)) as browser:
            browser.send("Page.navigate", url=server.url)  # from then on a cookie has the token
            browser.wait("document.documentElement?.dataset.script === 'ready' && location.search === ''")
            for shot in shots_of(Folder(Path(RUNS))):
                made.append(out / f"{shot.name}.png")
                take(browser, shot, address, made[-1])
    return made


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Within a folder, so that no page shows where that is."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(
    runs: Annotated[Path | None, typer.Option(help=f"a folder with {RUNS} in it, in place of new runs")] = None,
    budget: Annotated[str, typer.Option(help="of the run that README quotes")] = own_script.BUDGET,
    out: Annotated[Path, typer.Option(help="the folder of the pictures")] = OUT,
) -> None:
    """Make the runs and take their pictures."""
    with tempfile.TemporaryDirectory(prefix="kcg-pictures-", ignore_cleanup_errors=True) as name:
        if runs is None:
            make_runs(Path(name), budget)
        for path in take_all((runs or Path(name)).absolute(), out.absolute()):
            typer.echo(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_script(main)
