"""Triton's products against float64 NumPy.

Without a GPU the kernels are interpreted, which shows their arithmetic, and
compiled for a GPU without running, which shows that the compilers take them.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from helpers.tiers import keep
from keras_lanton.fast import gpu_kernels

if keras.backend.backend() != "torch":
    pytest.skip("the kernels are for torch", allow_module_level=True)

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()

ROOT = pathlib.Path(__file__).parents[2] / "keras_lanton" / "fast"
# Of the largest entry: rounding of the result, and of float32 sums.
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3}
DTYPES = tuple(TOLERANCE)


def load_triton(interpret):
    """A copy of the module of its own, in the mode wanted.

    The package's copy may be imported already, and every test after this
    one would be interpreted if the variable stayed.
    """
    spec = importlib.util.spec_from_file_location(
        f"triton_kernels_{interpret}", ROOT / "triton_kernels.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1" if interpret else "0")
        spec.loader.exec_module(module)
    return module


kernels = load_triton(interpret=not ON_GPU)
product = kernels.symmetric_product
on_gpu = pytest.mark.skipif(not ON_GPU, reason="PyTorch sees no GPU")


def array(x, dtype):
    device = "cuda" if ON_GPU else "cpu"
    return torch.tensor(x, dtype=getattr(torch, dtype), device=device)


def exact(x):
    return x.double().cpu().numpy()


def noise(*shape):
    return np.random.default_rng(0).normal(size=shape)


def check(A, B, factor=1.0):
    C = product(A, B)
    assert C.dtype == A.dtype
    assert tuple(C.shape) == (A.shape[0], A.shape[1], A.shape[1])
    assert C.is_contiguous()
    C, expected = exact(C), exact(A) @ exact(B)
    np.testing.assert_array_equal(C, np.swapaxes(C, 1, 2))
    tolerance = factor * TOLERANCE[str(A.dtype).removeprefix("torch.")]
    error = np.abs(C - expected).max() / np.abs(expected).max()
    assert error < tolerance, error


def commuting(R, dtype):
    """R and b R + c R^2, of a positive R with spectral norm 1."""
    R = R @ np.swapaxes(R, 1, 2)
    R /= np.linalg.norm(R, 2, axis=(1, 2))[:, None, None]
    return array(R, dtype), array(-4.775 * R + 2.0315 * R @ R, dtype)


@pytest.mark.parametrize("dtype", keep(DTYPES, ["float32"]))
@pytest.mark.parametrize(
    "shape",
    [
        (1, 64, 64),
        (3, 70, 33),
        (1, 129, 20),
        (3, 20, 129),
        (1, 1, 1),
        (2, 130, 200),
    ],
    ids=str,
)
def test_gram_matrix(shape, dtype):
    X = array(noise(*shape), dtype)
    check(X, X.mT)


@pytest.mark.parametrize("dtype", keep(DTYPES, ["bfloat16"]))
def test_transposed_operand_on_the_left(dtype):
    X = array(noise(2, 33, 70), dtype)
    check(X.mT, X)


@pytest.mark.parametrize("dtype", keep(DTYPES, ["float32"]))
def test_slices_that_are_not_contiguous(dtype):
    whole = np.full((5, 150, 83), np.nan)
    whole[1:4, 3:143:2, 7:73:2] = noise(3, 70, 33)
    X = array(whole, dtype)[1:4, 3:143:2, 7:73:2]
    check(X, X.mT)


@pytest.mark.parametrize("dtype", keep(DTYPES, ["float16"]))
def test_commuting_factors(dtype):
    # Rounded factors commute only up to their rounding.
    check(*commuting(noise(3, 70, 90), dtype), factor=2.0)


@pytest.mark.parametrize("dtype", keep(DTYPES, ["float16"]))
def test_a_product_is_added_to_another_matrix(dtype):
    A, B = commuting(noise(3, 70, 90), dtype)
    C = array(exact(product(A, A.mT)), dtype)
    found = product(A, B, C, beta=2.0, alpha=0.5)
    wanted = 2.0 * exact(C) + 0.5 * exact(A) @ exact(B)
    np.testing.assert_array_equal(exact(found), exact(found.mT))
    error = np.abs(exact(found) - wanted).max() / np.abs(wanted).max()
    assert error < 2.0 * TOLERANCE[dtype]
    with pytest.raises(ValueError, match="`C` must be.*Received: C.shape="):
        product(A, B, C[:1])


@pytest.mark.parametrize(
    ("shape", "adds", "alone"),
    [
        ((1, 2048, 2048), False, False),
        ((4, 2048, 5632), True, False),
        ((1, 4096, 4096), True, True),
        ((48, 768, 768), False, False),
    ],
)
def test_faster_for_large_matrices(shape, adds, alone):
    A = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    assert gpu_kernels.is_faster(A, adds=True) == adds
    assert gpu_kernels.is_faster(A, adds=False) == alone
    assert not gpu_kernels.is_faster(A.float(), adds=True)


def test_many_tiles():
    X = array(noise(1, 1300, 5), "float32")
    check(X, X.mT)


def test_sums_are_in_float32():
    # In float16 a sum of ones stops at 2048.
    X = array(np.ones((1, 16, 4099)), "float16")
    assert np.all(exact(product(X, X.mT)) == 4100)


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, 4), (2, 4, 0)], ids=str)
def test_nothing_to_sum(shape):
    X = array(np.zeros(shape), "float32")
    C = exact(product(X, X.mT))
    np.testing.assert_array_equal(C, np.zeros((*shape[:1], shape[1], shape[1])))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 4), (4, 4)),
        ((1, 4, 3), (1, 4, 3)),
        ((2, 4, 3), (1, 3, 4)),
        ((1, 4, 3), (1, 3, 5)),
        ((1, 4, 3), (3, 4)),
        ((1, 1, 4, 3), (1, 1, 3, 4)),
    ],
    ids=str,
)
def test_wrong_shapes(left, right):
    A, B = array(noise(*left), "float32"), array(noise(*right), "float32")
    with pytest.raises(ValueError, match=r"\(n, k, s\).*Received: A.shape="):
        product(A, B)


@pytest.mark.parametrize(
    ("left", "right"),
    [("float32", "float16"), ("bfloat16", "float16"), ("int32", "int32")],
)
def test_wrong_dtypes(left, right):
    A, B = array(noise(1, 4, 4), left), array(noise(1, 4, 4), right)
    with pytest.raises(ValueError, match="same dtype.*Received: A.dtype="):
        product(A, B)


def test_batch_larger_than_a_grid(monkeypatch):
    monkeypatch.setattr(kernels, "_MAX_BATCH", 2)
    X = array(noise(5, 40, 10), "float32")
    check(X, X.mT)


def test_available_where_interpreted_or_on_cuda():
    x = torch.zeros(1)
    assert load_triton(interpret=True).available(x)
    compiled = load_triton(interpret=False)
    assert not compiled.available(x)
    with pytest.raises(ValueError, match="CUDA.*Received: A.device=cpu"):
        compiled.symmetric_product(x[None, None], x[None, None])


def test_not_available_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not load_triton(interpret=True).available(torch.zeros(1))


# By compute capability: a chip, the products of its tensor cores in PTX, and
# the shared memory of a block in bytes (CUDA C++ Programming Guide).
CHIPS = {
    80: ("A100", "mma.sync", 163 * 2**10),
    90: ("H100", "wgmma", 227 * 2**10),
    100: ("B200", "tcgen05.mma", 227 * 2**10),
}
POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


def compile_triton(dtype, side, capability):
    """The kernel as it is launched for contiguous matrices of a side."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = load_triton(interpret=False)._kernel
    tile, depth, warps = kernels.tile_sizes(side, side, getattr(torch, dtype))
    constants = {"TILE": tile, "DEPTH": depth, "ADDS": True, "UPCAST": False}
    constants |= {"stride_ak": 1, "stride_bk": 1}
    signature = {name: "i32" for name in kernel.arg_names}
    tensors = ("a_ptr", "b_ptr", "c_ptr", "out_ptr")
    signature |= dict.fromkeys(tensors, POINTERS[dtype])
    signature |= dict.fromkeys(("alpha", "beta"), "fp32")
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if name not in (*constants, "alpha", "beta")
    }
    return triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": 3},
    )


def bytes_of_local_memory(cubin, folder):
    """What a kernel spills, and its stack, by the tool that Triton brings."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tools = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin"
    command = [str(tools / "cuobjdump"), "--dump-resource-usage", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = re.findall(r"(?:STACK|LOCAL):(\d+)", told.stdout)
    assert len(sizes) == 2, told.stdout
    return sum(map(int, sizes))


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize(
    ("dtype", "side"),  # all that `tile_sizes` tells apart
    [
        ("float16", 64),
        ("float16", 2048),
        ("bfloat16", 64),
        ("bfloat16", 2048),
        ("float32", 64),
    ],
)
def test_triton_compiles(dtype, side, capability, monkeypatch, tmp_path):
    """Ahead of time, for chips that are not here: no GPU is needed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = compile_triton(dtype, side, capability)
    _, product, most = CHIPS[capability]
    # TF32 would be a dot product of float32 in lower precision.
    assert "tf32" not in compiled.asm["ptx"]
    assert (product in compiled.asm["ptx"]) == (dtype != "float32")
    assert compiled.metadata.shared <= most
    assert bytes_of_local_memory(compiled.asm["cubin"], tmp_path) == 0


@on_gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("s", [1024, 2048])
def test_real_sizes(s, dtype):
    X = array(noise(2, s, 3 * s // 2), dtype)
    check(X, X.mT)
    check(*commuting(noise(1, s, 2 * s), dtype), factor=2.0)


@on_gpu
def test_offsets_past_two_to_the_31():
    n, s = 520, 2048
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of free memory on the GPU")
    X = noise(1, s, 64).astype("float16") / 64
    X = array(np.broadcast_to(X, (n, s, 64)), "float16")
    R = product(X, X.mT)
    assert R.shape[0] * s * s > 2**31
    P = product(R, R)
    for A, B, C in ((X, X.mT, R), (R, R, P)):
        expected = exact(A[-1]) @ exact(B[-1])
        error = np.abs(exact(C[-1]) - expected).max() / np.abs(expected).max()
        assert error < TOLERANCE["float16"]
