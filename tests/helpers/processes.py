"""Cases in processes of their own: a test file as a script.

The number of devices is fixed when a backend starts.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
from concurrent import futures

TESTS = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 300  # seconds


def environment(**variables):
    """Of a process that imports the package and the helpers."""
    given = os.environ.get("PYTHONPATH", "")
    search = os.pathsep.join([str(TESTS.parent), str(TESTS), given])
    return {**os.environ, "PYTHONPATH": search, **variables}


def launch(file, *arguments, devices):
    """Starts `python FILE ARGUMENTS...` on that many CPU devices of JAX."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", file, *arguments],
        env=environment(
            # A busy machine may keep a device waiting for longer than XLA's
            # 40 seconds, after which it aborts. Compiling takes most of the
            # time: half of it without passes.
            XLA_FLAGS=f"--xla_force_host_platform_device_count={devices} "
            "--xla_backend_optimization_level=0 "
            "--xla_cpu_collective_call_terminate_timeout_seconds=250",
            JAX_PLATFORMS="cpu",
            # Programs of several devices that come from JAX' cache can wait
            # for each other for ever.
            **({"JAX_ENABLE_COMPILATION_CACHE": "0"} if devices > 1 else {}),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # else it may stand within a line of results
        text=True,
    )


def outcome(process):
    """What it printed last that is JSON, however much the backends print."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # it then prints where it stands
        output, errors = process.communicate()
    assert process.returncode == 0, f"{output[-1000:]}\n{errors[-10_000:]}"
    found = [line for line in output.splitlines() if line[:1] in ("{", "[")]
    return json.loads(found[-1])


def outcomes(processes):
    """Of processes that wait for each other: read side by side.

    Raises:
        ExceptionGroup: Where some fail: one of them may be the others' cause.
    """
    with futures.ThreadPoolExecutor(len(processes)) as readers:
        found = [readers.submit(outcome, one) for one in processes]
    failed = [one.exception() for one in found if one.exception()]
    if failed:
        raise ExceptionGroup("processes", failed)
    return [one.result() for one in found]


def assert_killed(processes):
    """The first kills itself; the others then end, as by a launcher."""
    first, *others = processes
    try:
        _, errors = first.communicate(timeout=LIMIT)
    finally:
        for process in processes:
            process.kill()
    for process in others:
        process.communicate()
    assert first.returncode == -signal.SIGKILL, errors[-10_000:]
