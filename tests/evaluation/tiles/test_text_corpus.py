"""The gate of the generator: equal programs have equal hashes in any process, other ones are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.tiles import text_corpus
from evaluation.tiles.text_corpus import Reached, Row, changed, main, rows_of, whole
from kcg.errors import ExitCode, UsageError
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.program import TileSource
from kcg.types import Target
from tests.rules import ROOT

NAMES, TARGETS = ("matmul", "elementwise"), ("sm_90", "sm_80")


def rows(reached: Reached | None = None) -> list[Row]:
    return [*rows_of(NAMES, TARGETS, programs=2, reached=reached or Reached())]


def test_the_corpus_is_the_same_in_any_process() -> None:
    command = [sys.executable, "-m", "evaluation.tiles.text_corpus", "--json", "--programs", "2"]
    command += [f"--only={name}" for name in NAMES] + [f"--target={name}" for name in TARGETS]
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # this process has one drawn at random
    out = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert json.loads(out)["hash"] == whole(rows())


def test_another_text_is_one_other_row_and_of_it_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows()

    def other(kernel: TileKernel, target: Target, p: TileParameters) -> TileSource:
        made = generate_kernel(kernel, target, p)
        is_one = kernel.contraction is None and target.arch == "sm_90"
        return replace(made, source=made.source + "# other\n") if is_one else made

    monkeypatch.setattr(text_corpus, "generate_kernel", other)
    after = rows()
    assert [a.key for a, b in zip(after, before, strict=True) if a.hash != b.hash] == ["elementwise, sm_90"]
    assert changed(after, {row.key: vars(row) for row in before}) == ["elementwise, sm_90: texts"]
    assert whole(after) != whole(before)


def test_what_is_refused_counts_without_its_words() -> None:
    reached = Reached()
    (row,) = rows_of(("norm before a matmul",), ("sm_90",), programs=2, reached=reached)
    assert (row.kernels, row.programs) == (0, 0) and row.values == row.costs == row.texts
    assert reached.lines()[0] == "forms × ways: "


def test_the_command_counts_what_programs_were_and_names_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {"programs": 2, "only": ["elementwise"], "target": ["sm_90"]}
    assert main(**ours, as_json=True) == ExitCode.OK
    (file := tmp_path / "before.json").write_text(stored := capsys.readouterr().out)
    assert main(**ours, against=file) == ExitCode.OK
    printed = capsys.readouterr()
    assert "elementwise × pointer 3" in printed.out and "never: elementwise × copies" in printed.out
    assert printed.out.splitlines()[-1] == json.loads(stored)["hash"]
    assert printed.err == "0 of 1 rows changed\n"
    file.write_text(stored.replace('"costs": "', '"costs": "0'))
    assert main(**ours, against=file) == ExitCode.VERIFICATION_FAILED
    assert capsys.readouterr().err == "elementwise, sm_90: costs\n1 of 1 rows changed\n"
    with pytest.raises(UsageError, match="add --programs 2"):
        main(programs=3, only=["elementwise"], against=file)
    with pytest.raises(UsageError, match="no 'nothing'"):
        main(only=["nothing"])
