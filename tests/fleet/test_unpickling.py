"""What a fleet's processes unpickle: calls of fixed functions, and nothing that runs or changes anything else."""

from __future__ import annotations

import ast
import importlib.util
import os
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dask._expr import LLGExpr
from dask._task_spec import Task
from distributed.core import clean_exception, error_message
from distributed.protocol import pickle as dasks

from kcg.errors import DeviceError
from kcg.fleet import unpickling
from tests.commands import python
from tests.fleet import fixed_tasks

OPENED: list[str] = []


@pytest.fixture(autouse=True)
def tasks_of_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "_tasks", fixed_tasks.__name__)


def graph(function: Any, *arguments: Any) -> bytes:
    """A graph of one task, as Dask's client sends it."""
    return bytes(dasks.dumps(LLGExpr({"key": Task("key", function, *arguments)}, _determ_token="token")))


class Calls:
    """Pickles as a call of anything, with a state that is set on what it gave."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def test_a_graph_of_fixed_functions_comes_through_and_goes_on() -> None:
    read = unpickling.loads(graph(fixed_tasks.shout, b"abc"))
    task = read.__dask_graph__()["key"]
    assert task() == b"ABC"
    on_the_worker = unpickling.loads(dasks.dumps(task))
    assert (on_the_worker.key, on_the_worker.func, on_the_worker()) == ("key", task.func, b"ABC")


@pytest.mark.parametrize(
    "function",
    [
        os.system,
        print,
        eval,
        getattr,
        fixed_tasks._private,
        fixed_tasks.system,
        fixed_tasks.set_up,
        subprocess.Popen,
        Path.unlink,
    ],
)
def test_a_task_may_call_nothing_else(function: Any) -> None:
    with pytest.raises(TypeError):
        unpickling.loads(graph(function, b"abc"))


@pytest.mark.parametrize(
    "hostile",
    [
        Calls(os.system, "true"),
        Calls(LLGExpr._reconstruct, LLGExpr, {"key": Task("key", os.system, "true")}, "token", {}),
        Calls(LLGExpr._reconstruct, Task, {}, "token", {}),
        Calls(LLGExpr._reconstruct, LLGExpr, {}, "token", {}, state={"__dask_graph__": str}),
        Calls(fixed_tasks.shout, b"called while it is read"),
        Calls(Task("key", fixed_tasks.shout, b"called while it is read")),
        Calls(SystemExit, 3),
        Calls(compile, "1", "x", "eval"),
    ],
    ids=lambda hostile: getattr(hostile.reduced[0], "__qualname__", "instance"),
)
def test_nothing_runs_while_a_pickle_is_read(hostile: Calls) -> None:
    data = pickle.dumps(hostile)
    with pytest.raises((TypeError, AttributeError)):
        unpickling.loads(data)


def sets(module: str, name: str) -> bytes:
    """A pickle that sets an attribute of what it names, by the opcode BUILD."""
    return b"\x80\x02" + f"c{module}\n{name}\n".encode() + pickle.dumps((None, {"mark": "set"}), 2)[2:-1] + b"b."


def test_a_pickle_changes_no_function_and_no_class() -> None:
    pickle.loads(sets(fixed_tasks.__name__, "process"))
    assert vars(fixed_tasks.process).pop("mark") == "set"  # as it would be
    for module, name in (
        (fixed_tasks.__name__, "shout"),
        ("dask._expr", "LLGExpr"),
        ("dask._task_spec", "Task"),
        ("kcg.fleet.unpickling", "fixed"),
        ("kcg.errors", "DeviceError"),
        ("builtins", "ValueError"),
        ("tblib.pickling_support", "unpickle_traceback"),
        ("tblib", "Frame"),
    ):
        with pytest.raises((TypeError, AttributeError)):
            unpickling.loads(sets(module, name))
    assert not hasattr(fixed_tasks.shout, "mark") and not hasattr(unpickling.fixed, "mark")


def test_names_are_exact() -> None:
    for module, name in (
        (fixed_tasks.__name__, "os.system"),
        (fixed_tasks.__name__, "shout.__globals__"),
        (f"{fixed_tasks.__name__}.os", "system"),
        ("kcg.errors", "Path"),
        ("builtins", "Exception.__subclasses__"),
        ("dask._task_spec", "Task.__init__"),
    ):
        with pytest.raises(TypeError):
            unpickling.loads(b"\x80\x04" + pickle.dumps(module, 4)[11:-2] + pickle.dumps(name, 4)[11:-2] + b"\x93.")


def test_errors_arrive_as_text_and_without_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dasks, "loads", unpickling.loads)

    class Own(Exception):
        pass

    for raised in (ValueError("no kernel"), DeviceError("no device"), Own("not known elsewhere"), OSError(28, "full")):
        try:
            raise raised
        except Exception as error:
            message = error_message(error)
        _, got, _ = clean_exception(message["exception"].data, message["traceback"].data)
        assert str(raised.args[-1]) in str(got)
        assert type(got) in (type(raised), Exception)


def test_all_that_dask_unpickles_is_replaced() -> None:
    """Read off Dask's source: in each module that loads pickles, under the names by which it does."""
    root = Path(importlib.util.find_spec("distributed").origin).parent  # type: ignore[union-attr, arg-type]
    users = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if "tests" in parts or "utils_test" in parts:
            continue
        if not re.search(r"\bloads\b|pickle\.load|Unpickler", text := path.read_text()):
            continue
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
        names = {name for name in calls if name.endswith("pickle.loads") or name in ("loads", "pickle.load")}
        names |= {name for name in calls if name.endswith("Unpickler")}
        if names:
            users[".".join(parts)] = sorted(names)
    users.pop("distributed.protocol.pickle")  # which has the function that is replaced
    script = f"""
import importlib
from kcg.fleet import unpickling
import distributed.protocol.pickle
unpickling.install()
unpickling.install()
assert distributed.protocol.pickle.loads is unpickling.loads
for module, names in {users!r}.items():
    found = importlib.import_module(module)
    for name in names:
        value = found
        for part in name.split("."):
            value = getattr(value, part, None)
        another = name == "loads" and (value is None or value.__module__ == module)  # of one type, or of messages
        assert another or value in (unpickling.loads, unpickling._refuse), (module, name, value)
"""
    done = python("-W", "ignore", "-c", script)
    assert done.returncode == 0, done.stderr
    assert {"distributed.worker", "distributed.scheduler", "distributed.client", "distributed.core"} <= users.keys()


def test_messages_name_no_object_of_a_module() -> None:
    """Dask's own way of reading a map of a message finds `os.system` in a module that imports `os`."""
    script = """
import importlib
import msgpack
import pytest
from distributed.core import Status
from distributed.protocol import dumps, loads
core, serialize = (importlib.import_module(f"distributed.protocol.{name}") for name in ("core", "serialize"))
assert serialize.msgpack_decode_default(member := {
    "__Enum__": True, "__module__": "distributed.nanny", "__name__": "os", "name": "system"}).__name__ == "system"
from kcg.fleet import unpickling
unpickling.install()
assert loads(dumps({"status": Status.running, "seen": {1, 2}})) == {"status": Status.running, "seen": {1, 2}}
others = [
    {**member, "__module__": "distributed.core", "__name__": name, "name": attribute}
    for name, attribute in (("Status", "lookup"), ("Status", "mro"), ("Server", "handle_comm"), ("Status", "__class__"))
]
for hostile in (member, *others):
    message = msgpack.packb({"op": "update-graph", "annotations": {"x": hostile}})
    with pytest.raises((TypeError, KeyError)):
        core.loads([message])
with pytest.raises(TypeError):
    serialize.import_allowed_module("distributed")
"""
    done = python("-W", "ignore", "-c", script)
    assert done.returncode == 0, done.stderr


def test_all_that_decodes_messages_is_replaced() -> None:
    """Read off Dask's source: who gives msgpack a function for maps, and which one."""
    root = Path(importlib.util.find_spec("distributed").origin).parent  # type: ignore[union-attr, arg-type]
    hooks = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if "tests" in parts or "_hook" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                if keyword.arg in ("object_hook", "object_pairs_hook", "ext_hook"):
                    hooks.setdefault(".".join(parts), set()).add(ast.unparse(keyword.value))
    assert hooks == {"distributed.protocol.core": {"msgpack_decode_default", "_decode_default"}}
    assert "return msgpack_decode_default(obj)" in (root / "protocol" / "core.py").read_text()
