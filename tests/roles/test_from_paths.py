"""Roles and views inferred from paths and shapes."""

import keras
import numpy as np
import pytest

from helpers import role_tables as tables
from helpers.roles import MAKERS
from helpers.roles import UNKNOWN_BY_PATH
from helpers.roles import Variable
from helpers.roles import by_hand
from helpers.roles import by_path
from helpers.roles import described
from helpers.roles import hand
from helpers.roles import infer
from helpers.roles import make
from helpers.roles import read
from helpers.tiers import logic
from keras_lanton.roles.from_paths import infer_roles
from keras_lanton.roles.spec import assigned_spec

# Names that users give, which say nothing: the bias tells. These three need
# the layer.
UNTOLD = {*UNKNOWN_BY_PATH, "einsum_dense_experts"}


@logic
@pytest.mark.parametrize(
    "case",
    [case for case in MAKERS if case not in UNTOLD],
)
def test_layer_with_a_name_that_says_nothing(case):
    layer = make(case, name="block")
    expected = tables.under("block", tables.LAYERS[case])
    assert by_path(read(layer)) == by_hand(expected)
    inferred = infer_roles(layer.trainable_variables)
    assert by_path(inferred) == by_hand(expected)


@logic
def test_head_without_a_telling_name():
    pairs = [
        ("tokens/embeddings", (32, 8)),
        ("positions/embeddings", (32, 8)),
        ("block_0/up/kernel", (8, 32)),
        ("block_0/down/kernel", (32, 8)),
        ("block_1/up/kernel", (8, 32)),
        ("block_1/down/kernel", (32, 8)),
        ("out/kernel", (8, 32)),
    ]
    *_, head = infer(*pairs)
    assert head == hand(tables.HEAD)
    assert infer(*pairs[:-1])[2:] == [hand(tables.DENSE)] * 4
    # Creation order is not call order: the block, not the order, decides.
    pairs[2], pairs[3] = pairs[3], pairs[2]
    pairs[4], pairs[5] = pairs[5], pairs[4]
    assert infer(*pairs[:-1])[2:] == [hand(tables.DENSE)] * 4
    assert infer(*pairs)[-1] == hand(tables.HEAD)


@logic
@pytest.mark.parametrize(
    "pairs",
    [
        # As many classes as positions, segments or relative distances.
        [("position_embedding/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        [("wpe/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        [("token_type/embeddings", (2, 8)), ("d/kernel", (8, 2))],
        [("rel_bias/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        # A hidden layer that happens to be as wide as the vocabulary.
        [
            ("tokens/embeddings", (32, 8)),
            ("dense/kernel", (8, 32)),
            ("dense_1/kernel", (32, 1)),
        ],
        # A square kernel, and the kernel of a recurrent layer.
        [("tokens/embeddings", (8, 8)), ("query/kernel", (8, 8))],
    ],
)
def test_not_a_head(pairs):
    _, *rest = infer(*pairs)
    assert rest == [hand(tables.DENSE)] * len(rest)


@logic
def test_recurrent_kernel_as_wide_as_the_vocabulary_is_no_head():
    found = infer(
        ("tokens/embeddings", (32, 8)),
        ("lstm/lstm_cell/kernel", (8, 32)),
        ("lstm/lstm_cell/recurrent_kernel", (8, 32)),
    )
    assert found[1:] == [hand(tables.LSTM)] * 2


# What names and siblings say.
@logic
@pytest.mark.parametrize(
    ("path", "shape", "line"),
    [
        ("dense/kernel", (4, 5), tables.DENSE),
        ("dense/kernel", (4, 1), tables.DENSE),
        ("w", (4, 5), tables.DENSE),
        ("kernel:0", (4, 5), tables.DENSE),
        ("w", (4,), tables.VECTOR),
        ("temperature", (), tables.VECTOR),
        ("a/query_dense_layernorm/scale", (3, 4), tables.VECTOR),
        ("p_re_lu/alpha", (3, 4, 5), tables.VECTOR),
        ("encoder/content_attention_bias", (4, 6), tables.VECTOR),
        ("experts/down_proj_bias", (3, 6), tables.VECTOR),
        ("vit/class_token", (1, 1, 6), tables.VECTOR),
        ("head/variable", (1, 1, 6), tables.VECTOR),
        ("dino/register_tokens", (1, 4, 6), tables.VECTOR),
        ("mixer/conv1d_kernel", (8, 4), tables.VECTOR),
        ("deit/position_embedding", (1, 5, 6), "embedding - | 2 | 01"),
        ("swin/relative_position_bias_table", (9, 2), tables.TABLE),
        ("sam/rel_pos_h", (9, 2), tables.TABLE),
        ("patch_embedding/kernel", (8, 8, 3, 6), tables.CONV_2D),
        ("patch_embedding/kernel", (4, 5), tables.DENSE),
        ("stem/kernel", (3, 3, 3, 8), tables.CONV_2D),
        ("stem/kernel", (3, 3, 3, 3, 8), tables.CONV_3D),
        ("conv1d_3/kernel", (3, 4, 8), tables.CONV_1D),
        ("conv2d_transpose_1/kernel", (3, 3, 8, 8), "hidden - | 013 | 2"),
        ("block1_dwconv/kernel", (3, 3, 8, 1), tables.VECTOR),
        ("attn/qkv/kernel", (6, 3, 2, 4), "hidden - | 0 | 123"),
        ("attn/q_proj/kernel", (6, 2, 4), tables.TO_HEADS),
        ("attn/wo/kernel", (2, 4, 6), tables.FROM_HEADS),
        ("attn/wq", (6, 2, 4), tables.TO_HEADS),
        ("attn/query/kernel", (2, 6, 4), tables.GEMMA_TO_HEADS),
        ("moe/w1", (3, 4, 5), tables.EXPERTS),
        ("moe/experts/up/kernel", (3, 4, 5), tables.EXPERTS),
        ("moe/expert_w", (3, 4, 5), tables.EXPERTS),
        ("moe/router/kernel", (4, 3), tables.DENSE),
        ("moe_block/attention/key/kernel", (6, 2, 4), tables.TO_HEADS),
    ],
)
def test_name_alone(path, shape, line):
    variable = Variable(path, shape)
    (found,) = infer_roles([variable])
    assert described(found) == hand(line)


@logic
@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        # The bias of an untold layer has the size of its output axes.
        ([("up/kernel", (3, 3, 8, 4)), ("up/bias", (8,))], "- | 013 | 2"),
        ([("up/kernel", (3, 3, 8, 4)), ("up/bias", (4,))], "- | 012 | 3"),
        ([("a/kernel", (3, 8, 4)), ("a/bias", (8,))], "- | 02 | 1"),
        ([("a/kernel", (6, 2, 4)), ("a/bias", (2, 4))], "- | 0 | 12"),
        ([("mask/kernel", (3, 3, 8, 1)), ("mask/bias", (1,))], "- | 012 | 3"),
        # Without a bias the normalization that follows has it.
        ([("up/kernel", (3, 3, 8, 4)), ("n/gamma", (8,))], "- | 013 | 2"),
        ([("up/kernel", (3, 3, 8, 4)), ("n/gamma", (4,))], "- | 012 | 3"),
        # The output projection tells Gemma's axes from those of others.
        (
            [
                ("attention/query/kernel", (6, 6, 4)),
                ("attention/attention_output/kernel", (6, 4, 6)),
            ],
            "- | 0 | 12",
        ),
        (
            [
                ("attention/value/kernel", (1, 16, 4)),
                ("attention/query/kernel", (32, 16, 4)),
                ("attention/attention_output/kernel", (32, 4, 16)),
            ],
            "- | 1 | 02",
        ),
        (
            [
                ("attention/key/kernel", (8, 16, 4)),
                ("attention/query/kernel", (8, 16, 4)),
                ("attention/attention_output/kernel", (16, 4, 7)),
            ],
            "- | 0 | 12",
        ),
        # Halves of one kernel, or two kernels of experts.
        (
            [
                ("experts/gate_dense", (3, 4, 10)),
                ("experts/output_dense", (3, 5, 4)),
            ],
            "0 | 1 | 2 / 2",
        ),
        (
            [
                ("experts/gate_dense", (3, 4, 10)),
                ("experts/output_dense", (3, 10, 4)),
            ],
            "0 | 1 | 2",
        ),
        ([("experts/w", (3, 4, 8)), ("experts/b", (3, 8))], "0 | 1 | 2"),
        # Gemma's attention, and that of others, with biases.
        (
            [
                ("attention/query/kernel", (2, 6, 4)),
                ("attention/query/bias", (2, 4)),
                ("attention/key/kernel", (2, 6, 4)),
                ("attention/key/bias", (2, 4)),
                ("attention/attention_output/kernel", (2, 4, 6)),
            ],
            "- | 1 | 02",
        ),
        (
            [
                ("attention/query/kernel", (6, 6, 4)),
                ("attention/query/bias", (6, 4)),
                ("attention/key/kernel", (6, 6, 4)),
            ],
            "- | 0 | 12",
        ),
        (
            [("qkv/kernel", (6, 3, 2, 4)), ("qkv/bias", (3, 2, 4))],
            "- | 0 | 123",
        ),
        ([("a/w", (3, 8, 4)), ("a/b", (4,))], "- | 01 | 2"),
        ([("a/kernel", (3, 8, 4)), ("a/bias", (1, 1, 4))], "- | 01 | 2"),
    ],
)
def test_siblings(pairs, line):
    assert infer(*pairs)[0] == hand(f"hidden {line}")


@logic
@pytest.mark.parametrize(
    "pairs",
    [
        [("dw/kernel", (3, 3, 8, 1)), ("dw/bias", (8,))],
        [("a/kernel", (3, 3, 8, 1)), ("a/bias", (8,))],
        [("a/kernel", (3, 3, 8, 1)), ("norm/gamma", (8,))],
        [("a/kernel", (3, 3, 8, 2)), ("a/bias", (16,))],
        [("a/kernel", (3, 8, 2)), ("a/bias", (16,))],
    ],
)
def test_siblings_of_a_depthwise_kernel(pairs):
    assert infer(*pairs)[0] == hand(tables.VECTOR)


@logic
def test_odd_ranks_of_known_names():
    found = infer(
        ("tables/embeddings", (3, 9, 4)),
        ("cell/kernel", (4, 5)),
        ("cell/recurrent_kernel", (5,)),
    )
    expected = ["embedding - | 2 | 01", tables.DENSE, tables.VECTOR]
    assert found == [hand(line) for line in expected]


@logic
def test_of_equal_paths_the_nearest_is_the_sibling():
    found = infer(
        ("kernel", (6, 2, 4)),
        ("bias", (2, 4)),
        ("kernel", (3, 6, 2)),
        ("bias", (2,)),
    )
    expected = [tables.TO_HEADS, tables.VECTOR, tables.CONV_1D, tables.VECTOR]
    assert found == [hand(line) for line in expected]


def test_bare_variables_of_tensorflow():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Only TensorFlow hands bare variables.")
    import tensorflow as tf

    variables = [
        tf.Variable(np.zeros((4, 5)), name="w"),
        tf.Variable(np.zeros((4, 5)), name="w"),
        tf.Variable(np.zeros((4,)), name="dense/bias"),
    ]
    found = infer_roles(variables)
    assert [layer.path for layer in found] == ["w", "w", "dense/bias"]
    lines = [tables.DENSE, tables.DENSE, tables.VECTOR]
    assert [described(layer) for layer in found] == [hand(x) for x in lines]


# Guesses.
def infer_guess(*pairs):
    """Description of the first (path, shape), which is a guess."""
    with pytest.warns(UserWarning, match=f"guesses: {pairs[0][0]} "):
        found = infer(*pairs)
    return found[0]


@logic
@pytest.mark.parametrize(
    ("kernel", "bias", "line"),
    [
        ((3, 5, 7), (3, 7), "0 | 1 | 2"),
        ((5, 5, 7), (5, 7), "0 | 1 | 2"),  # (in, heads, head) as well
        ((3, 5, 7), (3, 1, 7), "0 | 1 | 2"),
        ((3, 7, 5), (3, 7), "0 | 2 | 1"),
        ((3, 2, 5, 7), (3, 7), "0 | 12 | 3"),
        ((3, 5, 2, 7), (3, 2, 7), "0 | 1 | 23"),
        ((3, 4, 5, 7), (3, 4, 7), "01 | 2 | 3"),
        ((5, 3, 2, 7), (3, 7), "1 | 02 | 3"),
    ],
)
@pytest.mark.parametrize("layer", ["bank", "value", "output"])
def test_a_bias_beside_a_stack_of_matrices_proves_nothing(
    layer, kernel, bias, line
):
    found = infer_guess((f"{layer}/kernel", kernel), (f"{layer}/bias", bias))
    assert found == hand(f"hidden {line}")


@logic
@pytest.mark.parametrize("names", ["w b", "weights biases", "kernels biases"])
def test_a_stack_of_matrices_by_other_names(names):
    kernel, bias = names.split()
    found = infer_guess((f"a/{kernel}", (3, 5, 7)), (f"a/{bias}", (3, 7)))
    assert found == hand(tables.EXPERTS)


@logic
def test_a_bias_as_long_as_the_rows():
    found = infer_guess(("a/weight", (5, 3)), ("a/bias", (5,)))
    assert found == hand("hidden - | 1 | 0")


@logic
@pytest.mark.parametrize(
    "name",
    [
        *["biases", "bias_stack", "bias_0", "hidden_biases", "b_enc", "b_dec"],
        *["b", "b_1", "b_q", "bias_hh_l0", "norm_weight", "attention_norm"],
        *["ln_1", "layer_norm_weight", "gains", "offset", "shift", "r_k"],
        *["attn_gammas", "norm/weight", "rms_norm_1/weight"],
    ],
)
def test_stacked_biases_and_gains_are_vectors(name):
    assert infer((f"bank/{name}", (3, 7))) == [hand(tables.VECTOR)]


@logic
@pytest.mark.parametrize(
    "name",
    [
        *[
            "kernel",
            "kernels",
            "weight",
            "weights",
            "w",
            "W",
            "w1",
            "W_q",
            "wq",
        ],
        *["w_in", "W_enc", "to_out", "to_qkv", "matrix", "mixing_matrix", "v2"],
        *["gate", "up", "down", "gate_up_proj", "c_proj", "projection", "U"],
        *["expert_0", "experts", "lora_a", "lora_kernel_b", "fc1", "dense_2"],
        *["linear", "mlp_out", "query", "i2h", "h2h", "output", "router"],
        *["weight_mu", "kernel_sigma", "real_kernel", "recurrent", "a1"],
    ],
)
def test_names_of_kernels(name):
    assert infer((f"layer/{name}", (3, 7))) == [hand(tables.DENSE)]


@logic
@pytest.mark.parametrize(
    "name",
    [
        *[
            "variable",
            "variable_3",
            "layer/variable_12",
            "Variable:0",
            "A",
            "B",
        ],
        *["layer/tensor", "centers", "prototypes", "memory", "theta"],
        *["params/0", "position_encoding", "A_log", "codebook"],
    ],
)
def test_other_names_of_rank_two_are_guesses(name):
    assert infer_names(name) == hand(tables.DENSE)


def infer_names(name):
    with pytest.warns(UserWarning, match=r"\(3, 7\) as 1 hidden matrix"):
        (found,) = infer_roles([Variable(name, (3, 7))])
    assert found.guessed
    return described(found)


@logic
def test_one_warning_names_all_guesses_and_both_methods():
    variables = [
        Variable("a/tensor", (2, 3, 4)),
        Variable("dense/kernel", (3, 4)),
        Variable("b/kernel", (2, 3, 4)),
        Variable("b/bias", (2, 4)),
        Variable("variable_1", (5, 6)),
    ]
    with pytest.warns(UserWarning) as caught:
        found = infer_roles(variables)
    (message,) = (str(warning.message) for warning in caught)
    for part in (
        "a/tensor (2, 3, 4) as 1 hidden matrix (6 x 4), output axis 2;",
        "b/kernel (2, 3, 4) as 2 hidden matrices (3 x 4), output axis 2;",
        "variable_1 (5, 6) as 1 hidden matrix (5 x 6), output axis 1;",
        "optimizer.read_roles(",
    ):
        assert part in message
    assert "optimizer.assign_role(" in message
    assert "dense/kernel" not in message
    assert caught[0].filename == __file__
    assert described(found[0]) == hand(tables.CONV_1D)
    assert [spec.guessed for spec in found] == [True, False, True, False, True]


@logic
@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("einsum_dense/kernel", (6, 2, 4)),
        ("decoder_1/kernel", (3, 3, 4, 8)),
        ("up/kernel", (3, 3, 4, 8)),
        ("mask/kernel", (3, 3, 8, 1)),
        ("xlnet/segment_encoding", (2, 4, 6)),
        ("tensor", (2, 3, 4, 5, 6, 7)),
    ],
)
def test_doubtful(path, shape):
    with pytest.warns(UserWarning, match=path):
        infer_roles([Variable(path, shape)])


@logic
def test_a_bias_of_both_channels_does_not_tell_a_decoder_from_an_encoder():
    assert infer_guess(("up/kernel", (3, 3, 8, 8)), ("up/bias", (8,)))
    pairs = [("up_conv/kernel", (3, 3, 8, 8)), ("up_conv/bias", (8,))]
    assert infer(*pairs)[0] == hand(tables.CONV_2D)


@logic
def test_what_is_given_is_kept_without_a_warning():
    variables = [Variable("tensor", (2, 3, 4)), Variable("b", (4,))]
    given = assigned_spec("tensor", (2, 3, 4), "hidden", 1, 2)
    found = infer_roles(variables, [given, None])
    assert found[0] is given
    assert found[1].role == "vector"


@logic
@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_gates_are_known_beside_a_frozen_recurrent_kernel(cell, gates):
    kernel = keras.Variable(np.zeros((5, 2 * gates), "float32"), name="kernel")
    kernel._path = f"encoder/{cell}_cell_1/kernel"
    (layer,) = infer_roles([kernel])
    assert (layer.output_blocks, layer.d_in, layer.d_out) == (gates, 5, 2)
