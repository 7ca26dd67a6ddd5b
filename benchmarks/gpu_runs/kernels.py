"""Time symmetric products against dense ones, without the launches' time.

    KERAS_BACKEND=torch python benchmarks/gpu_runs/kernels.py

Of matrices `(batch, side, depth)` in bfloat16: PyTorch's dense product and the
package's Triton kernel, A A^T alone and beta C + alpha C C of its result. Each
is captured as a CUDA graph of ten calls; the time is that of a replay over ten.
"""

import statistics
import time

import journal  # first: it puts the modules below on the path

# isort: split

import common

SHAPES = (
    (48, 768, 768),
    (24, 768, 3072),
    (8, 1024, 1024),
    (1, 2048, 2048),
    (4, 2048, 2048),
    (8, 2048, 5632),
    (1, 4096, 4096),
    (4, 4096, 4096),
)
CALLS = 10
REPLAYS = 20


def milliseconds(function):
    """Of one call, within a graph of `CALLS`."""
    import torch

    function()
    common.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    found = []
    for _ in range(REPLAYS):
        common.synchronize()
        started = time.perf_counter()
        graph.replay()
        common.synchronize()
        found.append(time.perf_counter() - started)
    return 1e3 * statistics.median(found) / CALLS


def products(A):
    """Of A `(n, s, k)`, by form: PyTorch's product and the package's.

    Returns:
        Pairs of functions without arguments: of A A^T, and of
        2 C + C C / 2 with C = A A^T.
    """
    import torch

    from keras_lanton.fast import triton_kernels

    B = A.transpose(1, 2)
    C = A @ B
    kernel, options = triton_kernels.symmetric_product, {"beta": 2.0}
    return {
        "alone": (lambda: torch.bmm(A, B), lambda: kernel(A, B)),
        "adds": (
            lambda: torch.baddbmm(C, C, C, alpha=0.5, **options),
            lambda: kernel(C, C, C, alpha=0.5, **options),
        ),
    }


def compare(log, A, times):
    """Two rows of a shape: errors, and the times where there is a GPU."""
    exact = products(A.float())
    for form, (dense, symmetric) in products(A).items():
        wanted = exact[form][0]()
        error = (symmetric().float() - wanted).norm() / wanted.norm()
        row = {"shape": tuple(A.shape), "form": form, "error": float(error)}
        if times:
            row |= {"ms": milliseconds(symmetric), "dense": milliseconds(dense)}
            row["ratio"] = row["ms"] / row["dense"]
        log.add(**row)


def main(argv=None):
    """Run the benchmark."""
    parser = journal.make_parser(__doc__, seconds=60)
    args = journal.parse(parser, argv)
    import torch

    log = journal.Journal(args, "kernels_torch", dtype="bfloat16")
    device = "cpu" if args.pretend else "cuda"
    for shape in [(2, 100, 70)] if args.pretend else SHAPES:
        A = torch.randn(shape, device=device).bfloat16() / shape[2] ** 0.5
        log.attempt(str(shape), compare, log, A, not args.pretend)


if __name__ == "__main__":
    main()
