"""Time symmetric products against dense ones, without the launches' time.

    KERAS_BACKEND=torch python benchmarks/gpu_runs/kernels.py

Of matrices `(batch, side, depth)` in bfloat16: PyTorch's dense product, the
package's Triton kernel, and a second form of it, whose pointers advance, whose
rows wrap by modulo, so that only the depth is masked, and which adds beta C
itself. Each is captured as a CUDA graph of ten calls; the time is that of a
replay over ten.
"""

import statistics
import time
import types

import journal  # first: it puts the modules below on the path

# isort: split

import common

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's builds for the CPU come without it.
    triton = None
    tl = types.SimpleNamespace(constexpr=None)

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
# Side and depth of a tile, stages, warps.
TILES = (
    (128, 64, 3, 8),
    (128, 64, 4, 8),
    (128, 64, 4, 4),
    (128, 128, 3, 8),
    (64, 64, 4, 4),
    (64, 128, 3, 4),
)
CALLS = 10
REPLAYS = 20


def make_kernel():
    """The second form, compiled or interpreted."""
    return triton.jit(symmetric_kernel)


def symmetric_kernel(
    a,
    b,
    c,
    out,
    s,
    k,
    alpha,
    beta,
    a_n,
    a_s,
    a_k,
    b_n,
    b_k,
    b_s,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Tiles (i, j) and (j, i) of beta C + alpha A B, i >= j."""
    pair = tl.program_id(0)
    entry = tl.program_id(1).to(tl.int64)
    i = ((tl.sqrt(8.0 * pair.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    if i * (i + 1) // 2 > pair:
        i -= 1
    if (i + 1) * (i + 2) // 2 <= pair:
        i += 1
    j = pair - i * (i + 1) // 2
    rows = i * TILE + tl.arange(0, TILE)
    cols = j * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, DEPTH)
    a_at = a + entry * a_n + (rows % s)[:, None] * a_s + inner[None, :] * a_k
    b_at = b + entry * b_n + inner[:, None] * b_k + (cols % s)[None, :] * b_s
    acc = tl.full((TILE, TILE), 0.0, tl.float32)
    for start in range(0, k, DEPTH):
        x = tl.load(a_at, mask=inner[None, :] < k - start, other=0.0)
        y = tl.load(b_at, mask=inner[:, None] < k - start, other=0.0)
        acc = tl.dot(x, y, acc)
        a_at += DEPTH * a_k
        b_at += DEPTH * b_k
    acc = acc * alpha
    at = rows[:, None] * s + cols[None, :]
    inside = (rows[:, None] < s) & (cols[None, :] < s)
    if ADDS:
        old = tl.load(c + entry * s * s + at, mask=inside, other=0.0)
        acc += beta * old.to(tl.float32)
    tile = acc.to(out.dtype.element_ty)
    tl.store(out + entry * s * s + at, tile, mask=inside)
    if i > j:
        mirrored = cols[:, None] * s + rows[None, :]
        tl.store(
            out + entry * s * s + mirrored,
            tl.trans(tile),
            mask=(cols[:, None] < s) & (rows[None, :] < s),
        )


def call(kernel, A, B, C, out, tiles, *, alpha=1.0, beta=0.0):
    """Write beta C + alpha A B, which is symmetric, to `out`."""
    n, s, k = A.shape
    side, depth, stages, warps = tiles
    count = -(-s // side)
    kernel[(count * (count + 1) // 2, n)](
        A,
        B,
        C,
        out,
        s,
        k,
        alpha,
        beta,
        *A.stride(),
        *B.stride(),
        TILE=side,
        DEPTH=depth,
        ADDS=beta != 0.0,
        num_stages=stages,
        num_warps=warps,
    )


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


def errors(kernel, A, tiles):
    """Relative errors of A A^T, and of 2 C + C C / 2 of its result."""
    import torch

    B = A.transpose(1, 2)
    C = A @ B
    out = torch.full_like(C, float("nan"))
    found = []
    for factors, options, wanted in (
        ((A, B), {}, A.float() @ B.float()),
        (
            (C, C),
            {"alpha": 0.5, "beta": 2.0},
            2.0 * C.float() + 0.5 * (C.float() @ C.float()),
        ),
    ):
        call(kernel, *factors, C, out, tiles, **options)
        found.append(float((out.float() - wanted).norm() / wanted.norm()))
    return found


def time_shape(log, kernel, shape):
    """Rows of one shape: A A^T, and beta C + alpha C C of its result."""
    import torch

    from keras_lanton.fast import triton_kernels

    A = torch.randn(shape, device="cuda").bfloat16() / shape[2] ** 0.5
    B = A.transpose(1, 2)
    C = A @ B
    out = torch.empty_like(C)
    dense = milliseconds(lambda: torch.bmm(A, B, out=out))
    adding = milliseconds(
        lambda: torch.baddbmm(C, C, C, beta=2.0, alpha=0.5, out=out)
    )
    log.add(shape=shape, form="dense", ms=dense, adding_ms=adding)
    present = milliseconds(lambda: triton_kernels.symmetric_product(A, B))
    log.add(shape=shape, form="package", ms=present, ratio=present / dense)

    def time_tiles(tiles):
        error, adding_error = errors(kernel, A, tiles)
        ms = milliseconds(lambda: call(kernel, A, B, C, out, tiles))
        plus = milliseconds(
            lambda: call(kernel, C, C, C, out, tiles, alpha=0.5, beta=2.0)
        )
        log.add(
            shape=shape,
            form=tiles,
            ms=ms,
            ratio=ms / dense,
            adding_ms=plus,
            adding_ratio=plus / adding,
            error=error,
            adding_error=adding_error,
        )

    for tiles in TILES:
        log.attempt(f"{shape} {tiles}", time_tiles, tiles)


def pretend(log, kernel):
    """Errors alone, of the interpreted kernel on small matrices."""
    import torch

    shape, tiles = (2, 100, 70), (64, 32, 1, 4)
    error, adding_error = errors(kernel, torch.randn(shape), tiles)
    log.add(shape=shape, form=tiles, error=error, adding_error=adding_error)


def main(argv=None):
    """Run the benchmark."""
    parser = journal.make_parser(__doc__, seconds=60)
    args = journal.parse(parser, argv)
    log = journal.Journal(args, "kernels_torch", dtype="bfloat16")
    kernel = make_kernel()
    if args.pretend:
        pretend(log, kernel)
        return
    for shape in SHAPES:
        log.attempt(str(shape), time_shape, log, kernel, shape)


if __name__ == "__main__":
    main()
