"""What is installed with kcg and what only with an extra, and what is said where that is missing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import kcg.training.extra
from kcg.cli import OPTIONAL, guarded, pip_install
from kcg.doctor import CORE, EXTRAS
from kcg.errors import ExitCode, UsageError

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {"nvidia_ml_py": "pynvml", "stable_baselines3": "stable_baselines3"}  # that are called otherwise


def modules(requirements: list[str]) -> set[str]:
    """The modules that some requirements bring."""
    names = (re.split(r"[<>=;\[ ]", one)[0].replace("-", "_") for one in requirements)
    return {MODULES.get(name, name) for name in names}


def test_what_only_training_graphs_or_datasets_need_is_not_installed_with_kcg() -> None:
    core, extras = modules(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    assert {*CORE} <= core and core - {*CORE} == {"pynvml"}, "what the doctor looks for"
    assert core.isdisjoint(OPTIONAL), "PyTorch takes gigabytes, pyarrow 170 MB"
    for module, extra in OPTIONAL.items():
        assert module == "dask" or module in modules(extras[extra]), module
    for extra, wanted in EXTRAS.items():
        assert {*wanted} <= modules(extras[extra])
    assert modules(extras["graphs"]) <= modules(extras["train"]) and {*OPTIONAL} - {"dask"} <= modules(extras["dev"])


@pytest.mark.parametrize(
    ("missing", "code", "line"),
    [
        (
            "pyarrow.parquet",
            ExitCode.USAGE,
            f"kcg: this needs pyarrow, which is not installed: {pip_install('data')}\n",
        ),
        ("kcg.nothing", ExitCode.INTERNAL, "kcg: internal error"),
    ],
)
def test_a_command_that_lacks_a_package_says_in_one_line_which_extra_brings_it(
    missing: str, code: ExitCode, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    with pytest.raises(SystemExit) as ended:
        guarded(body)
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert said.startswith(line) and said.count("\n") == 1


def test_training_without_pytorch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kcg.training.extra, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"this needs torch, which is not installed: pip install .*train"):
        kcg.training.extra.need("torch", "torch_geometric")
