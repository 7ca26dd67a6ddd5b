"""Names that say what a variable is: a vector, a table, a matrix."""

import re


def pattern(*alternatives: str) -> re.Pattern[str]:
    """Any of some regular expressions, in any case."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


TRANSPOSED = pattern(r"transpose", r"deconv")
# Names that say nothing: the layer's own name does.
KERNEL_NAMES = ("kernel", "weight", "weights", "w", "lora_kernel_a")

_NORM = r"(layer|rms|batch|group)?_?norm(alization)?|ln|bn"
NORM = pattern(rf"(.*_)?({_NORM})(_?\d+)*")

# An upper-case B is a matrix of state-space models and of low-rank adapters.
_PLACES = (
    r"stack(ed)?|enc(oder)?|dec(oder)?|in|out|input|output|hidden|pre|post|"
    r"gate|up|down|ih|hh|qkv|[cfghikoqrvz]|l?\d+"
)
VECTOR = pattern(
    r"(.*_)?(bias(es)?|betas?|gammas?|alphas?|gains?|scales?|scalars?|lambdas?"
    r"|offsets?|shifts?|sinks?)_?\d*",
    rf"(.*_)?bias(es)?(_({_PLACES}))+",
    rf"(?-i:b)\d*(_({_PLACES}))*",
    rf"(.*_)?({_NORM})(_?\d+)*(_(weights?|w))?",
    r"(cls|class|mask|register|dist\w*|query|latent)_tokens?",
    r"depthwise_kernel",
    # Of KerasHub's VideoPrism and RWKV-7.
    r"pooling_attention_query",
    r"r_k",
)
TABLE = pattern(
    r"(.*_)?(embeddings?|embeds?|emb|table|wte|wpe)",
    r"lora_embeddings_a",
    r"rel_pos_\w+",
)

# Of variables of rank 2. What is neither here nor above is a guess.
_WORDS = (
    r"kernels?|weights?|w|w[hikoqrvxz]|wqkv|matri(x|ces)|mat|proj\w*|"
    r"projections?|linear|dense|fc|mlp|ffn?|feedforward|gates?|gated|gating|"
    r"up|down|experts?|moe|lora|adapters?|qkv"
)
_WHOLE = (
    r"query|key|value|in|out|input|output|hidden|recurrent|encoder|decoder|"
    r"router|mix(er|ing)?|transform|lm_head|head|logits|readout|classifier"
)
MATRIX = pattern(
    rf"(.*_)?({_WORDS})\d*(_.*)?",
    rf"(to_)?({_WHOLE})(_?\d+)*",
    r"[kmoquvw]",
    r"[a-z]\d+",
    r"[a-z]2[a-z]",
)
