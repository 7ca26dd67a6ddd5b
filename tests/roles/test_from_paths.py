"""Roles and views inferred from paths and shapes."""

import keras
import numpy as np
import pytest

from helpers import roles
from helpers.roles import Variable
from helpers.roles import described
from helpers.roles import hand
from helpers.roles import infer
from helpers.tiers import logic
from keras_lanton.roles.from_paths import infer_roles
from keras_lanton.roles.spec import assigned_spec

# Names that users give, which say nothing: the bias tells. These three need
# the layer.
UNTOLD = {*roles.GROUPED, "einsum_dense_experts"}


def pairs_of(text):
    """Pairs of "path 2,3; path 4": a path and a shape."""
    found = []
    for one in text.split("; "):
        path, _, sizes = one.partition(" ")
        shape = tuple(int(size) for size in sizes.split(",") if size)
        found.append((path, shape))
    return found


@logic
@pytest.mark.parametrize("case", [x for x in roles.LAYERS if x not in UNTOLD])
def test_layer_with_a_name_that_says_nothing(case):
    layer = roles.make(case, "block")
    roles.check(layer, roles.lines_of(case, "block"))


@logic
def test_head_without_a_telling_name():
    pairs = pairs_of(
        "tokens/embeddings 32,8; positions/embeddings 32,8; "
        "block_0/up/kernel 8,32; block_0/down/kernel 32,8; "
        "block_1/up/kernel 8,32; block_1/down/kernel 32,8; out/kernel 8,32"
    )
    # Creation order is not call order: the block, not the order, decides.
    swapped = [pairs[i] for i in (0, 1, 3, 2, 5, 4, 6)]
    for some in (pairs, swapped):
        assert infer(*some)[-1] == hand(roles.HEAD)
        assert infer(*some[:-1])[2:] == [hand(roles.DENSE)] * 4


@logic
@pytest.mark.parametrize(
    ("text", "line"),
    [
        # As many classes as positions, segments or relative distances.
        ("position_embedding/embeddings 32,8; d/kernel 8,32", roles.DENSE),
        ("wpe/embeddings 32,8; d/kernel 8,32", roles.DENSE),
        ("token_type/embeddings 2,8; d/kernel 8,2", roles.DENSE),
        ("rel_bias/embeddings 32,8; d/kernel 8,32", roles.DENSE),
        # A hidden layer that happens to be as wide as the vocabulary.
        (
            "tokens/embeddings 32,8; dense/kernel 8,32; dense_1/kernel 32,1",
            roles.DENSE,
        ),
        # A square kernel, and those of a recurrent layer.
        ("tokens/embeddings 8,8; query/kernel 8,8", roles.DENSE),
        (
            "tokens/embeddings 32,8; lstm/lstm_cell/kernel 8,32; "
            "lstm/lstm_cell/recurrent_kernel 8,32",
            roles.LSTM,
        ),
    ],
)
def test_not_a_head(text, line):
    _, *rest = infer(*pairs_of(text))
    assert rest == [hand(line)] * len(rest)


# What names and siblings say of the first variable.
@logic
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("dense/kernel 4,5", roles.DENSE),
        ("dense/kernel 4,1", roles.DENSE),
        ("w 4,5", roles.DENSE),
        ("kernel:0 4,5", roles.DENSE),
        ("w 4", roles.VECTOR),
        ("temperature ", roles.VECTOR),
        ("a/query_dense_layernorm/scale 3,4", roles.VECTOR),
        ("p_re_lu/alpha 3,4,5", roles.VECTOR),
        ("encoder/content_attention_bias 4,6", roles.VECTOR),
        ("experts/down_proj_bias 3,6", roles.VECTOR),
        ("vit/class_token 1,1,6", roles.VECTOR),
        ("head/variable 1,1,6", roles.VECTOR),
        ("dino/register_tokens 1,4,6", roles.VECTOR),
        ("mixer/conv1d_kernel 8,4", roles.VECTOR),
        ("deit/position_embedding 1,5,6", "embedding - | 2 | 01"),
        ("tables/embeddings 3,9,4", "embedding - | 2 | 01"),
        ("swin/relative_position_bias_table 9,2", roles.TABLE),
        ("sam/rel_pos_h 9,2", roles.TABLE),
        ("patch_embedding/kernel 8,8,3,6", roles.CONV_2D),
        ("patch_embedding/kernel 4,5", roles.DENSE),
        ("stem/kernel 3,3,3,8", roles.CONV_2D),
        ("stem/kernel 3,3,3,3,8", roles.CONV_3D),
        ("conv1d_3/kernel 3,4,8", roles.CONV_1D),
        ("conv2d_transpose_1/kernel 3,3,8,8", "hidden - | 013 | 2"),
        ("up_conv/kernel 3,3,8,8; up_conv/bias 8", roles.CONV_2D),
        ("block1_dwconv/kernel 3,3,8,1", roles.VECTOR),
        ("attn/qkv/kernel 6,3,2,4", "hidden - | 0 | 123"),
        ("attn/q_proj/kernel 6,2,4", roles.TO_HEADS),
        ("attn/wo/kernel 2,4,6", roles.FROM_HEADS),
        ("attn/wq 6,2,4", roles.TO_HEADS),
        ("attn/query/kernel 2,6,4", roles.GEMMA_TO_HEADS),
        ("moe/w1 3,4,5", roles.EXPERTS),
        ("moe/experts/up/kernel 3,4,5", roles.EXPERTS),
        ("moe/expert_w 3,4,5", roles.EXPERTS),
        ("moe/router/kernel 4,3", roles.DENSE),
        ("moe_block/attention/key/kernel 6,2,4", roles.TO_HEADS),
        ("cell/kernel 4,5; cell/recurrent_kernel 5", roles.DENSE),
        ("cell/recurrent_kernel 5; cell/kernel 4,5", roles.VECTOR),
        # The bias of an untold layer has the size of its output axes.
        ("up/kernel 3,3,8,4; up/bias 8", "hidden - | 013 | 2"),
        ("up/kernel 3,3,8,4; up/bias 4", roles.CONV_2D),
        ("a/kernel 3,8,4; a/bias 8", "hidden - | 02 | 1"),
        ("a/kernel 6,2,4; a/bias 2,4", roles.TO_HEADS),
        ("mask/kernel 3,3,8,1; mask/bias 1", roles.CONV_2D),
        ("a/w 3,8,4; a/b 4", roles.CONV_1D),
        ("a/kernel 3,8,4; a/bias 1,1,4", roles.CONV_1D),
        ("qkv/kernel 6,3,2,4; qkv/bias 3,2,4", "hidden - | 0 | 123"),
        # Without a bias the normalization that follows has it.
        ("up/kernel 3,3,8,4; n/gamma 8", "hidden - | 013 | 2"),
        ("up/kernel 3,3,8,4; n/gamma 4", roles.CONV_2D),
        # Depthwise.
        ("dw/kernel 3,3,8,1; dw/bias 8", roles.VECTOR),
        ("a/kernel 3,3,8,1; a/bias 8", roles.VECTOR),
        ("a/kernel 3,3,8,1; norm/gamma 8", roles.VECTOR),
        ("a/kernel 3,3,8,2; a/bias 16", roles.VECTOR),
        ("a/kernel 3,8,2; a/bias 16", roles.VECTOR),
        # The output projection tells Gemma's axes from those of others.
        (
            "attention/query/kernel 6,6,4; "
            "attention/attention_output/kernel 6,4,6",
            roles.TO_HEADS,
        ),
        (
            "attention/value/kernel 1,16,4; attention/query/kernel 32,16,4; "
            "attention/attention_output/kernel 32,4,16",
            roles.GEMMA_TO_HEADS,
        ),
        (
            "attention/key/kernel 8,16,4; attention/query/kernel 8,16,4; "
            "attention/attention_output/kernel 16,4,7",
            roles.TO_HEADS,
        ),
        # Gemma's attention, and that of others, with biases.
        (
            "attention/query/kernel 2,6,4; attention/query/bias 2,4; "
            "attention/key/kernel 2,6,4; attention/key/bias 2,4; "
            "attention/attention_output/kernel 2,4,6",
            roles.GEMMA_TO_HEADS,
        ),
        (
            "attention/query/kernel 6,6,4; attention/query/bias 6,4; "
            "attention/key/kernel 6,6,4",
            roles.TO_HEADS,
        ),
        # Halves of one kernel, or two kernels of experts.
        (
            "experts/gate_dense 3,4,10; experts/output_dense 3,5,4",
            "hidden 0 | 1 | 2 / 2",
        ),
        (
            "experts/gate_dense 3,4,10; experts/output_dense 3,10,4",
            roles.EXPERTS,
        ),
        ("experts/w 3,4,8; experts/b 3,8", roles.EXPERTS),
    ],
)
def test_names_and_siblings(text, line):
    found = infer_roles([Variable(*pair) for pair in pairs_of(text)])
    assert described(found[0]) == hand(line)


@logic
def test_of_equal_paths_the_nearest_is_the_sibling():
    found = infer(*pairs_of("kernel 6,2,4; bias 2,4; kernel 3,6,2; bias 2"))
    expected = [roles.TO_HEADS, roles.VECTOR, roles.CONV_1D, roles.VECTOR]
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
    lines = [roles.DENSE, roles.DENSE, roles.VECTOR]
    assert [described(layer) for layer in found] == [hand(x) for x in lines]


# -- Guesses -----------------------------------------------------------------


@logic
@pytest.mark.parametrize("layer", ["bank", "value", "output"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        # A bias beside a stack of matrices proves nothing.
        ("{}/kernel 3,5,7; {}/bias 3,7", roles.EXPERTS),
        ("{}/kernel 5,5,7; {}/bias 5,7", roles.EXPERTS),  # as well heads
        ("{}/kernel 3,5,7; {}/bias 3,1,7", roles.EXPERTS),
        ("{}/kernel 3,7,5; {}/bias 3,7", "hidden 0 | 2 | 1"),
        ("{}/kernel 3,2,5,7; {}/bias 3,7", "hidden 0 | 12 | 3"),
        ("{}/kernel 3,5,2,7; {}/bias 3,2,7", "hidden 0 | 1 | 23"),
        ("{}/kernel 3,4,5,7; {}/bias 3,4,7", "hidden 01 | 2 | 3"),
        ("{}/kernel 5,3,2,7; {}/bias 3,7", "hidden 1 | 02 | 3"),
        ("{}/w 3,5,7; {}/b 3,7", roles.EXPERTS),
        ("{}/weights 3,5,7; {}/biases 3,7", roles.EXPERTS),
        ("{}/kernels 3,5,7; {}/biases 3,7", roles.EXPERTS),
        # A bias as long as the rows.
        ("{}/weight 5,3; {}/bias 5", "hidden - | 1 | 0"),
    ],
)
def test_guesses_by_the_bias(layer, text, line):
    pairs = pairs_of(text.replace("{}", layer))
    with pytest.warns(UserWarning, match=f"guesses: {pairs[0][0]} "):
        found = infer(*pairs)
    assert found[0] == hand(line)


BIASES = """
biases bias_stack bias_0 hidden_biases b_enc b_dec b b_1 b_q bias_hh_l0
norm_weight attention_norm ln_1 layer_norm_weight gains offset shift r_k
attn_gammas norm/weight rms_norm_1/weight
"""
KERNELS = """
kernel kernels weight weights w W w1 W_q wq w_in W_enc to_out to_qkv matrix
mixing_matrix v2 gate up down gate_up_proj c_proj projection U expert_0 experts
lora_a lora_kernel_b fc1 dense_2 linear mlp_out query i2h h2h output router
weight_mu kernel_sigma real_kernel recurrent a1
"""
OTHERS = """
variable variable_3 layer/variable_12 Variable:0 A B layer/tensor centers
prototypes memory theta params/0 position_encoding A_log codebook
"""


@logic
@pytest.mark.parametrize(
    ("names", "line"), [(BIASES, roles.VECTOR), (KERNELS, roles.DENSE)]
)
def test_names_of_stacked_biases_and_gains_and_of_kernels(names, line):
    for name in names.split():
        assert infer((f"bank/{name}", (3, 7))) == [hand(line)], name


@logic
@pytest.mark.parametrize("name", OTHERS.split())
def test_other_names_of_rank_two_are_guesses(name):
    with pytest.warns(UserWarning, match=r"\(3, 7\) as 1 hidden matrix"):
        (found,) = infer_roles([Variable(name, (3, 7))])
    assert found.guessed
    assert described(found) == hand(roles.DENSE)


@logic
def test_one_warning_names_all_guesses_and_both_methods():
    text = "a/tensor 2,3,4; dense/kernel 3,4; b/kernel 2,3,4; b/bias 2,4; "
    pairs = pairs_of(f"{text}variable_1 5,6")
    with pytest.warns(UserWarning) as caught:
        found = infer_roles([Variable(*pair) for pair in pairs])
    (message,) = (str(warning.message) for warning in caught)
    for part in (
        "a/tensor (2, 3, 4) as 1 hidden matrix (6 x 4), output axis 2;",
        "b/kernel (2, 3, 4) as 2 hidden matrices (3 x 4), output axis 2;",
        "variable_1 (5, 6) as 1 hidden matrix (5 x 6), output axis 1;",
        "optimizer.read_roles(",
        "optimizer.assign_role(",
    ):
        assert part in message
    assert "dense/kernel" not in message
    assert caught[0].filename == __file__
    assert described(found[0]) == hand(roles.CONV_1D)
    assert [spec.guessed for spec in found] == [True, False, True, False, True]


@logic
@pytest.mark.parametrize(
    "text",
    [
        "einsum_dense/kernel 6,2,4",
        "decoder_1/kernel 3,3,4,8",
        "up/kernel 3,3,4,8",
        "up/kernel 3,3,8,8; up/bias 8",  # of both channels
        "mask/kernel 3,3,8,1",
        "xlnet/segment_encoding 2,4,6",
        "tensor 2,3,4,5,6,7",
    ],
)
def test_doubtful(text):
    pairs = pairs_of(text)
    with pytest.warns(UserWarning, match=pairs[0][0]):
        infer(*pairs)


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
