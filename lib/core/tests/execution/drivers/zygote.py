"""Forks driver processes on demand, so that a crash test pays for Python's imports once and not per kill.

Arguments name further modules to import.

Reads one JSON request a line on stdin, answers one a line on stdout: ``start`` (prefix, env, out, err) -> pid,
``wait`` (pid, timeout) -> exit code, negative for a signal, null when it still runs.
"""

import importlib
import json
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import diamond
import fray  # noqa: F401  (imported by every driver anyway)
import marin.execution.entry  # noqa: F401

for module in sys.argv[1:]:
    importlib.import_module(module)


def child(request):
    os.environ.update(request["env"])
    for number, path in ((1, request["out"]), (2, request["err"])):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    code = 70
    try:
        code = diamond.main(request["prefix"])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid, timeout_s):
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.003)


while line := sys.stdin.readline():
    request = json.loads(line)
    if request["op"] == "start":
        pid = os.fork()
        if pid == 0:
            child(request)
        answer = pid
    else:
        answer = wait(request["pid"], request["timeout_s"])
    print(json.dumps(answer), flush=True)
