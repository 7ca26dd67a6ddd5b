"""Time the whole `optimizer.apply` of Lanton, Muon and AdamW.

    KERAS_BACKEND=jax python benchmarks/step_time.py --model gpt2

All contestants take turns on the same gradients, each step compiled as in
`fit`: on JAX a jitted `stateless_apply` whose buffers are donated, on
TensorFlow `tf.function(jit_compile=True)`, on PyTorch eager.

"equal work" means that every hidden kernel is a 2-D variable and every bias
1-D: what Keras' Muon and torch.optim.Muon need to orthogonalize the same
matrices as Lanton. On the model's own variables Keras' Muon leaves the 3-D
attention kernels to AdamW.
"""

import dataclasses
import functools

import common

STEPS = 10  # Lanton's noise interval


class Weights:
    """Variables and gradients that several contestants share.

    Optimizers never see the weights' values, only the gradients: sharing
    them saves a copy per contestant.
    """

    def __init__(self, specs, dtype):
        self.specs = specs
        self.variables = common.make_variables(specs, dtype)
        gradients = common.make_gradients(specs, dtype)
        self.gradients = [common.rotate(gradients, by) for by in range(2)]
        self.values = None  # On JAX, where steps are functions of them.


class Contestant:
    """A step that moves its weights; called without arguments."""

    def __init__(self, weights):
        self.weights = weights
        self.count = 0

    def __call__(self):
        """Take one step; the gradients alternate between two orders."""
        self.count += 1
        return self.step(self.weights.gradients[self.count % 2])


class KerasStep(Contestant):
    """`optimizer.apply` of a Keras optimizer."""

    def __init__(self, weights, optimizer):
        super().__init__(weights)
        self.optimizer = optimizer
        optimizer.build(weights.variables)

    def prepare(self, backend):
        """Compile; after this the Keras variables may be without values."""
        make = {
            "jax": self._make_jax,
            "torch": self._make_torch,
            "tensorflow": self._make_tensorflow,
        }
        self.step = make[backend]()

    def _make_jax(self):
        self.state = [v.value for v in self.optimizer.variables]
        apply = common.jit_apply(self.optimizer)

        def step(gradients):
            weights = self.weights
            weights.values, self.state = apply(
                weights.values, self.state, gradients
            )
            return weights.values, self.state

        return step

    def _make_torch(self):
        import torch

        @torch.no_grad()
        def step(gradients):
            self.optimizer.apply(gradients, self.weights.variables)

        return step

    def _make_tensorflow(self):
        import tensorflow as tf

        @tf.function(jit_compile=True, autograph=False)
        def apply(gradients):
            self.optimizer.apply(gradients, self.weights.variables)

        def step(gradients):
            apply(gradients)
            return self.optimizer.iterations.value

        return step


class OptaxStep(Contestant):
    """`optax.contrib.muon`, jitted; AdamW on what is not hidden.

    Args:
        weights: The variables.
        defaults: As it comes, which orthogonalizes what has two axes.
    """

    def __init__(self, weights, *, defaults=False):
        super().__init__(weights)
        self.defaults = defaults

    def options(self):
        """The arguments of equal work."""
        import optax

        return {
            "weight_decay": 0.1,
            "consistent_rms": 0.2,
            "muon_weight_dimension_numbers": [
                optax.contrib.MuonDimensionNumbers() if spec.matrix else None
                for spec in self.weights.specs
            ],
        }

    def prepare(self, backend):
        """Compile and make the state."""
        import jax
        import optax

        options = {} if self.defaults else self.options()
        muon = optax.contrib.muon(1e-3, **options)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def apply(values, state, gradients):
            updates, state = muon.update(gradients, state, values)
            return optax.apply_updates(values, updates), state

        self.state = jax.jit(muon.init)(self.weights.values)

        def step(gradients):
            weights = self.weights
            weights.values, self.state = apply(
                weights.values, self.state, gradients
            )
            return weights.values, self.state

        self.step = step


class TorchStep(Contestant):
    """`torch.optim.Muon` on hidden kernels, `torch.optim.AdamW` elsewhere.

    Args:
        weights: The equal-work variables.
        float32: torch.optim.Muon orthogonalizes in bfloat16 whatever the
            weights are; True replaces that by its own lines in float32.
    """

    def __init__(self, weights, *, float32):
        super().__init__(weights)
        self.float32 = float32

    def prepare(self, backend):
        """Make the two optimizers."""
        import torch

        pairs = list(
            zip(self.weights.specs, self.weights.variables, strict=True)
        )
        self.parameters = [variable.value for _, variable in pairs]
        optimizers = (
            torch.optim.Muon(
                [v.value for spec, v in pairs if spec.matrix],
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                [v.value for spec, v in pairs if not spec.matrix]
            ),
        )
        module = torch.optim._muon
        original = module._zeropower_via_newtonschulz

        def step(gradients):
            for parameter, gradient in zip(
                self.parameters, gradients, strict=True
            ):
                parameter.grad = gradient
            if self.float32:
                module._zeropower_via_newtonschulz = zero_power_float32
            try:
                for optimizer in optimizers:
                    optimizer.step()
            finally:
                module._zeropower_via_newtonschulz = original
                for parameter in self.parameters:
                    parameter.grad = None

        self.step = step


def zero_power_float32(gradient, coefficients, steps, eps):
    """torch.optim.Muon's Newton-Schulz, without the cast to bfloat16."""
    import torch

    a, b, c = coefficients
    X = gradient.float()
    X = X.T if gradient.size(0) > gradient.size(1) else X
    X = X / X.norm().clamp(min=eps)
    for _ in range(steps):
        A = X @ X.T
        P = torch.addmm(A, A, A, beta=b, alpha=c)
        X = torch.addmm(X, P, X, beta=a)
    return X.T if gradient.size(0) > gradient.size(1) else X


def make_contestants(args):
    """Dict of contestants, and the weights that they share."""
    import keras

    from keras_lanton import Lanton
    from keras_lanton import NewtonSchulz

    specs = common.model_specs(
        args.model, quick=args.quick, large=args.gpu, narrow=args.narrow
    )
    equal = Weights([spec.equal_work() for spec in specs], args.dtype)
    # Equal work: the coefficients of the other optimizers.
    products = NewtonSchulz(dtype=args.ns_dtype, coefficients="jordan")
    lanton = functools.partial(Lanton, 1e-3, newton_schulz=products)
    makers = {
        "lanton": lambda: KerasStep(equal, lanton()),
        "lanton_without_noise": lambda: KerasStep(equal, lanton(noise=None)),
        "keras_muon": lambda: KerasStep(equal, keras.optimizers.Muon(1e-3)),
    }
    if args.backend == "jax":
        makers["optax_muon"] = lambda: OptaxStep(equal)
    if args.backend == "torch":
        makers["torch_muon"] = lambda: TorchStep(equal, float32=False)
        makers["torch_muon_float32"] = lambda: TorchStep(equal, float32=True)
        if args.ns_dtype != "bfloat16":
            makers["lanton_bfloat16"] = lambda: KerasStep(
                equal,
                lanton(
                    newton_schulz=dataclasses.replace(
                        products, dtype="bfloat16"
                    )
                ),
            )
    if not wanted(args, REAL):
        makers = {name: makers[name] for name in makers if name in args.only}
        return {name: make() for name, make in makers.items()}, (equal,)
    real = Weights(specs, args.dtype)
    makers["lanton_default"] = lambda: KerasStep(real, Lanton())
    if args.backend == "jax":
        makers["optax_muon_default"] = lambda: OptaxStep(real, defaults=True)
    makers["lanton_real"] = lambda: KerasStep(real, lanton())
    makers["keras_muon_real"] = lambda: KerasStep(
        real, keras.optimizers.Muon(1e-3)
    )
    makers["keras_adamw_real"] = lambda: KerasStep(
        real, keras.optimizers.AdamW(1e-3)
    )
    makers = {n: m for n, m in makers.items() if wanted(args, (n,))}
    return {name: make() for name, make in makers.items()}, (equal, real)


CPU_LLAMA = ("lanton", "keras_muon")
# Steps differ, by what is measured on each.
MEASURING = ("lanton", "lanton_default")
REAL = (
    "lanton_default",
    "optax_muon_default",
    "lanton_real",
    "keras_muon_real",
    "keras_adamw_real",
)
WHAT = {
    "lanton": "Lanton, equal work",
    "lanton_without_noise": "Lanton without noise measuring, equal work",
    "keras_muon": "keras.optimizers.Muon, equal work",
    "optax_muon": "optax.contrib.muon, equal work",
    "torch_muon": "torch.optim.Muon (bfloat16) + AdamW, equal work",
    "torch_muon_float32": "torch.optim.Muon in float32 + AdamW, equal work",
    "lanton_bfloat16": "Lanton, products in bfloat16, equal work",
    "lanton_default": "Lanton as it comes, the model's variables",
    "optax_muon_default": "optax.contrib.muon as it comes, the model's "
    "variables",
    "lanton_real": "Lanton with Muon's coefficients, the model's variables",
    "keras_muon_real": "keras.optimizers.Muon, the model's variables",
    "keras_adamw_real": "keras.optimizers.AdamW, the model's variables",
}


def wanted(args, names):
    """Whether any of these contestants takes part."""
    return not args.only or any(name in args.only for name in names)


def check_roles(contestant):
    """Equal work must be equal: Lanton has to see the same matrices."""
    found = [
        layer.path
        for layer in contestant.optimizer.layers
        if layer.role == "hidden"
    ]
    asked = [spec.path for spec in contestant.weights.specs if spec.matrix]
    if found != asked:
        raise RuntimeError(
            f"Lanton orthogonalizes {sorted(set(found) ^ set(asked))} "
            "differently"
        )


def by_position(times):
    """Medians over the intervals, one per position in the interval."""
    whole = len(times) // STEPS * STEPS
    if not whole:
        return times
    return [common.median(times[i:whole:STEPS]) for i in range(STEPS)]


def summarize(times, ns_dtype):
    """One row per contestant, and the figures."""
    rows, figures, cost = [], {}, {}
    for name, values in times.items():
        positions = by_position(values)
        middle = common.median(positions)
        # Like with like: on the model's variables, Lanton as it comes.
        as_it_comes = name.endswith(("_default", "_real"))
        base = "lanton_default" if as_it_comes else "lanton"
        # Where one step is like the other, the median is the fair figure.
        cost[name] = mean(positions) if len(values) >= STEPS else middle
        rows.append(
            {
                "contestant": WHAT[name],
                "steps": len(values),
                "s/step": cost[name],
                "median s": middle,
                "worst s": max(positions),
                "worst/median": max(positions) / middle,
                "Lanton / this": (
                    cost[base] / cost[name] if base in cost else None
                ),
            }
        )

    def ratio(figure, upper, lower):
        if upper in cost and lower in cost:
            figures[figure] = cost[upper] / cost[lower]

    ratio("lanton_over_keras_muon", "lanton", "keras_muon")
    ratio("lanton_over_optax_muon", "lanton", "optax_muon")
    if ns_dtype == "float32":
        ratio("lanton_over_torch_muon_float32", "lanton", "torch_muon_float32")
        ratio(
            "lanton_over_torch_muon_bfloat16", "lanton_bfloat16", "torch_muon"
        )
    else:
        ratio("lanton_over_torch_muon_bfloat16", "lanton", "torch_muon")
    # What users get: torch.optim.Muon takes matrices only.
    ratio("default_over_keras_muon", "lanton_default", "keras_muon_real")
    ratio("default_over_torch_muon", "lanton_default", "torch_muon")
    ratio("default_over_optax_muon", "lanton_default", "optax_muon_default")
    ratio("lanton_over_keras_muon_real", "lanton_real", "keras_muon_real")
    ratio("lanton_over_keras_adamw_real", "lanton_real", "keras_adamw_real")
    if len(times.get("lanton", ())) >= STEPS:
        positions = by_position(times["lanton"])
        figures["worst_over_median"] = max(positions) / common.median(positions)
        if "lanton_without_noise" in times:
            without = mean(times["lanton_without_noise"])
            figures["noise_cost"] = mean(positions) / without
    return rows, figures


def mean(values):
    """Arithmetic mean."""
    return sum(values) / len(values)


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--model", choices=common.MODELS, default="gpt2")
    parser.add_argument(
        "--steps",
        type=common.positive,
        help="steps of Lanton, a multiple of its noise interval of "
        f"{STEPS} for the worst step; default: {STEPS}, on GPU {5 * STEPS}",
    )
    parser.add_argument(
        "--rounds",
        type=common.positive,
        help="steps of the others; default: 2, on GPU 20",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of weights and gradients; default: float32, on GPU bfloat16",
    )
    parser.add_argument(
        "--warm-up",
        type=common.positive,
        help="steps of Lanton, on GPU of each, before the clock runs; XLA "
        "takes longer when it first enters a branch, such as that of a "
        f"measurement; default: {STEPS + 1}, every branch; on PyTorch 1",
    )
    parser.add_argument(
        "--ns-dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="Lanton's; default: float32, on GPU bfloat16",
    )
    parser.add_argument(
        "--gpu-kernels",
        action="store_true",
        help="Lanton with its own kernels for symmetric products",
    )
    parser.add_argument(
        "--narrow",
        action="store_true",
        help="GPT-2 small of width 24, with the forms that a GPU takes: the "
        "time that Python and the framework need to start the work, which a "
        "fast GPU waits for",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=WHAT,
        metavar="CONTESTANT",
        help=f"some of {', '.join(WHAT)}; default: all that the backend "
        f"has, for llama on CPU {' and '.join(CPU_LLAMA)}",
    )
    return parser


def main(argv=None):
    """Run the benchmark."""
    parser = make_parser()
    args = common.parse(parser, argv)
    if args.narrow and args.model != "gpt2":
        parser.error(f"--narrow is of gpt2. Received: --model {args.model}")
    args.steps = args.steps or (5 * STEPS if args.gpu else STEPS)
    args.rounds = args.rounds or (20 if args.gpu else 2)
    branches = args.gpu or args.backend != "torch"
    args.warm_up = args.warm_up or (STEPS + 1 if branches else 1)
    args.ns_dtype = args.ns_dtype or ("bfloat16" if args.gpu else "float32")
    args.dtype = args.dtype or ("bfloat16" if args.gpu else "float32")
    if args.model == "llama" and not args.gpu and not args.only:
        args.only = CPU_LLAMA
    if args.narrow:
        common.choose_as_on_gpu()
    if args.gpu_kernels:
        from keras_lanton.fast.gpu_kernels import use_gpu_kernels

        use_gpu_kernels()
    contestants, pools = make_contestants(args)
    for contestant in contestants.values():
        if hasattr(getattr(contestant, "optimizer", None), "layers"):
            check_roles(contestant)
    if args.backend == "jax":
        for pool in pools:
            pool.values = [v.value for v in pool.variables]
    for contestant in contestants.values():
        contestant.prepare(args.backend)
    times = common.interleave(
        contestants,
        args.steps,
        {
            **dict.fromkeys(contestants, args.rounds),
            **dict.fromkeys(MEASURING, args.steps),
            "lanton_without_noise": max(args.steps // 2, args.rounds),
        },
        warm_up=args.warm_up
        if args.gpu
        else dict.fromkeys(MEASURING, args.warm_up),
    )
    rows, figures = summarize(times, args.ns_dtype)
    common.write(
        args,
        "dispatch"
        if args.narrow
        else f"step_time_{args.model}" + "_kernels" * args.gpu_kernels,
        rows,
        figures,
        parameters=sum(spec.size for spec in pools[0].specs),
        dtype=args.dtype,
        ns_dtype=args.ns_dtype,
        gpu_kernels=args.gpu_kernels,
        warm_up=args.warm_up,
        compiled={
            "jax": "jitted stateless_apply, buffers donated",
            "torch": "eager, as in fit",
            "tensorflow": "tf.function(jit_compile=True), as in fit",
        }[args.backend],
        seconds=times,
    )


if __name__ == "__main__":
    main()
