"""What a GPU does in a compiled step of JAX, by its profiler."""

import collections
import pathlib
import tempfile

KERNELS = 40  # that are kept, by time


def profile_jax(log, name, run, steps=10):
    """The GPU's own time in a step, and the kernels that take it.

    Args:
        log: A `journal.Journal`.
        name: What is profiled.
        run: Function of a number of steps; it waits for them.
        steps: Number of steps.
    """
    import jax

    kernels = collections.defaultdict(lambda: [0, 0.0])
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(steps)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    planes = [p for p in data.planes if p.name.startswith("/device:GPU")]
    lines = [line for plane in planes for line in plane.lines]
    for line in lines:
        if not line.name.startswith("Stream"):
            continue
        for event in line.events:
            operation = str(dict(event.stats).get("hlo_op", ""))
            known = kernels[operation, event.name[:80]]
            known[0] += 1
            known[1] += event.duration_ns / 1e6
    ordered = sorted(kernels.items(), key=lambda item: -item[1][1])
    found = {
        "profile": name,
        "gpu_ms": sum(ms for _, ms in kernels.values()) / steps,
        "kernels": sum(count for count, _ in kernels.values()) / steps,
        "largest": [
            {
                "operation": operation,
                "kernel": kernel,
                "count": count / steps,
                "ms": round(ms / steps, 4),
            }
            for (operation, kernel), (count, ms) in ordered[:KERNELS]
        ],
    }
    log.result.setdefault("profiles", []).append(found)
    log.write()
    print(f"{name}: {found['gpu_ms']:.2f} ms of the GPU's own", flush=True)
