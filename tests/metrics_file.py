"""What a training run left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kcg.predictor.tracking import METRICS


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line of the file of metrics, in order."""
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
