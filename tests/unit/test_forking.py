"""Interpreters that are forked for tests: nobody can tell that they were not executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.forking.client import ASKED_OFTEN, forked_interpreters

TELLS = """
import json, os, sys, threading
print(json.dumps({
    "name": __name__, "argv": sys.argv, "first": sys.path[0], "directory": os.getcwd(), "parent": os.getppid(),
    "knob": os.environ.get("KNOB"), "others": len(os.environ), "descriptors": len(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(), "said": sys.stdin.read(), "group": os.getpgrp() == os.getpid(),
    "preloaded": "torch" in sys.modules, "main": sys.modules["__main__"].__dict__ is globals(),
}))
"""


def told(arguments, **options):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, **options)
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.fixture(autouse=True, scope="module")
def is_asked_often():
    """Packages that other modules' tests import change variables: then interpreters are executed at first."""
    with forked_interpreters():
        for _ in range(ASKED_OFTEN):
            subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize("as_what", ["-c", "-m", "script"])
def test_it_is_what_an_executed_one_is(as_what, tmp_path, request):
    (tmp_path / "tells.py").write_text(TELLS)
    program = {"-c": ["-c", TELLS], "-m": ["-m", "tells"], "script": [str(tmp_path / "tells.py")]}[as_what]
    reading, writing = os.pipe()
    options = {"cwd": tmp_path, "env": {**os.environ, "KNOB": "é"}, "input": "a\nb", "pass_fds": [writing]}
    forked = told([*program, "x", "-c"], **options, start_new_session=True)
    # One that libraries read when they are loaded.
    options["env"]["OMP_NOTHING"] = str(tmp_path)
    executed = told([*program, "x", "-c"], **options, start_new_session=True)
    os.close(reading)
    os.close(writing)
    assert (forked.pop("preloaded"), executed.pop("preloaded")) == (True, False)
    executed["others"] -= 1
    assert forked == executed
    assert forked["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('why')", 1),
        ("def f(): 1 / 0\nf()", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os._exit(7)", 7),
        ("import atexit; atexit.register(print, 'last'); print('first')", 0),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()", 0),
        ("class A:\n    def __del__(self): print('gone')\na = A()", 0),
    ],
)
def test_it_ends_as_an_executed_one_does(code, returned):
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | more)
        for more in ({}, {"OMP_NOTHING": code})
    ]
    assert vars(done[0]) == vars(done[1])
    assert done[0].returncode == returned


def test_others_see_its_command_line_and_its_variables():
    command = [sys.executable, "-c", "input()", "--socket", "somewhere"]
    variables = os.environ | {"KNOB": "here"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables) as process:
        seen = psutil.Process(process.pid)
        assert seen.cmdline()[: len(command)] == command
        assert not any(seen.cmdline()[len(command) :])
        assert seen.environ() == variables
        assert seen.name() == os.path.basename(sys.executable)
        process.communicate(b"\n")


def test_what_it_starts_is_its_child_and_knows_nothing_of_it():
    grandchild = (
        "import faulthandler, json, os, sys; "
        "print(json.dumps([os.getppid(), sys.argv, sorted(os.listdir('/proc/self/fd'))[:-1], 'hidden' in globals()])); "
        "print(faulthandler.is_enabled())"
    )
    code = f"""
import atexit, faulthandler, os, subprocess, sys
hidden = open(os.devnull)
faulthandler.enable(hidden)
atexit.register(print, "not in the grandchild")
done = subprocess.run([sys.executable, "-c", {grandchild!r}, "y"], capture_output=True, text=True)
print(os.getpid(), done.stdout, done.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, said = done.stdout.split(maxsplit=1)
    parent, arguments, descriptors, knows = json.loads(said.split("\n")[0])
    assert (parent, arguments, descriptors, knows) == (int(pid), ["-c", "y"], ["0", "1", "2"], False)
    assert said.split("\n")[1] == "False"
    assert said.count("not in the grandchild") == 1


def test_who_has_no_descriptor_left_starts_one_that_has_its_own():
    """Found under load: it ended with 255, as nothing that was executed does."""
    grandchild = "import os, resource; print(len(os.listdir('/proc/self/fd')), resource.getrlimit(7)[0])"
    code = f"""
import os, resource, subprocess, sys
assert resource.RLIMIT_NOFILE == 7
resource.setrlimit(7, (40, resource.getrlimit(7)[1]))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
# What subprocess.Popen takes itself.
os.close(taken.pop())
os.close(taken.pop())
print(subprocess.run([sys.executable, "-c", {grandchild!r}]).returncode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "40", "0"], done.stderr


def test_it_becomes_another_one():
    another = "import os, sys; print(os.getpid(), sys.argv, 'hidden' in globals(), os.read(int(sys.argv[1]), 9))"
    code = f"""
import atexit, os, sys
hidden = 1
atexit.register(print, "never")
reading, writing = os.pipe()
os.set_inheritable(reading, True)
os.write(writing, b"passed on")
print(os.getpid(), flush=True)
os.execv(sys.executable, [sys.executable, "-c", {another!r}, str(reading)])
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    pid, rest = said.split("\n", 1)
    assert rest.startswith(f"{pid} ['-c', '")
    assert rest.endswith("False b'passed on'\n")


def test_draws_differ():
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    found = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(3)}
    assert len(found) == 3


@pytest.mark.executed
def test_a_marked_test_s_interpreters_are_executed():
    code = "import sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
