"""Ten times larger, on a GPU: runs of a GPT-2 of 14 million weights, compared.

    python benchmarks/gpu_runs/ladder.py --prepare TEXTS --tokens FILE
    python benchmarks/gpu_runs/ladder.py --tokens FILE --output DIR
    python benchmarks/gpu_runs/ladder.py --report DIR/ladder.jsonl

The first command tokenizes `wiki` of the folder TEXTS. The second trains the
runs that DIR/ladder.jsonl lacks, until its time is over; each is a line. It
may be killed at any moment and called again. The third prints a table.

A run has 8 tokens per weight of the hidden matrices, which is almost five
passes over the text. While a contestant trains, the next one is compiled.

The rates. At width 256 (benchmarks/results/runs.jsonl, seed 1) `Lanton()` and
`noise=None` were best at 0.0025 and D-Muon at 0.005, in batches of 1,024
tokens; AdamW with tables at a rate of their own at 0.001, in 400 steps. Four
times the batch wants about twice the rate (docs/guides/learning_rate.md), 32
times would want 5.7 times, and width 384 about 0.75 of the rate at 256. So
the middle rate is four times that at width 256. `Lanton.paper()` was tuned
at width 64 only, where its best rate, 0.005, was close to that of `Lanton()`:
it has the same rates. NorMuon has D-Muon's. The others are half and twice the
middle. Batches of 8,192 tokens have half of all rates.

Newton-Schulz. At width 256 and in 400 steps `Lanton()` ended 0.05 lower with
Polar Express' coefficients, the default, than with the cubic ones, which the
first results here have: those leave singular values below 0.007 of the
Frobenius norm behind, and the wider a matrix, the more of them it has.

The scales of embeddings. In 400 steps at widths 128 and 256 `Lanton()` ended
0.06 and 0.04 lower with `embedding_scale=1000` than with 300, and as low at
width 64. Here AdamW for the embeddings ended 0.05 lower than signs at 300.
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import pathlib
import sys
import time
import traceback
from concurrent import futures

os.environ["KERAS_BACKEND"] = "jax"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import common  # noqa: E402
import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from experiments import batches  # noqa: E402
from experiments import language  # noqa: E402
from experiments import texts  # noqa: E402
from experiments.contestants import CONTESTANTS  # noqa: E402
from experiments.models import make_model  # noqa: E402
from experiments.optimizers import construct  # noqa: E402
from experiments.presets import PRESETS  # noqa: E402
from experiments.tokens import learn_vocabulary  # noqa: E402
from experiments.tokens import tokenize  # noqa: E402

Run = collections.namedtuple("Run", "contestant learning_rate seed")
# In this order. Rates are for batches of 32,768 tokens.
TABLE = (
    Run("lanton", 0.01, 1),
    Run("lanton", 0.02, 1),
    Run("lanton_scale_1000", 0.01, 1),
    Run("lanton_scale_1000", 0.02, 1),
    Run("d_muon", 0.02, 1),
    Run("cubic_scale_1000", 0.02, 1),
    Run("d_muon", 0.01, 1),
    Run("normuon", 0.02, 1),
    Run("normuon", 0.01, 1),
    Run("adamw_tables", 0.004, 1),
    Run("adamw_tables", 0.002, 1),
    Run("lanton", 0.005, 1),
    Run("lanton_scale_1000", 0.005, 1),
    Run("lanton_without_noise", 0.01, 1),
    Run("lanton_without_noise", 0.02, 1),
    Run("lanton_by_adamw", 0.01, 1),
    Run("lanton_by_adamw", 0.02, 1),
    Run("adamw_tables", 0.008, 1),
    Run("normuon", 0.04, 1),
    Run("lanton", 0.04, 1),
    Run("d_muon", 0.04, 1),
    Run("lanton_scale_600", 0.01, 1),
    Run("lanton_more_decay", 0.01, 1),
    Run("lanton_paper", 0.02, 1),
    Run("lanton_paper", 0.01, 1),
    Run("lanton_paper", 0.04, 1),
)
NAMES = tuple(dict.fromkeys(run.contestant for run in TABLE))
MORE_SEEDS = (2, 3)  # of each contestant's best rate
# By name: of `CONTESTANTS`, with other arguments. Names of the results that
# are there stay as they are: "lanton_defaults" has the cubic coefficients.
# Lanczos waits for the host on a GPU; "auto" is <D, polar(D)> there.
CHANGES = {
    "lanton_paper": ("lanton_paper", {"noise.estimator": "auto"}),
    "lanton_scale_600": ("lanton", {"embedding_scale": 600.0}),
    "lanton_scale_1000": ("lanton", {"embedding_scale": 1000.0}),
    "cubic_scale_1000": ("cubic", {"embedding_scale": 1000.0}),
    "lanton_more_decay": ("lanton", {"weight_decay": 0.2}),
    "lanton_by_adamw": (
        "lanton",
        {
            "auxiliary_adamw.roles": ["embedding", "vector"],
            "embedding_scale": None,
        },
    ),
}
FILE = "ladder.jsonl"
PARTS = 8  # of the validation blocks; the losses on the way are of one
KEYS = ("model", "batch", "tokens/weight", "contestant")  # of the table
LOOKS = 10  # validation losses on the way


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all runs share.

    Args:
        tokens_per_weight: Length of a run, per weight of a hidden matrix.
        chunk: Steps that are compiled as one: a run has a multiple of them.
        validation_blocks: At the end of a run, a multiple of `PARTS`.
    """

    depth: int = 6
    width: int = 384
    head_width: int = 64
    vocabulary: int = 8192
    context: int = 256
    batch_tokens: int = 32_768
    tokens_per_weight: float = 3.3
    chunk: int = 100
    validation_blocks: int = 2048
    dtype_policy: str = "mixed_bfloat16"
    pretended: bool = False

    @property
    def batch_size(self):
        """Blocks in a step."""
        return self.batch_tokens // self.context

    @property
    def hidden_weights(self):
        """Entries of the hidden matrices: 12 squares in a block of GPT-2."""
        return 12 * self.depth * self.width**2

    @property
    def steps(self):
        """Steps of a run."""
        wanted = self.tokens_per_weight * self.hidden_weights
        chunks = round(wanted / self.batch_tokens / self.chunk)
        return max(1, chunks) * self.chunk

    def preset(self):
        """The model, as `experiments.models` wants it."""
        return dataclasses.replace(
            PRESETS["gpt2_demo"],
            layers=self.depth,
            width=self.width,
            head_width=self.head_width,
            vocabulary=self.vocabulary,
            context=self.context,
            feed_forward=4 * self.width,
            dtype_policy=self.dtype_policy,
            scaled_kernels=True,
        )


PRETENDED = Setting(
    depth=2,
    width=32,
    head_width=16,
    vocabulary=256,
    context=16,
    batch_tokens=128,
    tokens_per_weight=0.08,
    chunk=4,
    validation_blocks=64,
    pretended=True,
)


# -- Tokens ------------------------------------------------------------------


def prepare(folder, path):
    """Tokenize the text `wiki`, every tenth document held out.

    Args:
        folder: Has `wiki.txt`, `.txt.gz` or `.txt.xz`.
        path: The `.npz` to write.
    """
    documents = texts.documents("wiki", folder)
    tokenizer = learn_vocabulary(documents[0], Setting().vocabulary)
    text = texts.Text(*(tokenize(tokenizer, some) for some in documents))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **dataclasses.asdict(text))
    print(
        f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(text.training):,} "
        f"tokens for training, {len(text.validation):,} held out"
    )


def load(path):
    """The `Text` that `prepare` left."""
    with np.load(path) as arrays:
        return texts.Text(arrays["training"], arrays["validation"])


def random_text(setting):
    """A `Text` without sense."""
    tokens = np.random.default_rng(0).integers(
        setting.vocabulary, size=12_000, dtype="uint16"
    )
    return texts.Text(tokens[:10_000], tokens[10_000:])


# -- Training ----------------------------------------------------------------


def arguments_of(name):
    """The arguments of a contestant, beside its learning rate."""
    _, changes = CHANGES.get(name, (name, {}))
    return {**contestant_of(name).options, **changes}


def contestant_of(name):
    """A contestant by its name here."""
    known, _ = CHANGES.get(name, (name, {}))
    return CONTESTANTS[known]


def means(losses, parts=20):
    """Mean losses over equal parts of a run."""
    parts = np.array_split(losses, min(parts, len(losses)))
    return [round(float(part.mean()), 4) for part in parts]


def finite(loss):
    """A loss for JSON, which has no NaN."""
    return round(float(loss), 5) if np.isfinite(loss) else None


class Task:
    """The model and the text, on the device.

    Args:
        setting: A `Setting`.
        text: A `texts.Text`.
    """

    def __init__(self, setting, text):
        self.setting = setting
        self.model = self.make_model(seed=1)
        self.training = jnp.array(text.training)
        self.validation = jnp.array(text.validation)
        self.blocks = batches.count_blocks(text.training, setting.context)
        count = batches.count_blocks(text.validation, setting.context)
        rows = np.linspace(0, count - 1, setting.validation_blocks)
        # (PARTS, blocks): each is spread over the text.
        self.validation_rows = rows.astype("int32").reshape(-1, PARTS).T
        self.known = {}  # first weights by seed

    def make_model(self, seed):
        """The model with a seed's initial weights."""
        keras.utils.set_random_seed(seed)
        preset = self.setting.preset()
        language_model = make_model(preset, preset.vocabulary)
        return keras.Model(language_model.input, language_model.output)

    def first_weights(self, seed):
        """The weights of a seed, and the model's other state."""
        if seed not in self.known:
            model = self.make_model(seed)
            self.known[seed] = (
                language.values(model.trainable_variables),
                language.values(model.non_trainable_variables),
            )
        return self.known[seed]

    def training_rows(self, seed):
        """The blocks of each step, `(steps, batch)` int32."""
        steps, batch_size = self.setting.steps, self.setting.batch_size
        rows = batches.training_rows(0, steps, self.blocks, batch_size, seed)
        return rows.astype("int32").reshape(steps, batch_size)

    def mean_loss(self, weights, other, tokens, rows, training):
        """Loss of the blocks `rows` of a text, in nats per token.

        Logits stay in the model's dtype; sums over the vocabulary are float32.
        """
        starts = rows[:, None] * self.setting.context
        blocks = tokens[starts + jnp.arange(self.setting.context + 1)]
        blocks = blocks.astype("int32")
        inputs, targets = blocks[:, :-1], blocks[:, 1:]
        inputs = {"token_ids": inputs, "padding_mask": jnp.ones_like(inputs)}
        logits, other = self.model.stateless_call(
            weights, other, inputs, training=training
        )
        logits = logits.astype("float32")  # within the sums, not in memory
        # A sum, since the gradient of a gather is a scatter.
        wanted = targets[..., None] == jnp.arange(logits.shape[-1])
        right = jnp.sum(jnp.where(wanted, logits, 0.0), axis=-1)
        loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - right)
        return loss, other

    def compile_validation(self):
        """Compile the loss of a part of the validation blocks."""

        def loss(*given):
            return self.mean_loss(*given, training=False)[0]

        given = (*self.first_weights(1), self.validation)
        lowered = jax.jit(loss).lower(*given, self.validation_rows[0])
        self.validate = lowered.compile()

    def validation_losses(self, state, parts):
        """Losses of so many parts of the validation, on the device."""
        return [
            self.validate(*state[:2], self.validation, rows)
            for rows in self.validation_rows[:parts]
        ]


class Contestant:
    """An optimizer and its compiled steps, for all rates and seeds.

    Args:
        name: Of `NAMES`.
        task: A `Task`.
    """

    def __init__(self, name, task):
        self.task = task
        self.optimizer = construct(
            contestant_of(name).optimizer, 1e-3, options=arguments_of(name)
        )
        self.optimizer.build(task.model.trainable_variables)
        self.first_slots = language.values(self.optimizer.variables)

    def start(self, seed):
        """Weights, the model's other state and the optimizer's: new arrays.

        A chunk of steps takes the memory of the state that it is given.
        """
        first = (*self.task.first_weights(seed), self.first_slots)
        return jax.tree.map(jnp.array, first)

    def step(self, tokens, state, batch):
        """One step, for `jax.lax.scan`."""
        weights, other, slots = state
        rows, rate = batch
        loss = jax.value_and_grad(self.task.mean_loss, has_aux=True)
        (loss, other), gradients = loss(
            weights, other, tokens, rows, training=True
        )
        slots = language.with_rate(self.optimizer, slots, rate)
        weights, slots = self.optimizer.stateless_apply(
            slots, gradients, weights
        )
        return (weights, other, slots), loss

    def compile(self):
        """Compile a chunk of steps; may run in another thread."""

        def steps(state, tokens, rows, rates):
            step = functools.partial(self.step, tokens)
            return jax.lax.scan(step, state, (rows, rates))

        started = time.perf_counter()
        setting = self.task.setting
        rows = np.zeros((setting.chunk, setting.batch_size), "int32")
        rates = np.zeros(setting.chunk, "float32")
        first = (*self.task.first_weights(1), self.first_slots)
        lowered = jax.jit(steps, donate_argnums=0).lower(
            first, self.task.training, rows, rates
        )
        self.chunk = lowered.compile()
        self.compile_seconds = round(time.perf_counter() - started, 1)
        return self

    def train(self, run, deadline=float("inf")):
        """What a run measures, as JSON has it.

        The device does not wait: losses of a chunk are looked at when the
        next one is under way. A run ends early if it diverges, or if it is
        not done at the deadline; then it is not complete.

        Args:
            run: A `Run`.
            deadline: Of `time.perf_counter`.
        """
        task, steps = self.task, self.task.setting.steps
        rows = task.training_rows(run.seed)
        rates = language.rates_of(run.learning_rate, steps)
        state = self.start(run.seed)
        ends = range(0, steps + 1, task.setting.chunk)[1:]
        looks = np.linspace(0, len(ends), LOOKS + 1).astype(int)[1:]
        losses, curve = [], []
        started = time.perf_counter()
        for i, end in enumerate(ends, 1):
            part = slice(end - task.setting.chunk, end)
            state, loss = self.chunk(
                state, task.training, rows[part], rates[part]
            )
            losses.append(loss)
            if i in looks:
                curve.append((end, task.validation_losses(state, 1)[0]))
            diverged = not np.isfinite(losses[-2:][0]).all()
            if diverged or time.perf_counter() > deadline:
                break
        losses = np.concatenate(losses)
        seconds = time.perf_counter() - started
        final = np.mean(task.validation_losses(state, PARTS))
        tokens = end * task.setting.batch_tokens
        return {
            "complete": bool(diverged or end == steps),
            "steps_done": end,
            "training_loss": [finite(x) for x in means(losses)],
            "validation": [[at, finite(loss)] for at, loss in curve],
            "loss": finite(final) if end == steps else None,
            "seconds": round(seconds, 2),
            "tokens_per_second": round(tokens / seconds),
            "compile_seconds": self.compile_seconds,
        }


# -- What to run -------------------------------------------------------------


def read(paths):
    """The results of some files; a line that a kill cut off is left out."""
    found = []
    for path in filter(pathlib.Path.exists, paths):
        for line in filter(None, path.read_text().splitlines()):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                print(f"{path}: a broken line is left out")
    return found


def settings_of(run, setting):
    """All that decides a result, as JSON has it."""
    return {
        **run._asdict(),
        "arguments": arguments_of(run.contestant),
        **dataclasses.asdict(setting),
        "steps": setting.steps,
        "tokens": setting.steps * setting.batch_tokens,
    }


def result_of(run, setting, results):
    """The result of a run, if it was trained to its end; else None."""
    wanted = settings_of(run, setting)
    for result in results:
        if result["complete"] and wanted.items() <= result.items():
            return result
    return None


def plan(setting, results, names):
    """The missing runs of these contestants, in order.

    More seeds follow when all rates are done, at each contestant's best.

    Args:
        setting: A `Setting`.
        results: From `read`.
        names: Of `NAMES`.
    """
    factor = 0.5 if setting.batch_tokens == 8192 else 1.0
    runs = [
        run._replace(learning_rate=factor * run.learning_rate)
        for run in TABLE
        if run.contestant in names
    ]
    found = {run: result_of(run, setting, results) for run in runs}
    if None not in found.values():
        best = best_runs({run: found[run]["loss"] for run in runs})
        runs = [run._replace(seed=x) for x in MORE_SEEDS for run in best]
    return [run for run in runs if result_of(run, setting, results) is None]


def best_runs(losses):
    """Each contestant's run with the lowest loss, by run; None diverged."""
    ended = {run: loss for run, loss in losses.items() if loss is not None}
    names = dict.fromkeys(run.contestant for run in ended)
    return [
        min((r for r in ended if r.contestant == name), key=ended.get)
        for name in names
    ]


class Ladder:
    """Trains runs; compiles the next contestant meanwhile.

    Args:
        setting: A `Setting`.
        text: A `texts.Text`.
        deadline: Of `time.perf_counter`.
    """

    def __init__(self, setting, text, deadline):
        self.deadline, self.longest = deadline, 0.0
        self.task = Task(setting, text)
        self.thread = futures.ThreadPoolExecutor(1)
        self.compiled = {}  # futures by contestant

    def has_time(self, runs=1):
        """Whether as many runs would end, if each took the longest yet."""
        left = self.deadline - time.perf_counter()
        return left > max(0.0, 1.05 * runs * self.longest)

    def compile(self, names):
        """Begin with the first of these contestants that is not compiled.

        Keras' scopes belong to a thread: it builds in this one.
        """
        for name in names:
            if name not in self.compiled:
                contestant = Contestant(name, self.task)
                self.compiled[name] = self.thread.submit(contestant.compile)
                return

    def train(self, runs):
        """What the first of some runs measures; None if it has no time.

        Args:
            runs: Missing ones, in their order.
        """
        names = [run.contestant for run in runs]
        self.compile(names[:1])
        if not hasattr(self.task, "validate"):
            self.task.compile_validation()
        contestant = self.compiled[names[0]].result()
        if not self.has_time():
            return None
        if self.has_time(2):  # else the next one's turn will not come
            self.compile(names)
        started = time.perf_counter()
        measured = contestant.train(runs[0], self.deadline)
        self.longest = max(self.longest, time.perf_counter() - started)
        return measured


def climb(setting, text, args):
    """Train missing runs until the time is over; each is a line of the file.

    The first failure may be that of a kernel for attention: after it, XLA's
    own is taken. A contestant that fails again is left out.

    Args:
        setting: A `Setting`.
        text: A `texts.Text`.
        args: From `make_parser`.
    """
    path = args.output / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    results = read([path, *args.results])
    deadline = common.STARTED + args.seconds
    ladder = Ladder(setting, text, deadline)
    names = list(args.only)
    for _ in range(args.runs):
        runs = plan(setting, results, names)
        if not runs or not ladder.has_time():
            break
        try:
            measured = ladder.train(runs)
        except Exception:
            traceback.print_exc()
            if keras.config.is_flash_attention_enabled() is False:
                names.remove(runs[0].contestant)
            else:
                keras.config.disable_flash_attention()
                ladder = Ladder(setting, text, deadline)
            continue
        if measured is None:
            break
        settings = settings_of(runs[0], setting)
        result = {**settings, **measured, **where(ladder.task, args)}
        results.append(result)
        with path.open("a") as file:
            # A new line first: a kill may have cut the last one.
            file.write("\n" + json.dumps(result) + "\n")
        shown = (*Run._fields, "loss", "seconds", "tokens_per_second")
        print(*(f"{x}={common.cell(result[x])}" for x in shown), flush=True)
    report(results)


def where(task, args):
    """The model's size, the device and its memory, versions and commit."""
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "weights": task.model.count_params(),
        "hidden_weights": task.setting.hidden_weights,
        "flash_attention": keras.config.is_flash_attention_enabled(),
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "device": common.PRETENDED if args.pretend else common.gpu_name("jax"),
        "versions": common.versions("jax"),
        "commit": args.commit or common.commit(),
    }


def report(results):
    """Print a line for each contestant, model and batch size."""
    groups = collections.defaultdict(dict)
    for result in filter(lambda result: result["complete"], results):
        model = f"{result['depth']} x {result['width']}"
        key = (
            model,
            result["batch_tokens"],
            result["tokens_per_weight"],
            result["contestant"],
        )
        run = Run(*(result[name] for name in Run._fields))
        groups[key][run] = result["loss"]
    rows = [
        dict(zip(KEYS, key, strict=True)) | row_of(dict(sorted(losses.items())))
        for key, losses in groups.items()
    ]
    if rows:
        common.print_table(rows)


def row_of(losses):
    """Loss by rate, of seed 1; the best rate, and its loss by seed."""
    tried = {run: loss for run, loss in losses.items() if run.seed == 1}
    best = {run.learning_rate for run in best_runs(tried)}
    return {
        "rates": ", ".join(
            f"{r.learning_rate:g}: {common.cell(x)}" for r, x in tried.items()
        ),
        "best": min(best, default=None),
        "seeds": ", ".join(
            f"{r.seed}: {common.cell(x)}"
            for r, x in losses.items()
            if r.learning_rate in best
        ),
    }


# -- The command line --------------------------------------------------------


def make_parser():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    file = {"type": pathlib.Path, "metavar": "FILE"}
    add = parser.add_argument
    add("--tokens", **file, help="from --prepare")
    add("--output", type=pathlib.Path, default=pathlib.Path("runs", "gpu"))
    add("--seconds", type=float, default=330.0, help="when training ends")
    add("--runs", type=common.positive, default=1000, help="at most so many")
    add("--only", nargs="+", choices=NAMES, default=NAMES)
    add("--batch-tokens", type=common.positive, default=32_768)
    add("--tokens-per-weight", type=float, default=3.3)
    add("--results", **file, nargs="+", default=[], help="of earlier calls")
    add("--pretend", action="store_true", help="a tiny model, on the CPU")
    add("--commit", help="what to record as the commit where git is missing")
    add("--prepare", type=pathlib.Path, metavar="TEXTS", help="make --tokens")
    add("--report", **file, nargs="+", help="print a table")
    return parser


def main(argv=None):
    """Prepare, report, or train."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.report:
        return report(read(args.report))
    if args.pretend:
        jax.config.update("jax_platforms", "cpu")
        common.choose_as_on_gpu()
    elif args.tokens is None:
        parser.error("--tokens is missing")
    elif args.prepare:
        return prepare(args.prepare, args.tokens)
    elif common.gpu_name("jax") is None:
        parser.error("JAX sees no GPU: --pretend does without")
    setting = Setting(
        batch_tokens=args.batch_tokens,
        tokens_per_weight=args.tokens_per_weight,
    )
    setting = PRETENDED if args.pretend else setting
    text = load(args.tokens) if args.tokens else random_text(setting)
    vocabulary = int(text.training.max()) + 1
    setting = dataclasses.replace(setting, vocabulary=vocabulary)
    return climb(setting, text, args)


if __name__ == "__main__":
    main()
