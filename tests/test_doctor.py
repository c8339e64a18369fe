"""What the doctor says of tile programs: Triton, its assembler, and what to do where either is missing or old."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.cli import pip_install
from kcg.doctor import Finding, _programs
from tests.commands import python
from tests.fake_triton import fake_triton
from tests.kernel.tile.running import HAS_TRITON
from tests.known_targets import KNOWN_TARGETS, X86
from tests.slow import first_rows

CODE = """
import json
from dataclasses import asdict
from kcg.doctor import _programs
from tests.known_targets import KNOWN_TARGETS
print(json.dumps([asdict(finding) for finding in _programs(KNOWN_TARGETS["sm_90"])]))
"""


@pytest.mark.parametrize(("ptxas", "warned"), first_rows(1, [("12.8.93", True), ("13.4.59", False)]))
def test_triton_and_its_assembler_are_named_and_an_old_one_is_warned_of(
    ptxas: str, warned: bool, tmp_path: Path
) -> None:
    done = python("-c", CODE, **fake_triton(tmp_path, ptxas=ptxas))
    assert done.returncode == 0, done.stderr
    ((finding),) = json.loads(done.stdout)
    assert finding["found"] == f"Triton 9.9.9, ptxas {ptxas} ({tmp_path / 'ptxas'})" and finding["ok"]
    assert ("before 13 it turns some right programs into faults and NaN" in finding["advice"]) == warned
    assert warned or not finding["advice"]


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_it_says_what_is_missed_and_how_to_get_it() -> None:
    (finding,) = _programs(KNOWN_TARGETS["sm_90"])
    assert finding.found == "none, Opts only: Triton is not installed" and finding.ok
    assert "faster matmuls" in finding.advice and finding.advice.endswith(pip_install("gpu"))


def test_a_target_that_triton_does_not_know_has_opts_only() -> None:
    words = "none, Opts only: tile programs are for NVIDIA GPUs from sm_80 on, not for "
    assert _programs(KNOWN_TARGETS["Apple9"]) == [Finding("tile programs", f"{words}METAL Apple9")]
    words = "none, Opts only: tile programs compile for gfx942, and none was ever run there"
    assert _programs(KNOWN_TARGETS["gfx942"]) == [Finding("tile programs", words)]
    words = "none, Opts only: tile programs are for NVIDIA GPUs from sm_80 on, not for "
    old = replace(KNOWN_TARGETS["sm_90"], arch="sm_75")
    assert _programs(old) == [Finding("tile programs", f"{words}CUDA sm_75")]
    assert _programs(X86) == []
