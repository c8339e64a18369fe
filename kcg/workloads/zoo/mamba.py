"""Mamba: a selective state space in place of attention (Gu and Dao, 2023).

The recurrence h[t] = exp(A·Δ[t])·h[t-1] + Δ[t]·B[t]·x[t], y[t] = C[t]·h[t] is linear in h, so a prompt is cut into
chunks: within one, and then among the chunks, every place takes the sum over all earlier ones, each decayed by its
distance. All chunks are done at once, in a few kernels instead of one a token. Decays are exponentials of differences
that are never positive: nothing overflows. Decoding is one step of the recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear, rms_norm

ABOUT = "Mamba, the next token's logits: of a prompt, or of one step"


@dataclass(frozen=True)
class Config:
    """Sizes of a forward pass over `tokens` tokens in chunks of `chunk`, or of one step with the states given."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512  # 1: a step
    chunk: int = 16
    layers: int = 2  # of equal shape: more of them are the same kernels again
    width: int = 768
    state: int = 16
    window: int = 4  # of the convolution
    vocabulary: int = 50280

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def rank(self) -> int:
        """Of the projection that gives Δ."""
        return -(-self.width // 16)


PRESETS = {
    "mini": Config(tokens=24, chunk=8, width=48, state=8, vocabulary=320),
    "mini-f16": Config(dtype="float16", batch=2, tokens=48, layers=1, width=64, vocabulary=384),
    "mini-odd": Config(batch=3, tokens=35, chunk=7, width=49, state=5, window=3, vocabulary=273),
    "mini-step": Config(batch=5, tokens=1, width=80, vocabulary=280),
    "130m": Config(dtype="float16", batch=2),
    "370m": Config(dtype="bfloat16", tokens=1024, chunk=32, width=1024),
    "790m": Config(batch=2, tokens=256, width=1536),
    "1.4b": Config(dtype="bfloat16", tokens=320, chunk=20, width=2048),
    "2.8b": Config(dtype="float16", tokens=192, chunk=12, width=2560),
    "130m-b8": Config(batch=8, tokens=128, chunk=8),
    "130m-step-b64": Config(dtype="bfloat16", batch=64, tokens=1),
    "790m-step-b16": Config(dtype="float16", batch=16, tokens=1, width=1536),
    "2.8b-step": Config(dtype="float32", tokens=1, width=2560),
}


def inputs(config: Config) -> dict[str, Input]:
    wanted = {"tokens": Input((config.batch, config.tokens), "int32", below=config.vocabulary)}
    for i in range(config.layers if config.tokens == 1 else 0):
        wanted[f"earlier_{i}"] = Input((config.batch, config.inner, config.window - 1), config.dtype)
        wanted[f"state_{i}"] = Input((config.batch, config.inner, config.state))
    return wanted


def run(p: Parameters, config: Config, *, tokens: Tensor, **states: Tensor) -> tuple[Tensor, ...]:
    """Logits (batch, vocabulary) of the token after the last; after one step also the new state of each layer."""
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    x = table[tokens].contiguous()
    new_states = []
    for i in range(config.layers):
        name = f"layers.{i}"
        both = linear(p, f"{name}.in_proj", rms_norm(p, f"{name}.norm", x), 2 * config.inner, bias=False).contiguous()
        u, gate = both.transpose(1, 2).chunk(2, dim=1)  # (batch, inner, tokens)
        u = _convolved(p, config, name, u, states.get(f"earlier_{i}"))
        delta, b, c = _selected(p, config, name, u)
        a_log = p(f"{name}.A_log", config.inner, config.state, fan_in=4, around=1.0, dtype="float32")
        a = (-a_log.exp()).contiguous()
        if config.tokens == 1:
            h = ((delta * a).exp() * states[f"state_{i}"] + delta * u * b).contiguous()
            new_states.append(h)
            y = (h * c).sum(-1, keepdim=True)
        else:
            y = _scanned(config, u, delta, a, b, c)
        y = y + p(f"{name}.D", config.inner, around=1.0).unsqueeze(-1) * u
        y = (y * gate.cast(dtypes.float32).silu()).cast(x.dtype).transpose(1, 2).contiguous()
        x = (x + linear(p, f"{name}.out_proj", y, config.width, bias=False)).contiguous()
    logits = rms_norm(p, "norm", x[:, -1]).linear(table.transpose() * config.width**-0.5)
    return logits, *new_states


def _convolved(p: Parameters, config: Config, name: str, u: Tensor, earlier: Tensor | None) -> Tensor:
    """u (batch, inner, tokens) mixed with the few places before each, which are zero at the start of a prompt."""
    weight, bias = p(f"{name}.conv1d.weight", config.inner, 1, config.window), p(f"{name}.conv1d.bias", config.inner)
    u = u.pad((None, None, (config.window - 1, 0))) if earlier is None else earlier.cat(u, dim=2)
    return u.conv2d(weight, bias, groups=config.inner).silu().contiguous()


def _selected(p: Parameters, config: Config, name: str, u: Tensor) -> list[Tensor]:
    """What each token chooses, in float32: Δ (batch, inner, tokens), B and C (batch, tokens, state)."""
    rows = u.transpose(1, 2)
    sizes = [config.rank, config.state, config.state]
    low, b, c = linear(p, f"{name}.x_proj", rows, sum(sizes), bias=False).contiguous().split(sizes, dim=-1)
    p(f"{name}.dt_proj.bias", config.inner, around=-2.0)  # steps are short at first
    delta = linear(p, f"{name}.dt_proj", low, config.inner).cast(dtypes.float32).softplus().transpose(1, 2)
    return [delta.contiguous(), b.cast(dtypes.float32), c.cast(dtypes.float32)]


def _scanned(config: Config, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The recurrence over a whole prompt, y (batch, inner, tokens)."""
    chunks, size = config.tokens // config.chunk, config.chunk
    shape = (config.batch, config.inner, chunks, size)
    a = a.reshape(1, config.inner, 1, 1, config.state)
    b, c = (x.reshape(config.batch, 1, chunks, size, config.state) for x in (b, c))
    since = delta.reshape(shape).cumsum(3).contiguous()  # the start of the chunk
    driven = (delta * u).reshape(*shape, 1)
    # what a chunk leaves behind: (batch, inner, chunks, state)
    left = (((since[..., -1:] - since).unsqueeze(-1) * a).exp() * driven * b).sum(3).contiguous()
    # what it finds: all that earlier chunks left, decayed by what lies between
    total = since[..., -1].cumsum(2).contiguous()
    before = total - since[..., -1]
    gap = (before.unsqueeze(3) - total.unsqueeze(2)).relu().unsqueeze(-1)  # (batch, inner, chunk, earlier chunk, 1)
    earlier = Tensor.ones(chunks, chunks, buffer=False).tril(-1).reshape(1, 1, chunks, chunks, 1)
    found = ((gap * a).exp() * earlier * left.unsqueeze(2)).sum(3).contiguous()
    carried = ((since.unsqueeze(-1) * a).exp() * found.unsqueeze(3) * c).sum(-1).contiguous()
    # within a chunk, every place takes from those up to it
    gap = (since.unsqueeze(4) - since.unsqueeze(3)).relu().unsqueeze(-1)  # (batch, inner, chunk, to, from, 1)
    upto = Tensor.ones(size, size, buffer=False).tril().reshape(1, 1, 1, size, size, 1)
    within = (gap * a.unsqueeze(4)).exp() * c.unsqueeze(4) * (driven * b).unsqueeze(3) * upto
    return (carried + within.sum((4, 5))).contiguous().reshape(config.batch, config.inner, config.tokens)
