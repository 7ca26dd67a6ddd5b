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

import functools

import common
import models

STEPS = 10  # Lanton's noise interval
# Contestants by name: what the table calls them.
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
    "lanton_cubic": "Lanton with the cubic coefficients, the model's variables",
    "keras_muon_real": "keras.optimizers.Muon, the model's variables",
    "keras_adamw_real": "keras.optimizers.AdamW, the model's variables",
}
CPU_LLAMA = ("lanton", "keras_muon")
# Steps differ, by what is measured on each.
MEASURING = ("lanton", "lanton_default")


class Weights:
    """Variables and gradients that several contestants share.

    Optimizers never see the weights' values, only the gradients: sharing
    them saves a copy per contestant.
    """

    def __init__(self, specs, dtype):
        import keras

        self.specs = specs
        self.variables = models.make_variables(specs, dtype)
        gradients = models.make_gradients(specs, dtype)
        self.gradients = [gradients, models.rotated(gradients)]
        self.values = None
        if keras.backend.backend() == "jax":  # steps are functions of them
            self.values = [v.value for v in self.variables]


def jit_apply(optimizer):
    """A jitted step of JAX: values, state and gradients to values and state.

    Buffers are donated in the order of the results, as `fit` has them: JAX
    gives the memory of a donated buffer to the first result of its shape.
    """
    import jax

    def apply(values, state, gradients):
        return optimizer.stateless_apply(state, gradients, values)

    return jax.jit(apply, donate_argnums=(0, 1))


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
        self.apply = jit_apply(self.optimizer)

        def step(gradients):
            weights = self.weights
            weights.values, self.state = self.apply(
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
    """Dict of contestants."""
    import keras

    from keras_lanton import Lanton
    from keras_lanton import NewtonSchulz

    specs = model_specs(args)

    @functools.cache
    def equal():
        return Weights([spec.equal_work() for spec in specs], args.dtype)

    @functools.cache
    def real():
        return Weights(specs, args.dtype)

    def lanton(weights, dtype=args.ns_dtype, **options):
        # Equal work: the coefficients of the other optimizers.
        products = NewtonSchulz(dtype=dtype, coefficients="jordan")
        return KerasStep(
            weights, Lanton(1e-3, newton_schulz=products, **options)
        )

    muon, adamw = keras.optimizers.Muon, keras.optimizers.AdamW
    makers = {
        "lanton": lambda: lanton(equal()),
        "lanton_without_noise": lambda: lanton(equal(), noise=None),
        "keras_muon": lambda: KerasStep(equal(), muon(1e-3)),
        "optax_muon": lambda: OptaxStep(equal()),
        "torch_muon": lambda: TorchStep(equal(), float32=False),
        "torch_muon_float32": lambda: TorchStep(equal(), float32=True),
        "lanton_bfloat16": lambda: lanton(equal(), dtype="bfloat16"),
        "lanton_default": lambda: KerasStep(real(), Lanton()),
        "optax_muon_default": lambda: OptaxStep(real(), defaults=True),
        "lanton_cubic": lambda: KerasStep(
            real(), Lanton(newton_schulz=NewtonSchulz(coefficients="cubic"))
        ),
        "keras_muon_real": lambda: KerasStep(real(), muon(1e-3)),
        "keras_adamw_real": lambda: KerasStep(real(), adamw(1e-3)),
    }
    return {name: makers[name]() for name in wanted(args)}


def model_specs(args):
    """The variables of the model that is asked for."""
    name = {"gpt2": "gpt2_base_en", "llama": "llama_100m"}[args.model]
    if args.model == "llama" and args.gpu:
        name = "llama_1.1b"
    if args.narrow and not args.quick:
        name = "narrow"
    return models.model_specs(name, quick=args.quick)


def wanted(args):
    """The names of the contestants that the backend has, in order."""
    names = args.only or list(WHAT)
    absent = {"jax": ("torch",), "torch": ("optax",)}
    prefixes = absent.get(args.backend, ("torch", "optax"))
    if args.backend != "torch" or args.ns_dtype == "bfloat16":
        prefixes += ("lanton_bfloat16",)
    return [name for name in names if not name.startswith(prefixes)]


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


def table(times):
    """One row per contestant."""
    rows = {}
    for name, values in times.items():
        positions = by_position(values)
        middle = common.median(positions)
        # Where one step is like the other, the median is the fair figure.
        many = len(values) >= STEPS
        rows[name] = {
            "contestant": WHAT[name],
            "steps": len(values),
            "s/step": sum(positions) / STEPS if many else middle,
            "median s": middle,
            "worst s": max(positions),
            "worst/median": max(positions) / middle,
        }
    for name, row in rows.items():
        # Like with like: on the model's variables, Lanton as it comes.
        as_it_comes = name.endswith(("_default", "_real"))
        base = rows.get("lanton_default" if as_it_comes else "lanton")
        row["Lanton / this"] = base and base["s/step"] / row["s/step"]
    return list(rows.values())


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add("--model", choices=("gpt2", "llama"), default="gpt2")
    add(
        "--steps",
        type=common.positive,
        help="steps of Lanton, a multiple of its noise interval of "
        f"{STEPS} for the worst step; default: {STEPS}, on GPU {5 * STEPS}",
    )
    add(
        "--rounds",
        type=common.positive,
        help="steps of the others; default: 2, on GPU 20",
    )
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of weights and gradients; default: float32, on GPU bfloat16",
    )
    add(
        "--warm-up",
        type=common.positive,
        help="steps of Lanton, on GPU of each, before the clock runs; XLA "
        "takes longer when it first enters a branch, such as that of a "
        f"measurement; default: {STEPS + 1}, every branch; on PyTorch 1",
    )
    add(
        "--ns-dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="Lanton's; default: float32, on GPU bfloat16",
    )
    add(
        "--narrow",
        action="store_true",
        help="GPT-2 small of width 24, with the forms that a GPU takes: the "
        "time that Python and the framework need to start the work, which a "
        "fast GPU waits for",
    )
    add(
        "--only",
        nargs="+",
        choices=WHAT,
        metavar="CONTESTANT",
        help=f"some of {', '.join(WHAT)}; default: all that the backend "
        f"has, for llama on CPU {' and '.join(CPU_LLAMA)}",
    )
    return parser


def parse(argv):
    """The arguments, with the defaults of the device."""
    parser = make_parser()
    args = common.parse(parser, argv)
    if args.narrow and args.model != "gpt2":
        parser.error(f"--narrow is of gpt2. Received: --model {args.model}")
    branches = args.gpu or args.backend != "torch"
    half = "bfloat16" if args.gpu else "float32"
    args.steps = args.steps or (5 * STEPS if args.gpu else STEPS)
    args.rounds = args.rounds or (20 if args.gpu else 2)
    args.warm_up = args.warm_up or (STEPS + 1 if branches else 1)
    args.ns_dtype = args.ns_dtype or half
    args.dtype = args.dtype or half
    if args.model == "llama" and not args.gpu and not args.only:
        args.only = CPU_LLAMA
    return args


def main(argv=None):
    """Run the benchmark."""
    args = parse(argv)
    if args.narrow:
        common.choose_as_on_gpu()
    contestants = make_contestants(args)
    for contestant in contestants.values():
        if hasattr(getattr(contestant, "optimizer", None), "layers"):
            check_roles(contestant)
        contestant.prepare(args.backend)
    some = {
        **dict.fromkeys(MEASURING, args.steps),
        "lanton_without_noise": max(args.steps // 2, args.rounds),
    }
    first = dict.fromkeys(WHAT if args.gpu else MEASURING, args.warm_up)
    times = common.interleave(
        contestants,
        {name: some.get(name, args.rounds) for name in contestants},
        {name: first.get(name, 1) for name in contestants},
    )
    common.write(
        args,
        "dispatch" if args.narrow else f"step_time_{args.model}",
        table(times),
        parameters=sum(spec.size for spec in model_specs(args)),
        dtype=args.dtype,
        ns_dtype=args.ns_dtype,
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
