"""What a policy says of itself, and checkpoints as they are shared: predictors and policies."""

from __future__ import annotations

from kcg.cli import counted
from kcg.kernel.opts.action_features import ACTION_FEATURES
from kcg.predictor.publish import PREDICTOR, SHORT, CheckpointKind, Facts, facts, publisher_of
from kcg.rl.policy import FORMAT, Policy, read_policy


def _facts(policy: Policy, size: int) -> Facts:
    trunk = policy.net.trunk.settings
    return facts(
        policy.about,
        size,
        consists_of=f"a network of {counted(trunk.layers, 'layer')} of {trunk.hidden}, with heads",
        targets=(f"fingerprint {target[:SHORT]}" for target in policy.about.targets),
        own=[("actions", f"{len(ACTION_FEATURES)} features of each")],
    )


POLICY = CheckpointKind(
    noun="policy",
    format=FORMAT,
    file="policy.safetensors",
    task="reinforcement-learning",
    tag="reinforcement-learning",
    read=read_policy,
    facts=_facts,
    title=lambda about: "steps to fast schedules of tinygrad kernels",
    what="A policy of kcg, the kernel optimizer for tinygrad: for a kernel and a schedule it says how probable each "
    "next step is, or that none follows, and the log-speedup still to come. `kcg.rl.policy.read_policy` reads it.",
    limits="It proposes schedules of one kernel, and is wrong in places: what it leads to is to be measured and "
    "verified. It was trained on the targets above, and can only guess elsewhere.",
)
KINDS = (PREDICTOR, POLICY)
CHECKPOINTS = publisher_of(*KINDS)
