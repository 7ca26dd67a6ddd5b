"""A run: all that decides its result, and the file that holds it."""

import dataclasses
import pathlib
import shutil

from experiments.settings import Settings
from experiments.token_files import read_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "evidence"
AGAIN = RESULTS.with_name("evidence_again")  # other results of the same runs
FRESH = "fresh"  # the optimizer's state at the start, in a result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """One run of one optimizer.

    Args:
        optimizer: A name of `experiments.optimizers.construct`.
        learning_rate: The peak rate.
        options: Pairs of arguments and values; "noise.alpha" is the argument
            `alpha` of the part `noise`.
        seed: Of the initial weights and the order of the batches.
    """

    optimizer: str
    learning_rate: float
    options: tuple = ()
    seed: int = 1

    @property
    def backend(self):
        """Keras' backend that trains it."""
        return "jax"

    @property
    def side_by_side(self):
        """Whether runs that are alike can train together."""
        return False

    @property
    def name(self):
        """A readable name, another one for other settings."""
        rate = f"{self.learning_rate:g}"
        return f"{self.task}-{self.optimizer}-{rate}-{self.digest}"

    def with_options(self, **options):
        """The same run with some options changed."""
        merged = dict(self.options) | options
        return dataclasses.replace(self, options=tuple(sorted(merged.items())))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial(Run):
    """A run on a language model.

    Args:
        model: "gpt2" or "llama".
        size: A key of `sizes.WIDTHS`.
        text: A name of `texts`.
        batch_size: Blocks of 64 tokens.
        tokens_per_weight: How long it trains.
        initial: A name of `sizes.INITIAL`.
        **kwargs: As `Run`.
    """

    model: str = "gpt2"
    size: str = "S"
    text: str = "wiki"
    batch_size: int = 16
    tokens_per_weight: float = 20.0
    initial: str = "scaled"

    @property
    def side_by_side(self):
        """Yes, where the plain learner trains them."""
        return type(self).learner is Trial.learner

    @property
    def task(self):
        """The start of the name."""
        return f"{self.model}-{self.size}"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(
            self,
            learning_rate=0.0,
            seed=0,
            text="",
            tokens_per_weight=0.0,
            initial="",
        )

    def count_steps(self, weights):
        """Steps of the run.

        Args:
            weights: Trained weights of the model, all of them.
        """
        from experiments.evidence import sizes

        return sizes.count_steps(
            weights, self.tokens_per_weight, self.batch_size
        )

    def prepare(self, folder, cache):
        """Leave the text in `cache` as tokens.

        Args:
            folder: Has the text, unless it is Python's own.
            cache: Another folder.
        """
        from experiments.evidence import texts

        texts.make(self.text, folder, cache / texts.FOLDER)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.training import Learner

        return Learner(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfTrial(Trial):
    """A `Trial` of another dtype policy.

    Args:
        dtype: The policy of all layers, and so the dtype of the weights.
        **kwargs: As `Trial`.
    """

    dtype: str = "bfloat16"

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-{self.dtype}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortTrial(Trial):
    """A `Trial` of some steps, whatever the size of the model.

    Args:
        steps: A multiple of `sizes.CHUNK`.
        **kwargs: As `Trial`.
    """

    steps: int = 400

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-{self.steps}-steps"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(super().alike(), steps=0)

    def count_steps(self, weights):
        """Steps of the run."""
        return self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColdTrial(ShortTrial):
    """A `ShortTrial` whose rate is at its peak from the first step.

    Args:
        warmup: Share of the steps in which the rate rises.
        **kwargs: As `ShortTrial`.
    """

    warmup: float = 0.0

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-cold"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepTrial(ShortTrial):
    """A `ShortTrial` of a model with more blocks, or fewer.

    Args:
        layers: The number of blocks.
        **kwargs: As `ShortTrial`.
    """

    layers: int

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-{self.layers}-layers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSearchTrial(Trial):
    """A call of `keras_lanton.find_learning_rate` on the model of a `Trial`.

    Args:
        steps: Of each of its runs.
        **kwargs: As `Trial`.
    """

    steps: int = 100

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-rate-search"

    def learner(self):
        """What runs this trial, and those alike."""
        from experiments.evidence.rate_searcher import RateSearcher

        return RateSearcher(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenTrial(Trial):
    """A `Trial` whose noise is constant: the mean over another run.

    Args:
        other_seed: Whether that run has another seed; all else is as here.
        **kwargs: As `Trial`.
    """

    other_seed: bool = False

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-frozen"

    def source(self):
        """The run whose noise this one has."""
        fields = {f.name: getattr(self, f.name) for f in FIELDS}
        return Trial(**{**fields, "seed": self.seed + self.other_seed})

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(super().alike(), other_seed=False)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.frozen import FrozenLearner

        return FrozenLearner(self)


FIELDS = dataclasses.fields(Trial)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning(Run):
    """A run from pretrained weights, on another text.

    Args:
        model: As `Trial`.
        size: As `Trial`.
        base: A name of `fine_tuning.BASES`: what the weights are of. Its seed
            is that of this run.
        rank: Of LoRA on queries and values; 0 trains all weights.
        by_adamw: Variables that AdamW updates, whatever the optimizer: a
            regular expression on paths, or "".
        text: A name of `texts`, in the tokens of the base's vocabulary.
        batch_size: Blocks of 64 tokens.
        steps: How long it trains.
        **kwargs: As `Run`.
    """

    model: str = "gpt2"
    size: str = "S"
    base: str = "lanton"
    rank: int = 0
    by_adamw: str = ""
    text: str = "sotu"
    batch_size: int = 16
    steps: int = 1000

    @property
    def task(self):
        """The start of the name."""
        return f"{self.model}-{self.base}-to-{self.text}"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(
            self, learning_rate=0.0, seed=0, base="", steps=0
        )

    def prepare(self, folder, cache):
        """Leave both texts in `cache` as tokens."""
        from experiments.evidence import fine_tuning
        from experiments.evidence import texts

        for name in (fine_tuning.TEXT, self.text):
            texts.make(name, folder, cache / texts.FOLDER, fine_tuning.TEXT)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.fine_tuner import FineTuner

        return FineTuner(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunToLoss(Run):
    """A run at one rate that ends at a loss; its result is the steps it took.

    Args:
        model: As `Trial`.
        size: As `Trial`.
        text: As `Trial`.
        batch_size: Blocks of 64 tokens.
        target: The validation loss to reach.
        most_blocks: The run ends without a result after so many.
        initial: As `Trial`.
        **kwargs: As `Run`.
    """

    model: str = "gpt2"
    size: str = "S"
    text: str = "wiki"
    batch_size: int = 16
    target: float = 4.2
    most_blocks: int = 200_000
    initial: str = "scaled"

    @property
    def task(self):
        """The start of the name."""
        return f"{self.model}-{self.size}-{self.text}-to-{self.target:g}"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(
            self, learning_rate=0.0, seed=0, text="", target=0.0, initial=""
        )

    def prepare(self, folder, cache):
        """Leave the text in `cache` as tokens."""
        from experiments.evidence import texts

        texts.make(self.text, folder, cache / texts.FOLDER)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.runner_to_loss import RunnerToLoss

        return RunnerToLoss(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizeAdviceTrial(RunToLoss):
    """A `RunToLoss` that then asks for a batch size.

    Args:
        noise_steps: Batches whose gradients are compared.
        **kwargs: As `RunToLoss`.
    """

    noise_steps: int = 64

    @property
    def task(self):
        """The start of the name."""
        return f"{super().task}-advice"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(super().alike(), noise_steps=0)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.runner_to_loss import BatchSizeAdviser

        return BatchSizeAdviser(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTrial(Run):
    """A run of the narrow airbench network.

    Args:
        model: "airbench".
        data: "fashion_mnist".
        widths: Channels of the three groups of convolutions.
        batch_size: Images.
        epochs: How long it trains.
        judged_by: Images of the result: `"test"`, or `"held_out"`, the last
            10,000 of the training images, on which the run then does not
            train.
        **kwargs: As `Run`.
    """

    model: str = "airbench"
    data: str = "fashion_mnist"
    widths: tuple = (12, 48, 48)
    batch_size: int = 500
    epochs: int = 8
    judged_by: str = "test"

    @property
    def backend(self):
        """Keras' backend that trains it."""
        return "tensorflow"

    @property
    def task(self):
        """The start of the name."""
        return f"{self.model}-{self.data}"

    def alike(self):
        """Equal for trials that share what is compiled."""
        return dataclasses.replace(
            self, learning_rate=0.0, seed=0, epochs=0, judged_by=""
        )

    def prepare(self, folder, cache):
        """Leave the images in `cache`, where the folder has them."""
        source, copy = (place / f"{self.data}.npz" for place in (folder, cache))
        if source.exists() and not copy.exists():
            cache.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)

    def learner(self):
        """What trains this trial, and those alike."""
        from experiments.evidence.images import ImageLearner

        return ImageLearner(self)


def path_of(trial, folder=RESULTS):
    """The file of a trial's result."""
    return folder / trial.model / f"{trial.name}.json"


def read(trial, folder=RESULTS):
    """The result of a trial; None if it has not run."""
    return read_json(path_of(trial, folder))


def all_results(folder=RESULTS):
    """All results of language models that a folder has."""
    return [read_json(path) for path in sorted(folder.glob("*/*.json"))]


def loss_of(result):
    """The last validation loss; infinite where the run diverged."""
    return float("inf") if result["loss"] is None else result["loss"]
