"""A small language model from a GGUF file, run the way tinygrad's own application runs one: weights are unpacked where
they are used, each block is a function that is compiled by itself, a prompt goes in pieces of any length up to
`--chunk` at a symbolic position, then one token at a time, and what was read before is not read again.

`python small_llm.py --model FILE.gguf [--max-context N] [--chunk N] [--tune FOLDER] [--benchmark N] [--text TEXT |
--serve PORT]`. The server speaks OpenAI's chat completions, one request after another, and prints its port (0: any that
is free). With a folder what a step computes is tuned when it is first asked for, by `kcg.autotuned`.
"""

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tinygrad import Tensor, TinyJit, Variable, function
from tinygrad.llm.gguf import gguf_load


class Block:
    """Attention with a cache and a gated feed-forward; queries and keys have norms where the file has these."""

    def __init__(self, settings, weights, place, context):
        self.epsilon, self.context = settings["attention.layer_norm_rms_epsilon"], context
        self.heads, self.kv_heads = settings["attention.head_count"], settings["attention.head_count_kv"]
        self.head, self.base = settings["attention.key_length"], settings["rope.freq_base"]
        begin = f"blk.{place}."
        self.weights = {name[len(begin) :]: w for name, w in weights.items() if name.startswith(begin)}
        self.cache = None

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, name, x):
        return rms_norm(x, self.weights[f"{name}.weight"], self.epsilon)

    def by_head(self, name, x, heads):
        split = self.linear(name, x).reshape(*x.shape[:2], heads, self.head).transpose(1, 2)
        return self.norm(f"{name}_norm", split) if f"{name}_norm.weight" in self.weights else split

    def rotated(self, x, start):
        cos, sin = self.turns[:, :, start : start + x.shape[2]].chunk(2, dim=-1)
        left, right = x.chunk(2, dim=-1)
        return (left * cos - right * sin).cat(right * cos + left * sin, dim=-1)

    def attention(self, x, start):
        length = x.shape[1]
        q = self.rotated(self.by_head("attn_q", x, self.heads), start)
        k = self.rotated(self.by_head("attn_k", x, self.kv_heads), start)
        v = self.linear("attn_v", x).reshape(*x.shape[:2], self.kv_heads, self.head).transpose(1, 2)
        written = self.cache[:, :, :, start : start + length].uop.store(k.stack(v).uop)
        known = Tensor(self.cache.uop.after(written))[:, :, :, : start + length]
        hidden = None
        if not isinstance(length, int):
            hidden = Tensor.full((1, 1, length, start + length), float("-inf"), buffer=False).triu(start + 1)
        seen = q.scaled_dot_product_attention(known[0], known[1], attn_mask=hidden, enable_gqa=True)
        return self.linear("attn_output", seen.transpose(1, 2).reshape(1, length, -1))

    def __call__(self, x, start):
        if self.cache is None:
            self.cache = Tensor.zeros(2, 1, self.kv_heads, self.context, self.head).contiguous().realize()
            steps = (-Tensor.arange(0, self.head, 2) / self.head * Tensor(self.base).log()).exp()
            angles = Tensor.arange(self.context).reshape(1, 1, -1, 1) * steps
            self.turns = angles.cos().cat(angles.sin(), dim=-1).contiguous().realize()

        @function(precompile=True, allow_implicit=True)
        def run(x, start):
            x = x + self.attention(self.norm("attn_norm", x), start)
            y = self.norm("ffn_norm", x)
            gated = self.linear("ffn_gate", y).silu().contiguous() * self.linear("ffn_up", y)
            return (x + self.linear("ffn_down", gated)).contiguous()

        return run(x, start)


def rms_norm(x, weight, epsilon):
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


class Model:
    def __init__(self, path, context, chunk, tuned=lambda forward: forward):
        stored, weights = gguf_load(path)
        begin = stored["general.architecture"] + "."
        settings = {name.removeprefix(begin): value for name, value in stored.items()}
        self.context, self.chunk = min(context, settings["context_length"]), chunk
        self.epsilon = settings["attention.layer_norm_rms_epsilon"]
        self.vocabulary = stored["tokenizer.ggml.tokens"]
        self.begin, self.end = stored["tokenizer.ggml.bos_token_id"], stored["tokenizer.ggml.eos_token_id"]
        weights = {name: weight.cast("float16") for name, weight in weights.items()}
        self.weights = weights
        self.blocks = [Block(settings, weights, i, self.context) for i in range(settings["block_count"])]
        self.known = []  # the tokens whose keys and values are in the caches
        self.prefill, self.decode = TinyJit(tuned(self.forward)), TinyJit(tuned(self.forward))

    def forward(self, tokens, start):
        x = self.weights["token_embd.weight"][tokens].float()
        for block in self.blocks:
            x = block(x, start)
        last = rms_norm(x[:, -1:], self.weights["output_norm.weight"], self.epsilon)
        return (last @ self.weights["output.weight"].T).argmax(-1).int().realize()

    def tokens(self, text):
        """The bytes of a text; of this vocabulary these are the ordinary tokens."""
        return [self.begin, *text.encode()]

    def text(self, tokens):
        return bytes(one if one < 256 else ord("?") for one in tokens).decode("latin-1")

    def generate(self, tokens):
        """The tokens that follow, until the context is full; `tokens` grows by each."""
        position, count = Variable("start_pos", 0, self.context - 1), Variable("toks", 1, self.chunk)
        given = Tensor(tokens + [0] * (self.context - len(tokens)), dtype="int32").reshape(1, -1).realize()
        same = [a == b for a, b in zip(tokens[:-1], self.known, strict=False)]
        start = same.index(False) if False in same else len(same)
        while len(tokens) < self.context:
            while start < len(tokens):
                length = min(self.chunk, len(tokens) - start)
                at = position.bind(start)
                if length == 1:
                    out = self.decode(Tensor([[tokens[start]]], dtype="int32").realize(), at)
                else:
                    out = self.prefill(given[:, at : at + count.bind(length)].contiguous(), at)
                start += length
            tokens.append(int(out.item()))
            self.known = tokens[:-1]
            yield tokens[-1]


class Chats(BaseHTTPRequestHandler):
    """OpenAI's chat completions, whole or streamed."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "small", "object": "model"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = self.server.model
        tokens = model.tokens("".join(f"{m['role']}: {m['content']}\n" for m in asked["messages"]))
        if len(tokens) >= model.context:
            self.answer({"error": {"message": f"{len(tokens)} tokens are too many", "type": "invalid"}}, status=400)
            return
        made = []
        about = {"id": "chat", "created": int(time.time()), "model": asked["model"]}
        if asked.get("stream"):
            self.head("text/event-stream")
        for token in model.generate(tokens):
            made.append(token)
            if asked.get("stream"):
                delta = {"index": 0, "delta": {"content": model.text([token])}, "finish_reason": None}
                chunk = {**about, "object": "chat.completion.chunk", "choices": [delta]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            if token == model.end or len(made) == asked.get("max_tokens"):
                break
        if asked.get("stream"):
            self.wfile.write(b"data: [DONE]\n\n")
            return
        message = {"role": "assistant", "content": model.text(made)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        self.answer({**about, "object": "chat.completion", "choices": [choice]})

    def head(self, kind, status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def answer(self, content, status=200):
        self.head("application/json", status)
        self.wfile.write(json.dumps(content).encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--max-context", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--tune", metavar="FOLDER")
    parser.add_argument("--benchmark", type=int)
    parser.add_argument("--text")
    parser.add_argument("--serve", type=int)
    given = parser.parse_args()
    tuned = []
    if given.tune:
        import kcg

        tuned = [kcg.autotuned(cache=given.tune, budget="30s")]
    model = Model(given.model, given.max_context, given.chunk, *tuned)
    if given.serve is not None:
        server = HTTPServer(("127.0.0.1", given.serve), Chats)
        server.model = model
        print(f"port {server.server_port}", flush=True)
        server.serve_forever()
    tokens = model.tokens(given.text or "")
    following = model.generate(tokens)
    for _ in range(given.benchmark or 8):
        before = time.perf_counter()
        next(following)
        if given.benchmark:
            print(f"{1e3 * (time.perf_counter() - before):8.1f} ms", file=sys.stderr)
    print("tokens", *tokens)


if __name__ == "__main__":
    main()
