"""Hold the estimators of the nuclear norm against exact values.

    KERAS_BACKEND=jax python benchmarks/noise.py

Every case is a spectrum: `noise` (Gaussian), `lr8_x` (rank 8 with the
fraction x of the energy, plus noise), `rk64` (rank 64), `powp` (singular
values i^-p), each square and wide, over several random matrices. Rates of
layers are ratios of these estimates, so what counts is that estimate / true
is the same everywhere: the spread is its largest over its smallest mean, over
all shapes and cases; 1 is fair.
"""

import functools

import common
import numpy as np

SHAPES = ((768, 768), (768, 3072))
QUICK_SHAPES = ((96, 96), (96, 384))
CASES = (
    "noise",
    "lr8_.5",
    "lr8_.9",
    "rk64",
    "pow.5",
    "pow1",
    "pow1.5",
    "pow2",
)
ESTIMATORS = (
    "frobenius",
    "lanczos",
    "newton_schulz jordan",
    "newton_schulz you",
    "newton_schulz polar_express",
    "randomized_svd",
    "svd",
)
BATCH = 4


def make_case(case, m, n, seed):
    """A matrix of a case and its exact nuclear norm."""
    random = np.random.default_rng(seed)
    s = min(m, n)
    if case.startswith(("pow", "rk")):
        if case.startswith("pow"):
            sigma = np.arange(1, s + 1) ** -float(case[3:])
        else:
            sigma = np.ones(min(int(case[2:]), s))
        U, _ = np.linalg.qr(random.standard_normal((m, len(sigma))))
        V, _ = np.linalg.qr(random.standard_normal((n, len(sigma))))
        return ((U * sigma) @ V.T).astype("float32"), float(sigma.sum())
    X = random.standard_normal((m, n))
    if case.startswith("lr8_"):
        share = float(case[4:])
        U = random.standard_normal((m, 8))
        V = random.standard_normal((8, n))
        low = U @ V
        X = np.sqrt(1 - share) * X / np.linalg.norm(X)
        X += np.sqrt(share) * low / np.linalg.norm(low)
    # From the Gram matrix in float64: these spectra have no tiny values.
    squares = np.linalg.eigvalsh(X @ X.T if m <= n else X.T @ X)
    true = float(np.sqrt(np.maximum(squares, 0)).sum())
    return X.astype("float32"), true


def make_estimator(name):
    """The nuclear norms of a stack, as Lanton asks for them."""
    from keras_lanton.coefficients import coefficient_rows
    from keras_lanton.core import nuclear_norm
    from keras_lanton.core.norms import Spectral

    kind, _, coefficients = name.partition(" ")
    return Spectral(
        rows=coefficient_rows(coefficients or "jordan", 5),
        nuclear_norm={
            "newton_schulz": None,
            "randomized_svd": functools.partial(
                nuclear_norm.randomized_svd_nuclear_norm,
                rank=6,
                power_iterations=2,
            ),
            "frobenius": nuclear_norm.frobenius_nuclear_norm,
            "lanczos": nuclear_norm.lanczos_nuclear_norm,
            "svd": nuclear_norm.svd_nuclear_norm,
        }[kind],
    ).dual


def measure_ratios(args, estimators):
    """Estimate / true: dict of estimator, shape and case to seeds' values."""
    from keras import ops

    ratios = {}
    for m, n in args.shapes:
        for case in args.cases:
            made = [make_case(case, m, n, seed) for seed in range(args.seeds)]
            stack = ops.convert_to_tensor(np.stack([X for X, _ in made]))
            true = np.array([value for _, value in made])
            for name, estimate in estimators.items():
                found = ops.convert_to_numpy(estimate(stack))
                ratios[name, (m, n), case] = (found / true).tolist()
    return ratios


def measure_costs(args, estimators):
    """Seconds of each estimator, by shape."""
    from keras import ops

    costs = {}
    for m, n in args.shapes:
        X = np.random.default_rng(0).standard_normal((BATCH, m, n), "float32")
        X = ops.convert_to_tensor(X)
        functions = {
            name: lambda f=f, X=X: f(X) for name, f in estimators.items()
        }
        times = common.interleave(functions, args.rounds)
        costs[m, n] = {name: common.median(t) for name, t in times.items()}
    return costs


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=CASES)
    add(
        "--estimators",
        nargs="+",
        choices=ESTIMATORS,
        help="default: all, on TensorFlow all but svd, which takes XLA minutes",
    )
    add("--seeds", type=common.positive, default=2, help="matrices per case")
    add("--rounds", type=common.positive, default=3, help="of the timing")
    return parser


def main(argv=None):
    """Run the benchmark."""
    args = common.parse(make_parser(), argv)
    args.shapes = QUICK_SHAPES if args.quick else SHAPES
    args.estimators = args.estimators or [
        name
        for name in ESTIMATORS
        if name != "svd" or args.backend != "tensorflow"
    ]
    reference = "newton_schulz jordan"
    if reference not in args.estimators:
        args.estimators = [*args.estimators, reference]
    estimators = {
        name: common.compiled(make_estimator(name)) for name in args.estimators
    }
    ratios = measure_ratios(args, estimators)
    costs = measure_costs(args, estimators)
    rows, figures = [], {}
    for name in args.estimators:
        means = {
            key[1:]: float(np.mean(values))
            for key, values in ratios.items()
            if key[0] == name
        }
        spread = max(means.values()) / min(means.values())
        every = [v for key, v in ratios.items() if key[0] == name]
        figures[f"spread {name}"] = spread
        for m, n in args.shapes:
            row = {"estimator": name, "shape": f"{m} x {n}"}
            row.update({case: means[(m, n), case] for case in args.cases})
            row["max/min, both shapes"] = spread
            row["max/min, single matrices"] = float(
                np.max(every) / np.min(every)
            )
            row["ms each"] = 1e3 * costs[m, n][name] / BATCH
            row["of a Newton-Schulz"] = (
                costs[m, n][name] / costs[m, n][reference]
            )
            rows.append(row)
    if "lanczos" in args.estimators and tuple(args.cases) == CASES:
        figures["estimator_spread"] = figures["spread lanczos"]
    common.write(
        args,
        "noise",
        rows,
        figures,
        seeds=args.seeds,
        batch=BATCH,
        ratios=[
            {
                "estimator": name,
                "shape": list(shape),
                "case": case,
                "estimate/true": values,
            }
            for (name, shape, case), values in ratios.items()
        ],
    )


if __name__ == "__main__":
    main()
