"""A language model from a GGUF file, as a program and as a server, with a result in place: its tokens are plain
tinygrad's, whatever the context, the lengths of prompts and their pieces are."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.compat.device import prepare
from kcg.errors import ExitCode
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.report.result import write_result
from kcg.types import RegionResult, Result
from kcg.workloads.script import Form, Program, capture_program
from tests.commands import python
from tests.gguf_file import SmallModel
from tests.optimize_run import optimized
from tests.sample_result import sample_result
from tests.small_result import SCRIPTS, finalist, unlike_baseline
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

SCRIPT = SCRIPTS / "small_llm.py"
CONTEXT, CHUNK = 64, 8
SHORT, LONG = "Hello you", "A longer prompt than the one that was recorded"
OPENED = """
import runpy, sys
from kcg.compat.device import prepare
from kcg.errors import ExitCode
prepare(__import__("os").environ["DEV"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""  # a program where plain tinygrad may not open its CPU
RECORDED = ("--max-context", str(CONTEXT), "--chunk", str(CHUNK))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = SmallModel(format="q8_0", architecture="qwen3", blocks=1, width=32, hidden=64, heads=2, kv_heads=1)
    return small.write(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def result(model: Path) -> Result:
    """Another schedule than tinygrad's own for each kernel of a short chat that has one."""
    prepare(os.environ["DEV"])
    facts = detect(os.environ["DEV"], ACTION_SPACE_VERSION)
    program = Program(Form.SCRIPT, str(SCRIPT), ("--model", str(model), "--text", SHORT, *RECORDED))
    workload = capture_program(program, dev=os.environ["DEV"]).workload
    assert not workload.left_out and {name for call in workload.calls for name, _ in call.variables} == {
        "start_pos",
        "toks",
    }
    regions = []
    for call in workload.calls:
        space = KernelSpace(call.region, facts[0])
        base = finalist(space, space.baseline())
        try:
            regions.append(
                RegionResult(call.region, call.calls, base, finalist(space, unlike_baseline(space)), 1, "improved")
            )
        except AssertionError:
            regions.append(RegionResult(call.region, call.calls, base, base, 1, "kept"))
    assert sum(row.outcome == "improved" for row in regions) > len(regions) / 2
    return replace(
        sample_result(), target=facts[0], toolchain=facts[1], regions=tuple(regions), recomputes=(), expectations=()
    )


@pytest.fixture(scope="module")
def stored(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result") / "RESULT.json"
    write_result(result, path)
    return path


class Plain:
    """The model in this process, as tinygrad schedules it."""

    def __init__(self, path: Path) -> None:
        self._model = runpy.run_path(str(SCRIPT))["Model"](path, CONTEXT, CHUNK)

    def tokens(self, text: str, count: int) -> list[int]:
        """Those of the text, and so many that follow."""
        given = self._model.tokens(text)
        following = self._model.generate(list(given))
        return [*given, *(next(following) for _ in range(count))]

    def reply(self, content: str, count: int) -> str:
        """What the server answers, of so many tokens."""
        given = len(self._model.tokens(f"user: {content}\n"))
        text: str = self._model.text(self.tokens(f"user: {content}\n", count)[given:])
        return text


@pytest.fixture(scope="module")
def plain(model: Path) -> Plain:
    prepare(os.environ["DEV"])
    return Plain(model)


def kernels_served(lines: str) -> tuple[int, int]:
    (found,) = re.findall(r"(\d+) of (\d+) kernels served", lines)
    return int(found[0]), int(found[1])


@contextmanager
def server(*command: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server that this command starts, and its process, which is ended as by Ctrl-C."""
    words = [sys.executable, *map(str, command), "--serve", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().removeprefix('port ').strip()}/v1", process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def test_a_client_of_a_server_gets_plain_tinygrads_tokens(stored: Path, model: Path, plain: Plain) -> None:
    """Prompts of other lengths and at other positions than were recorded, whole answers and streams."""
    from openai import OpenAI

    with server("-m", "kcg.run", "--result", stored, SCRIPT, "--model", model, *RECORDED) as (address, process):
        client = OpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENCE_S)
        assert [one.id for one in client.models.list()] == ["small"]
        for content, count in ((SHORT, 4), (LONG, 6), (LONG[:7], 40)):
            asked = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": count}
            whole = client.chat.completions.create(**asked)
            stream = client.chat.completions.create(**asked, stream=True)
            pieces = [chunk.choices[0].delta.content for chunk in stream]
            assert whole.choices[0].message.content == "".join(pieces) == plain.reply(content, count)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    served, asked_for = kernels_served(said)
    assert served == asked_for and "not served" not in said, said


@pytest.mark.parametrize(
    "others", [("--max-context", "96", "--chunk", str(CHUNK)), ("--max-context", str(CONTEXT), "--chunk", "5")]
)
def test_with_another_context_or_chunk_what_does_not_fit_is_tinygrads_and_named(
    others: tuple[str, ...], stored: Path, model: Path, plain: Plain
) -> None:
    done = python("-m", "kcg.run", "--result", stored, SCRIPT, "--model", model, *others, "--text", LONG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == [str(token) for token in plain.tokens(LONG, 8)]
    served, asked_for = kernels_served(done.stderr)
    assert 0 < served < asked_for
    assert "kcg: not served, since the program did not ask for them: " in done.stderr


def test_a_server_tunes_itself_and_the_next_one_uses_what_is_kept(model: Path, plain: Plain, tmp_path: Path) -> None:
    """`kcg.autotuned` around what its `TinyJit`s capture. Its budget may bring nothing on a busy machine; what it kept
    is found."""
    from openai import OpenAI

    ran = []
    for _ in range(2):
        with server("-c", OPENED, SCRIPT, "--model", model, *RECORDED, "--tune", tmp_path) as (address, process):
            client = OpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENCE_S)
            for content, count in ((SHORT, 4), (LONG, 6)):
                asked = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": count}
                answer = client.chat.completions.create(**asked)
                assert answer.choices[0].message.content == plain.reply(content, count)
            process.send_signal(signal.SIGINT)
            ran.append(process.communicate(timeout=PATIENCE_S)[1])
    assert [lines.count("looking at which kernels") for lines in ran] == [2, 2], "of prompts, and of single tokens"
    assert "timing" in ran[0] and "timing" not in ran[1]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (slice(0), "raised struct.error: unpack requires a buffer"),  # nothing
        (slice(3000), r"raised \w+Error"),  # as far as the vocabulary
        (slice(-20_000), r"raised ValueError: size mismatch"),  # a part of the last tensors
        (b"no file of weights" * 100, "raised ValueError: Invalid GGUF format!"),
    ],
    ids=["empty", "header", "weights", "other"],
)
def test_a_file_that_tinygrad_refuses_is_one_line(part: slice | bytes, said: str, model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(part if isinstance(part, bytes) else model.read_bytes()[part])
    done = optimized("--report", tmp_path / "out", "--budget", "30s", SCRIPT, "--", "--model", bad)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == ExitCode.USAGE and re.search(said, last), done.stderr
    assert last.startswith("kcg: ") and "before it ran a tinygrad kernel that can be recorded" in last
    assert "Traceback" not in done.stderr and not (tmp_path / "out" / "RESULT.json").exists()
