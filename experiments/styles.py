"""How the pictures show each optimizer; imports no Keras."""

# Label, colour and marker by name. The colours are Okabe and Ito's or Tol's,
# distinct for color-blind readers; those of `lanton`, `adamw` and `sgd` are
# also in examples/. Two optimizers that share one differ in their markers.
STYLES = {
    "lanton": ("Lanton", "#0072B2", "o"),
    "lanton_paper": ("Lanton, paper's settings", "#882255", "s"),
    "adamw": ("AdamW, clipped at 1", "#D55E00", "p"),
    "keras_muon": ("Keras' Muon", "#009E73", "h"),
    "muon": ("Muon", "#009E73", "v"),
    "d_muon": ("D-Muon", "#56B4E9", "^"),
    "adamuon": ("AdaMuon", "#999933", "D"),
    "normuon": ("NorMuon", "#117733", "X"),
    "scion": ("Scion", "#CC79A7", "<"),
    "mars": ("MARS-AdamW", "#E69F00", ">"),
    "blockwise_adamw": ("BW-AdamW", "#000000", "*"),
    "lamb": ("LAMB", "#000000", "P"),
    "sgd": ("SGD", "#666666", "X"),
}
# All that trains language models; SGD does not.
OPTIMIZERS = tuple(name for name in STYLES if name != "sgd")
