"""kcg fleet scheduler | worker | status | certificates"""

from __future__ import annotations

from kcg.cli import command_group, guarded, run_app
from kcg.commands import command_name
from kcg.errors import ExitCode

app = command_group("kcg fleet status tls://host:8786", "kcg fleet COMMAND --help")


@app.callback()
def commands() -> None:
    """Many machines for one run: their scheduler, their workers, their state."""


def main() -> ExitCode:
    return run_app(app, command_name("fleet"))


if __name__ == "__main__":
    guarded(main)
