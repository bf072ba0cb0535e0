"""The client's handles after a fork."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from tests.architecture.parts import PARTS, portion

MADE = {
    "a producer": "Producer({**away})",
    "a consumer": "Consumer({**away, 'group.id': 'g'})",
    "an admin client": "AdminClient({**away})",
}

LET_GO_IN_A_CHILD = """
import gc, os, signal
from amends.kafka.handles import AdminClient, Consumer, Producer

away = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
gc.disable()
held = HANDLE
left = [HANDLE]
left.append(left)  # as an object and its own callbacks: only the garbage collector ends it
del left
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends a child that hangs
    del held
    gc.collect()
    os._exit(0)
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert ended == 0, ended
"""


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_a_forked_child_that_lets_go_of_its_parents_handle_does_not_hang(made: str) -> None:
    code = LET_GO_IN_A_CHILD.replace("HANDLE", made)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_handle_of_the_client_is_made_where_it_is_safe_after_a_fork() -> None:
    kinds, own = {"Producer", "Consumer", "AdminClient"}, portion("kafka") / "handles.py"
    called = []
    for path in (path for part in PARTS for path in portion(part).rglob("*.py") if path != own):
        tree = ast.parse(path.read_text("utf-8"))
        theirs = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("confluent_kafka")
            for name in node.names
            if name.name in kinds
        }
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called += [f"{path}: {func.id}" for func in calls if isinstance(func, ast.Name) and func.id in theirs]
        called += [f"{path}: {func.attr}" for func in calls if isinstance(func, ast.Attribute) and func.attr in kinds]
    assert not called
