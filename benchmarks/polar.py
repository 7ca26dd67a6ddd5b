"""Time and check the polar factor by Newton-Schulz.

    KERAS_BACKEND=jax python benchmarks/polar.py

Per shape, form and coefficient set: the time of a stack, its FLOP/s as a
fraction of what plain matrix products reach in the same run, and the error
||O - U V^T||_F / sqrt(s), 0 for the exact polar factor. "chosen" is what
Lanton takes for the shape on this device. The matrices have singular values
i^-0.5 and known singular vectors. FLOPs are counted for dense products.
"""

import math

import common
import numpy as np

SHAPES = ((8, 768, 768), (4, 768, 3072), (16, 256, 1024))
GPU_SHAPES = ((8, 2048, 2048), (4, 2048, 5632), (2, 4096, 4096))
QUICK_SHAPES = ((2, 48, 48), (2, 32, 128))
FORMS = ("standard", "gram", "chosen")
SETS = ("jordan", "you", "polar_express", "cubic")
STEPS = 5


def known_matrix(m, n):
    """A float32 matrix with singular values i^-0.5, and its polar factor."""
    random = np.random.default_rng(0)
    s = min(m, n)
    U, _ = np.linalg.qr(random.standard_normal((m, s)))
    V, _ = np.linalg.qr(random.standard_normal((n, s)))
    sigma = np.arange(1, s + 1) ** -0.5
    X = (U * sigma) @ V.T
    return X.astype("float32"), (U @ V.T).astype("float32")


def flops(m, n, *, rows, form, restarts):
    """Floating-point operations per matrix, dense products."""
    s, ratio = min(m, n), max(m, n) / min(m, n)
    squares = 2 * sum(c != 0 for _, _, c in rows)
    if form == "standard":
        return (4 * ratio * len(rows) + squares) * s**3
    starts = 1 + restarts
    return (6 * (len(rows) - starts) + squares + 4 * ratio * starts) * s**3


def make_form(form, m, n, rows, dtype):
    """A function of a stack, and the number of its restarts."""
    from keras_lanton.core.newton_schulz import newton_schulz
    from keras_lanton.fast.batching import one_by_one
    from keras_lanton.fast.dispatch import cheapest_form
    from keras_lanton.fast.newton_schulz import gram_newton_schulz
    from keras_lanton.fast.newton_schulz import restart_rows

    if form == "standard":
        return lambda X: newton_schulz(X, rows, dtype=dtype), 0
    if form == "chosen":
        polar = cheapest_form(m, n, rows=rows, dtype=dtype)
        return one_by_one(polar, min(m, n)), 0
    restarts = restart_rows(rows, dtype)
    return (
        lambda X: gram_newton_schulz(X, rows, restarts=restarts, dtype=dtype),
        len(restarts),
    )


def time_products(sizes, dtype, rounds):
    """Best FLOP/s of plain products of square matrices, and their times."""
    from keras import ops

    functions = {}
    for size in sizes:
        X = np.random.default_rng(0).standard_normal((size, size), "float32")
        X = ops.convert_to_tensor(X, dtype=dtype)
        product = common.compiled(ops.matmul)
        functions[size] = lambda product=product, X=X: product(X, X)
    times = common.interleave(functions, rounds, warm_up=2)
    return max(2 * s**3 / min(t) for s, t in times.items())


def bench_forms(args, peak):
    """One row per shape, form and coefficient set."""
    from keras import ops

    from keras_lanton.coefficients import coefficient_rows

    rows = []
    for batch, m, n in args.shapes:
        X, polar = known_matrix(m, n)
        stack = ops.convert_to_tensor(np.broadcast_to(X, (batch, m, n)).copy())
        functions, counts, errors = {}, {}, {}
        sets = {name: coefficient_rows(name, STEPS) for name in args.sets}
        for form in args.forms:
            for name, coefficients in sets.items():
                function, restarts = make_form(
                    form, m, n, coefficients, args.dtype
                )
                function = common.compiled(function)
                key = form, name
                functions[key] = lambda f=function, stack=stack: f(stack)
                counts[key] = restarts
                O = ops.convert_to_numpy(function(stack)[0])
                errors[key] = float(
                    np.linalg.norm(O - polar) / math.sqrt(min(m, n))
                )
        times = common.interleave(functions, args.rounds)
        for (form, name), values in times.items():
            seconds = common.median(values)
            row = {
                "shape": f"{batch} x {m} x {n}",
                "form": form,
                "coefficients": name,
                "ms": 1e3 * seconds,
                "error": errors[form, name],
            }
            if form != "chosen":
                restarts = counts[form, name]
                work = batch * flops(
                    m, n, rows=sets[name], form=form, restarts=restarts
                )
                row["restarts"] = restarts
                row["GFLOP/s"] = work / seconds / 1e9
                row["of peak"] = work / seconds / peak
            rows.append(row)
    return rows


def bench_symmetric(args):
    """The kernel for symmetric products against the dense product."""
    import torch

    from keras_lanton.fast.triton_kernels import symmetric_product

    rows, figures = [], {}
    dtype = getattr(torch, args.dtype)
    device = "cpu" if args.pretend else "cuda"
    for size in (64,) if args.quick else (1024, 2048, 4096):
        for batch in (1, 4):
            A = torch.randn(batch, size, size, device=device, dtype=dtype)
            A = A @ A.mT / size
            B = A @ A
            functions = {
                "kernel": lambda A=A, B=B: symmetric_product(A, B),
                "dense": lambda A=A, B=B: A @ B,
            }
            times = common.interleave(functions, args.rounds, warm_up=5)
            kernel, dense = (common.median(v) for v in times.values())
            rows.append(
                {
                    "shape": f"{batch} x {size} x {size}",
                    "form": "symmetric product",
                    "ms": 1e3 * kernel,
                    "dense ms": 1e3 * dense,
                    "kernel / dense": kernel / dense,
                }
            )
            if size >= 2048:
                name = f"symmetric_over_dense_{batch}x{size}"
                figures[name] = kernel / dense
    return rows, figures


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add("--forms", nargs="+", choices=FORMS, default=FORMS)
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--rounds", type=common.positive, help="default: 3, on GPU 20")
    add(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="of the products; default: float32, on GPU bfloat16",
    )
    return parser


def main(argv=None):
    """Run the benchmark."""
    args = common.parse(make_parser(), argv)
    args.shapes = GPU_SHAPES if args.gpu else SHAPES
    args.dtype = args.dtype or ("bfloat16" if args.gpu else "float32")
    args.rounds = args.rounds or (20 if args.gpu else 3)
    sizes = (4096, 8192) if args.gpu else (1024, 2048)
    if args.quick:
        args.shapes, sizes = QUICK_SHAPES, (256,)
    peak = time_products(sizes, args.dtype, 10)
    rows, figures = bench_forms(args, peak), {}
    if args.gpu and args.backend == "torch":
        common.release()
        symmetric, figures = bench_symmetric(args)
        rows += symmetric
    common.write(
        args,
        "polar",
        rows,
        figures,
        dtype=args.dtype,
        steps=STEPS,
        peak_flops=peak,
        peak="best of plain square products of " + ", ".join(map(str, sizes)),
    )


if __name__ == "__main__":
    main()
