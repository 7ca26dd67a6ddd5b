"""Time optimizer steps on a GPU, blocked and in throughput; say what it does.

    KERAS_BACKEND=torch python benchmarks/gpu_runs/steps.py

On the variables of GPT-2 small. *Blocked*: the clock waits for
the GPU at each step. *Throughput*: at the end of twenty steps, as `fit`
does. On PyTorch the profiler adds the GPU's own time and its kernels, and a
step is captured as a CUDA graph with its numbers frozen, which shows what a
captured step would take and whether it is equal to an eager one. On JAX its
profiler says the same, and the compiled program is kept beside the results.
"""

import collections
import contextlib
import functools
import gzip
import re
import statistics
import time
import types

import journal  # first: it puts the modules below on the path

# isort: split

import common
import models
import profiles
import step_time

BLOCKED = 2 * step_time.STEPS
BURSTS = 5
BURST = 2 * step_time.STEPS
KERNELS = 15  # of the profile, by time


def make_contestants(args):
    """Dict of prepared contestants, as their packages' defaults have them."""
    import keras

    from keras_lanton import Lanton

    specs = models.model_specs("gpt2_base_en", quick=args.pretend)
    real = step_time.Weights(specs, args.dtype)
    equal = step_time.Weights([s.equal_work() for s in specs], args.dtype)
    makers = {
        "Lanton()": lambda: step_time.KerasStep(real, Lanton()),
        "Lanton(noise=None)": lambda: step_time.KerasStep(
            real, Lanton(noise=None)
        ),
        "keras.optimizers.Muon": lambda: step_time.KerasStep(
            real, keras.optimizers.Muon(1e-3)
        ),
        "keras.optimizers.AdamW": lambda: step_time.KerasStep(
            real, keras.optimizers.AdamW(1e-3)
        ),
    }
    if args.backend == "torch":
        makers["torch.optim.Muon + AdamW"] = lambda: step_time.TorchStep(
            equal, float32=False
        )
    if args.backend == "jax":
        makers["optax.contrib.muon"] = lambda: step_time.OptaxStep(equal)
    makers = journal.chosen("--only", args.only, makers)
    found = {name: make() for name, make in makers.items()}
    for contestant in found.values():
        contestant.prepare(args.backend)
    return found


def burst(contestant, steps):
    """Seconds per step of so many steps between two waits."""
    common.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        found = contestant()
    common.synchronize(found)
    return (time.perf_counter() - started) / steps


def time_steps(log, contestants, quick):
    """Blocked steps and bursts of all contestants, in turns."""
    blocked, bursts = (1, 1) if quick else (BLOCKED, BURSTS)
    steps = 2 if quick else BURST
    warm_up = 1 if quick else step_time.STEPS + 1
    ready = {}
    for name, contestant in contestants.items():
        if log.attempt(name, warm_up_of, contestant, warm_up) is not None:
            ready[name] = contestant
    calls, none = dict.fromkeys(ready, blocked), dict.fromkeys(ready, 0)
    times = common.interleave(ready, calls, warm_up=none)
    rates = {name: [] for name in ready}
    for _ in range(bursts):
        for name, contestant in ready.items():
            rates[name].append(burst(contestant, steps))
    for name in ready:
        log.add(
            contestant=name,
            blocked_ms=1e3 * statistics.median(times[name]),
            throughput_ms=1e3 * statistics.median(rates[name]),
            blocked=[round(1e3 * s, 3) for s in times[name]],
            throughput=[round(1e3 * s, 3) for s in rates[name]],
        )


def warm_up_of(contestant, steps):
    """Seconds of the first steps, compiling included."""
    return burst(contestant, steps)


# -- PyTorch alone -----------------------------------------------------------


def profile(log, name, contestant, steps=step_time.STEPS):
    """The GPU's own time in a step, and the kernels that take it."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU]
    if torch.cuda.is_available():
        activities.append(kinds.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        burst(contestant, steps)
    kernels = collections.defaultdict(lambda: [0, 0.0])
    for event in found.events():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        # PyTorch's optimizers name the span of a whole step.
        if on_gpu and not event.name.startswith("Optimizer."):
            kernels[event.name][0] += 1
            kernels[event.name][1] += event.time_range.elapsed_us() / 1e3
    ordered = sorted(kernels.items(), key=lambda item: -item[1][1])
    log.add(
        profile=name,
        gpu_ms=sum(ms for _, ms in kernels.values()) / steps,
        kernels=sum(count for count, _ in kernels.values()) / steps,
        largest=[
            {"kernel": kernel[:120], "count": count / steps, "ms": ms / steps}
            for kernel, (count, ms) in ordered[:KERNELS]
        ],
    )


def peak_of_step(log, name, contestant):
    """Bytes that a step needs beyond what is there between steps."""
    import torch

    common.release()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    burst(contestant, step_time.STEPS)
    peak = torch.cuda.max_memory_allocated() - before
    log.add(memory=name, temporary_MB=peak / 1e6)


class Frozen:
    """`update_variables` of an optimizer, captured as a CUDA graph.

    The numbers that the host reads from the GPU are frozen at those of an
    eager step, so what is replayed is that one step.

    Args:
        optimizer: Built, with some steps behind it.
        gradients: Tensors that stay where they are.
        variables: Their variables.
    """

    def __init__(self, optimizer, gradients, variables):
        self.optimizer = optimizer
        self.gradients = gradients
        self.variables = variables
        self.kept = []  # what the graph reads from the host's memory

    def step(self):
        """What is captured."""
        self.optimizer.update_variables(
            self.gradients, self.variables, self.optimizer.learning_rate
        )

    def tensors(self):
        """All that a step writes."""
        variables = [*self.variables, *self.optimizer.variables]
        return [variable.value for variable in variables]

    @contextlib.contextmanager
    def reading(self, read):
        """Another `to_host`, and host memory that stays."""
        from keras_lanton.backends import backend

        usual = backend.to_host, backend.on_device

        def on_device(x):
            if x.device.type == "cpu":
                x = x.pin_memory()
                self.kept.append(x)
            return usual[1](x)

        backend.to_host = types.MethodType(read, usual[0])
        backend.on_device = on_device
        try:
            yield
        finally:
            backend.to_host, backend.on_device = usual

    def capture(self):
        """The graph, and what it should leave; the state is as before."""
        import torch

        seen = []

        def remember(usual, *tensors):
            seen.append([x.clone() for x in usual(*tensors)])
            return seen[-1]

        def repeat(usual, *tensors):
            return [x.clone() for x in seen[0]]

        before = [x.clone() for x in self.tensors()]
        with self.reading(remember):
            self.step()
        wanted = [x.clone() for x in self.tensors()]
        self.restore(before)
        graph = torch.cuda.CUDAGraph()
        with (
            self.reading(repeat),
            torch.cuda.graph(graph, capture_error_mode="relaxed"),
        ):
            self.step()
        self.restore(before)
        return graph, before, wanted

    def restore(self, values):
        """Write values into what a step writes."""
        for x, value in zip(self.tensors(), values, strict=True):
            x.copy_(value)


def capture_steps(log, name, contestant, phases):
    """Capture steps of consecutive phases; time and check their replays.

    Args:
        log: A `Journal`.
        name: Of the contestant.
        contestant: Of a Keras optimizer of this package.
        phases: Number of steps.
    """
    import torch

    weights = contestant.weights
    for phase in range(phases):
        frozen = Frozen(
            contestant.optimizer, weights.gradients[0], weights.variables
        )
        with torch.no_grad():
            started = time.perf_counter()
            graph, before, wanted = frozen.capture()
            common.synchronize()
            seconds = time.perf_counter() - started
            graph.replay()
            common.synchronize()
            differing = sum(
                int((x != y).sum())
                for x, y in zip(frozen.tensors(), wanted, strict=True)
            )
            replays = []
            for _ in range(BURST):
                frozen.restore(before)
                common.synchronize()
                started = time.perf_counter()
                graph.replay()
                common.synchronize()
                replays.append(time.perf_counter() - started)
            frozen.restore(before)
            contestant()  # on to the next phase
        log.add(
            captured=name,
            phase=phase,
            replay_ms=1e3 * statistics.median(replays),
            capture_ms=1e3 * seconds,
            differing_entries=differing,
        )
        del graph, before, wanted
        common.release()


def on_torch(log, contestants, quick):
    """What PyTorch alone can say."""
    import torch

    ours = "Lanton()", "Lanton(noise=None)"
    for name in contestants:
        log.attempt(f"profile of {name}", profile, log, name, contestants[name])
    if not torch.cuda.is_available():
        return
    for name in contestants:
        log.attempt(
            f"memory of {name}", peak_of_step, log, name, contestants[name]
        )
    for name, phases in zip(ours, (step_time.STEPS, 1), strict=True):
        if name not in contestants:
            continue
        log.attempt(
            f"capture of {name}",
            capture_steps,
            log,
            name,
            contestants[name],
            phases,
        )


# -- JAX alone ---------------------------------------------------------------


def on_jax(log, contestants):
    """The GPU's own time, the kernels, and the compiled programs."""
    for name, contestant in contestants.items():
        log.attempt(
            f"profile of {name}",
            profiles.profile_jax,
            log,
            name,
            functools.partial(burst, contestant),
        )
        if isinstance(contestant, step_time.KerasStep):
            log.attempt(f"text of {name}", keep_program, log, name, contestant)


def keep_program(log, name, contestant):
    """The compiled program's text, beside the results."""
    weights = contestant.weights
    lowered = contestant.apply.lower(
        weights.values, contestant.state, weights.gradients[0]
    )
    compiled = lowered.compile()
    kept = re.sub(r"\W+", "_", name).strip("_")
    path = log.path.with_name(f"{log.path.stem}_{kept}.hlo.gz")
    path.write_bytes(gzip.compress(compiled.as_text().encode()))
    memory = compiled.memory_analysis()
    log.add(program=name, temporary_MB=memory.temp_size_in_bytes / 1e6)


def main(argv=None):
    """Run the benchmark."""
    parser = journal.make_parser(__doc__, seconds=150)
    add = parser.add_argument
    add("--name", help="of the file; default: steps_BACKEND")
    add("--dtype", default="bfloat16", help="of weights and gradients")
    add("--only", nargs="+", help="contestants; default: all")
    args = journal.parse(parser, argv)
    log = journal.Journal(
        args, args.name or f"steps_{args.backend}", dtype=args.dtype
    )
    contestants = make_contestants(args)
    time_steps(log, contestants, args.pretend)
    if args.backend == "torch":
        on_torch(log, contestants, args.pretend)
    else:
        on_jax(log, contestants)


if __name__ == "__main__":
    main()
