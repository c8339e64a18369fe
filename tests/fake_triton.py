"""A Triton and an assembler for processes that a test starts, on machines with and without the real ones."""

from __future__ import annotations

from pathlib import Path

import kcg

VERSION = "9.9.9"


def fake_triton(folder: Path, *, ptxas: str = "13.9.1", body: str = "import os; os.abort()") -> dict[str, str]:
    """The environment of a process that finds a Triton which does `body` when it is imported, and one `ptxas`."""
    site, tool = folder / "site", folder / "ptxas"
    (site / "triton").mkdir(parents=True)
    (site / "triton" / "__init__.py").write_text(body)
    (site / f"triton-{VERSION}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: triton\nVersion: {VERSION}\n"
    (site / f"triton-{VERSION}.dist-info" / "METADATA").write_text(metadata)
    tool.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release, V{ptxas}'\n")
    tool.chmod(0o755)
    path = f"{site}:{Path(kcg.__file__).parents[1]}"
    return {"PYTHONPATH": path, "PATH": str(folder), "TRITON_PTXAS_PATH": str(tool)}
