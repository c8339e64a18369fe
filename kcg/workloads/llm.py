"""A language model as tinygrad's own application runs it from a GGUF file: one whole token, or a piece of a prompt.

Embedding, blocks, norm, the last product, and a token drawn from its logits (Gumbel-max: an argmax of what noise was
added to). The weights are packed, in any format of `kcg.workloads.packed_weights`, and random: nothing is downloaded.
Shapes, dtypes and the order of operations are those of `tinygrad/llm/model.py` at
a9069c177a9da9cca18593edf55acd2e6073cca6 under its defaults, so that a kernel here is the application's:
- weights are cast to float16, activations and the cache are float32;
- the position is a variable, and one kernel serves every position up to the context;
- keys and values are written into the cache where they belong, and read from there;
- a block is a `function` of its own, which tinygrad schedules apart: nothing is fused across blocks;
- of the steps of a run this is a later one: the table of rotations is there, as are the tables of some formats, and the
  counter of random numbers moves on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tinygrad import Tensor, UOp, Variable, dtypes, function

from kcg.compat.random_numbers import drawing_from
from kcg.errors import UnknownName
from kcg.workloads.packed_weights import FORMATS, PackedWeights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kcg.workloads.family import Step

MOST_TOKENS = 32  # of a prompt in one step
LEAST_TEMPERATURE = 1e-12  # also what the logarithm of a random number is kept above
MIXED = "q4_k_m"  # a file of Q4_K with the weights that matter most in Q6_K


@dataclass(frozen=True)
class LlmConfig:
    """Sizes of a model, the format of its file, and which step of it is taken."""

    file: str  # a name of FORMATS, or MIXED
    blocks: int
    width: int
    hidden: int  # of one expert where there are some
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    theta: float = 500000.0
    epsilon: float = 1e-5
    context: int = 1024
    position: int = 512  # of the first token of the step, bound to a variable
    tokens: int = 0  # of a prompt, bound to a variable too; 0: one token after others
    tied: bool = False  # the last product is with the embedding
    interleaved: bool = False  # queries and keys are stored with the two channels of a rotation beside each other
    query_norm: int = 0  # over how many channels queries and keys are normalised: a head's, all, or none
    experts: int = 0
    active: int = 0  # of them for a token
    weights_sum_to_one: bool = True  # those of a token's experts


LLAMA_1B = LlmConfig(
    file="f16", blocks=16, width=2048, hidden=8192, heads=32, kv_heads=8, head_size=64, vocabulary=128256,
    tied=True, interleaved=True,
)  # fmt: skip
QWEN_8B = LlmConfig(
    file="q8_0", blocks=36, width=4096, hidden=12288, heads=32, kv_heads=8, head_size=128, vocabulary=151936,
    theta=1e6, epsilon=1e-6, query_norm=128,
)  # fmt: skip
MOE_1B = LlmConfig(
    file=MIXED, blocks=16, width=1024, hidden=512, heads=16, kv_heads=16, head_size=64, vocabulary=50304, theta=1e4,
    query_norm=1024, experts=32, active=8, weights_sum_to_one=False,
)  # fmt: skip
MINI = LlmConfig(
    file=MIXED, blocks=2, width=256, hidden=512, heads=4, kv_heads=2, head_size=64, vocabulary=512, context=64,
    position=37, tied=True, interleaved=True,
)  # fmt: skip

PRESETS: dict[str, LlmConfig] = {
    "mini": MINI,
    "mini-moe": replace(MINI, hidden=256, tied=False, interleaved=False, query_norm=64, experts=4, active=2),
    "llama-1b-f16": LLAMA_1B,
    "llama-1b-q6_k": replace(LLAMA_1B, file="q6_k"),
    "llama-1b-q4_k_m": replace(LLAMA_1B, file=MIXED),
    "qwen-8b-q4_k_m": replace(QWEN_8B, file=MIXED),
    "qwen-8b-q8_0": QWEN_8B,
    "moe-1b-q4_k_m": MOE_1B,
    **{f"llama-1b-{kind}": replace(LLAMA_1B, file=kind) for kind in FORMATS if kind not in ("f32", "f16", "q6_k")},
    "mini-prompt": replace(MINI, position=20, tokens=MOST_TOKENS),
    "llama-1b-q4_k_m-prompt": replace(LLAMA_1B, file=MIXED, tokens=MOST_TOKENS),
    "qwen-8b-q4_k_m-prompt": replace(QWEN_8B, file=MIXED, tokens=MOST_TOKENS),
}
"""`mini` ones run on a CPU. The others are Llama 3.2 1B, Qwen3 8B, and OLMoE with half of its width and of its experts;
what follows the name of the model is the format of the file. A step takes one token, or as many of a prompt as
tinygrad's application gives it at most (`prompt`)."""


def auto_preset(device: str) -> str:
    """The preset that suits a tinygrad device such as `"CPU"` or `"CUDA"`."""
    return "mini" if device.split(":")[0].upper() == "CPU" else "llama-1b-q4_k_m"


def llm_config(preset: str) -> LlmConfig:
    """Raises `UnknownName`."""
    if preset not in PRESETS:
        raise UnknownName("preset", preset, list(PRESETS))
    return PRESETS[preset]


def weights_of(config: LlmConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape of every weight and its format, by its name in the file. Norms and routers are float32 in any file."""
    width, hidden, size = config.width, config.hidden, config.head_size
    queries, keys = config.heads * size, config.kv_heads * size
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,), "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width),
        "attn_output": (width, queries), "ffn_norm": (width,),
    }  # fmt: skip
    if config.query_norm:
        block |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (config.query_norm,))
    if config.experts:
        block["ffn_gate_inp"] = config.experts, width
        block |= dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (config.experts, hidden, width))
        block["ffn_down_exps"] = config.experts, width, hidden
    else:
        block |= {"ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}
    ends: dict[str, tuple[int, ...]] = {"token_embd": (config.vocabulary, width), "output_norm": (width,)}
    ends |= {} if config.tied else {"output": (config.vocabulary, width)}
    found = {f"{name}.weight": (shape, _kind_of(config, name)) for name, shape in ends.items()}
    for i in range(config.blocks):
        found |= {f"blk.{i}.{name}.weight": (shape, _kind_of(config, name, i)) for name, shape in block.items()}
    return found


def weights_bytes(config: LlmConfig) -> int:
    """What the weights take in a file, and on a device."""
    return sum(FORMATS[kind].bytes_of(prod(shape)) for shape, kind in weights_of(config).values())


def _kind_of(config: LlmConfig, name: str, block: int = 0) -> str:
    """The format of a weight. llama.cpp gives more bits, in a mixed file, to the last product, and in half of the
    blocks to the values and to what leaves the feed-forward: in the first and the last eighth, and every third."""
    if name.endswith("norm") or name == "ffn_gate_inp":
        return "f32"
    if config.file != MIXED:
        return config.file
    if name == ("token_embd" if config.tied else "output"):
        return "q6_k"
    eighth = config.blocks // 8
    more = block < eighth or block >= 7 * config.blocks // 8 or (block - eighth) % 3 == 2
    return "q6_k" if more and name.startswith(("attn_v", "ffn_down")) else "q4_k"


class Llm:
    """A model, and what stays between its steps."""

    def __init__(self, config: LlmConfig, *, seed: int | None = None) -> None:
        """Empty for scheduling, or with random weights and a random past where there is a `seed`."""
        self.config, self.kinds = config, weights_of(config)
        self.weights = PackedWeights(seed=seed)
        for name, (shape, kind) in self.kinds.items():  # now: inside of a block no device may be used
            self.weights(name, shape, kind)
        heads = (2, 1, config.kv_heads, config.context, config.head_size)
        self.caches = [self._state(f"blk.{i}.cache_kv", heads) for i in range(config.blocks)]
        self.counter, self.seed = (self._state(name, (2,), "uint32") for name in ("rng_counter", "rng_seed"))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """By name: the bytes of weights, tables, and what stays between steps."""
        return self.weights.tensors

    def _state(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        from kcg.workloads.family import generator, tensor_of

        if self.weights.seed is None:
            made = Tensor.empty(*shape, dtype=getattr(dtypes, dtype))
        else:
            rng = generator(self.weights.seed, name)
            drawn = rng.integers(0, 1 << 31, shape) if dtype == "uint32" else rng.normal(size=shape)
            made = tensor_of(drawn, dtype)
        self.weights.tensors[name] = made
        return made

    def __call__(self, rope: Tensor, tokens: Tensor, temperature: Tensor, start: UOp) -> tuple[Tensor, Tensor]:
        """The next token (1, 1), int32, and what the last block gives (1, tokens, width).

        `rope` is a table (context, head_size) of cosines and sines, `tokens` (1, any number) stand at `start` and
        after, `temperature` is of one element: the lower, the surer is the most likely token.
        """
        config = self.config
        x = _looked_up(self._weight("token_embd"), tokens).float()
        for i in range(config.blocks):
            x = self._block(i, x, rope, start)
        last = self._weight("token_embd" if config.tied else "output")
        logits = self._norm("output_norm", x[:, -1:]).linear(last.transpose())[:, -1, :]
        with drawing_from(self.seed, self.counter):
            uniform = Tensor.rand_like(logits)
        noise = uniform.maximum(LEAST_TEMPERATURE).log().neg().log()
        noisy = logits / temperature.maximum(LEAST_TEMPERATURE) - noise
        return noisy.argmax(-1, keepdim=True), x

    def _weight(self, name: str) -> Tensor:
        shape, kind = self.kinds[f"{name}.weight"]
        return self.weights(f"{name}.weight", shape, kind)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm over the last axis, computed in float32."""
        wide = x.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt()
        return normed.cast(x.dtype) * self._weight(name)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight = self._weight(name)
        if self.config.interleaved and name.endswith(("attn_q", "attn_k")):
            weight = _in_halves(weight, int(weight.shape[0]) // self.config.head_size)
        return x.linear(weight.transpose())

    def _block(self, i: int, x: Tensor, rope: Tensor, start: UOp) -> Tensor:
        name = f"blk.{i}"
        feed_forward = self._experts if self.config.experts else self._feed_forward

        def block(x: Tensor, start: UOp) -> Tensor:
            attended = x + self._attention(name, self._norm(f"{name}.attn_norm", x), rope, start, self.caches[i])
            return (attended + feed_forward(name, self._norm(f"{name}.ffn_norm", attended))).contiguous()

        made: Tensor = function(block, precompile=True, allow_implicit=True)(x, start)
        return made

    def _attention(self, name: str, x: Tensor, rope: Tensor, start: UOp, cache: Tensor) -> Tensor:
        """Of x (1, tokens, width) to all that came before, which it is written beside."""
        size, count = self.config.head_size, x.shape[1]
        q, k, v = (self._linear(f"{name}.attn_{letter}", x) for letter in "qkv")
        if self.config.query_norm not in (0, size):
            q, k = self._norm(f"{name}.attn_q_norm", q), self._norm(f"{name}.attn_k_norm", k)
        q, k, v = (made.reshape(1, count, -1, size).transpose(1, 2) for made in (q, k, v))
        if self.config.query_norm == size:
            q, k = self._norm(f"{name}.attn_q_norm", q), self._norm(f"{name}.attn_k_norm", k)
        turns = rope[start : start + count]
        q, k = _rotated(q, turns), _rotated(k, turns)
        place = cache[:, :, :, start : start + count, :]
        written = Tensor(cache.uop.after(place.uop.store(Tensor.stack(k, v).uop)))
        keys, values = (written[which, :, :, 0 : start + count, :] for which in (0, 1))
        mask = None
        if isinstance(count, UOp):
            every = Tensor.full((1, 1, count, start + count), float("-inf"), dtype=x.dtype, buffer=False)
            mask = every.triu(start + 1)
        mixed = q.scaled_dot_product_attention(keys, values, attn_mask=mask, enable_gqa=True)
        return self._linear(f"{name}.attn_output", mixed.transpose(1, 2).reshape(1, count, -1))

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        gate = self._linear(f"{name}.ffn_gate", x).silu().contiguous()
        return self._linear(f"{name}.ffn_down", gate * self._linear(f"{name}.ffn_up", x))

    def _experts(self, name: str, x: Tensor) -> Tensor:
        """The few experts that a router chooses for each token, weighed by its scores."""
        scores = self._linear(f"{name}.ffn_gate_inp", x)
        if not self.config.weights_sum_to_one:
            scores = scores.softmax(-1)
        chosen = _largest(scores, self.config.active)
        shares = scores.gather(-1, chosen)
        if self.config.weights_sum_to_one:
            shares = shares.softmax(-1)

        def of_chosen(part: str, inputs: Tensor) -> Tensor:
            """(1, tokens, chosen, outputs) of inputs (1, tokens, 1 or chosen, inputs)."""
            weight = self._weight(f"{name}.{part}")[chosen]
            return (inputs.unsqueeze(-2) @ weight.transpose(-1, -2)).contiguous().squeeze(-2)

        each = x.unsqueeze(2)
        between = (of_chosen("ffn_gate_exps", each).silu() * of_chosen("ffn_up_exps", each)).contiguous()
        return (of_chosen("ffn_down_exps", between) * shares.unsqueeze(-1)).sum(axis=2)


def _looked_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Rows of a table, as tinygrad's `nn.Embedding` selects them: a sum over all rows, of which one is not 0."""
    is_row = Tensor.arange(table.shape[0]) == tokens.unsqueeze(-1)
    return is_row.unsqueeze(-1).where(table, 0).sum(-2, dtype=table.dtype)


def _in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in the order of its first channels of all pairs, then its second ones."""
    inputs = weight.shape[-1]
    by_pair = weight.reshape(heads, weight.shape[0] // heads, -1)
    return by_pair.rearrange("n (pair two) i -> n (two pair) i", two=2).reshape(-1, inputs)


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    """x (1, heads, tokens, d) turned by `turns` (tokens, d): channel i and channel i + d/2 are a pair."""
    cos, sin = turns.reshape(1, 1, x.shape[2], -1).chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin).cat(second * cos + first * sin, dim=-1)
    # the application adds the channels that are not turned: none, but it has its schedule store what is turned as one
    return turned.cat(x[..., x.shape[-1] :], dim=-1)


def _largest(x: Tensor, count: int) -> Tensor:
    """The places (1, tokens, count), int32, of the largest elements of each row, the largest last.

    Each element is compared with all others, which is its rank, and its place is written where the rank says.
    """
    size = x.shape[-1]
    places = Tensor.arange(size).reshape(1, 1, size).cast(x.dtype).expand(x.shape)
    before = Tensor.arange(size).reshape(1, 1, size, 1) < Tensor.arange(size).reshape(1, 1, 1, size)
    one, other = x.unsqueeze(-1), x.unsqueeze(-2)
    rank = ((one > other) | ((one == other) & before)).sum(axis=-1).cast("int32")
    return x.const_like(0).scatter(-1, rank, places)[:, :, size - count :].cast("int32")


def rope_of(config: LlmConfig) -> NDArray[np.float64]:
    """The table of rotations: for each position of the context the cosines of its angles, then their sines."""
    import numpy as np

    pairs = config.head_size // 2
    angles = np.outer(np.arange(config.context), config.theta ** -(np.arange(pairs) / pairs))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def variables(config: LlmConfig) -> dict[str, UOp]:
    """The bound variables of a step: where it begins, and how many tokens of a prompt it takes."""
    found = {"start_pos": Variable("start_pos", 0, config.context - 1).bind(config.position)}
    return found | ({"toks": Variable("toks", 1, MOST_TOKENS).bind(config.tokens)} if config.tokens else {})


def step(
    model: Llm, rope: Tensor, text: Tensor, temperature: Tensor, *, start_pos: UOp, toks: UOp | None = None
) -> tuple[Tensor, Tensor]:
    """A step on one token (1, 1), or on `toks` tokens of a prompt (1, context) from `start_pos` on."""
    tokens = text if toks is None else text[:, start_pos : start_pos + toks]
    return model(rope, tokens.contiguous(), temperature, start_pos)


def whole(x: Tensor) -> Tensor:
    """What a step gives of each token, in memory of its own, with zeros in the place of those that a piece of a prompt
    has not: tinygrad reads back no tensor of symbolic size."""
    count = x.shape[1]
    return (x.pad((None, (0, MOST_TOKENS - count), None)) if isinstance(count, UOp) else x).contiguous()


def build(config: LlmConfig) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    """The token of a step, and what it is made of by name, without allocating anything."""
    model, rope = Llm(config), Tensor.empty(config.context, config.head_size)
    text = Tensor.empty(1, config.context if config.tokens else 1, dtype=dtypes.int32)
    token, _ = step(model, rope, text, Tensor.empty(1), **variables(config))
    return (token,), {**model.parameters, "rope": rope}


def runnable(config: LlmConfig, seed: int) -> Step:
    """A step on random weights with a random past, at temperature 0, which is the application's own.

    What varies is the table of rotations, which every block reads: weights are bytes. It gives what the last block
    gives of every token beside the next one, which alone would say little.
    """
    import numpy as np

    from kcg.workloads.family import Step, generator, tensor_of

    model = Llm(config, seed=seed)
    shape = (1, config.context if config.tokens else 1)
    text = tensor_of(generator(seed + 1, "tokens").integers(0, config.vocabulary, shape), "int32")
    temperature, rope = tensor_of(np.zeros(1), "float32"), tensor_of(rope_of(config), "float32")

    def run(*, rope: Tensor, **bound: UOp) -> tuple[Tensor, ...]:
        token, x = step(model, rope, text, temperature, **bound)
        return token, whole(x)

    return Step({"rope": rope, **variables(config)}, run)
