"""A process that has no PyTorch: what guides a search there, as one line of JSON."""

from __future__ import annotations

import json
import sys

from kcg.kernel.opts.schedule import RAW
from kcg.predictor.choice import AUTO, choose_predictor
from kcg.rl.policy import shipped_policy
from tests.env_tasks import observer_of
from tests.predictor.golden import largest_error

if __name__ == "__main__":
    assert "torch" not in sys.modules
    sys.modules["torch"] = sys.modules["torch_geometric"] = None  # type: ignore[assignment]
    observer = observer_of("matmul")
    space = observer.space
    predictor = choose_predictor(AUTO, space.target)
    found = predictor.predict(space, [action.schedule for action in space.actions(RAW)])
    (proposal,) = shipped_policy("CUDA").of(observer)([RAW])
    report = {
        "guides": type(predictor).__name__,
        "name": predictor.name,
        "different": len({one.log_runtime for one in found}),
        "error": largest_error(),
        "chances": sum(proposal.steps) + proposal.stop,
    }
    sys.stdout.write(json.dumps(report) + "\n")
