"""Callbacks that record the noise and the rates of a model while it trains."""

import csv as csv_files
import os
import pathlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.roles.sources import without_numbers
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.tools.plots import draw_noise
from keras_lanton.validation import COUNT
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

FIGURES = ("noise", "ratio", "learning_rate")


class NoiseMonitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Records noise, ratio and learning rate of every matrix that is measured.

    Every few batches of `fit` it records the figures of
    `optimizer.noise_report()`, one column per matrix. It copies them on the
    device and reads them at the next record, so training does not wait.
    Several calls of `fit` with the same monitor count as one run.

    At the end of an epoch it adds to Keras' `logs` the mean noise of each kind
    of block (`noise_qk`, `noise_mlp`, ...) and the range of the ratios
    (`smallest_ratio`, `largest_ratio`). Callbacks after this one log them,
    such as CSVLogger, TensorBoard and those of other loggers, and `History`.

    Args:
        every: Batches from one record to the next, at least 1.
        csv: Path of a CSV file, or None: one row per record and matrix, with
            step, path, matrix, role, block, noise, ratio, learning_rate. If
            the file exists, the monitor keeps its rows up to the optimizer's
            step, so that a resumed run continues them.

    Raises:
        ValueError: For a wrong argument; in `fit`, for an optimizer that
            measures no noise, another model than before, or a `csv` that is
            another file.

    Examples:
        >>> monitor = NoiseMonitor(every=1)
        >>> history = model.fit(x, y, verbose=0, callbacks=[monitor])
        >>> figure = monitor.plot()

    References:
        Hao et al., arXiv 2510.14009: its figures of effective learning rates
        and of noise, and its table of noise within QK, VO and MLP.
    """

    def __init__(
        self,
        every: int = 10,
        csv: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check_numbers({"every": COUNT}, every=every)
        if csv is not None and not isinstance(csv, (str, os.PathLike)):
            raise ValueError(
                f"`csv` must be None or a path. Received: csv={shown(csv)}"
            )
        self.every = every
        self.csv = None if csv is None else pathlib.Path(csv)
        self._batches = 0  # of all calls of `fit`
        self._last_batch = -1  # of this epoch
        self._resumed = False
        self._snapshot: Any = None  # that nobody has read yet
        self._columns: list[tuple[str, int, VariableSpec]] = []
        self._steps: list[int] = []
        self._rows: dict[str, list[np.ndarray]] = {f: [] for f in FIGURES}

    # The records.

    @property
    def steps(self) -> np.ndarray:
        """Steps of the optimizer at each record, `(records,)` int64.

        With gradient accumulation they are micro-steps.
        """
        self._read()
        return np.array(self._steps, "int64")

    @property
    def noise(self) -> np.ndarray:
        """sqrt(H), in the unit of `alpha_unit`, `(records, matrices)`."""
        return self._stacked("noise")

    @property
    def ratio(self) -> np.ndarray:
        """The matrices' rates over the base rate, `(records, matrices)`."""
        return self._stacked("ratio")

    @property
    def learning_rate(self) -> np.ndarray:
        """The matrices' learning rates, `(records, matrices)`."""
        return self._stacked("learning_rate")

    @property
    def paths(self) -> list[str]:
        """Path of each matrix' variable, with a number if that has several."""
        self._read()
        return [
            f"{path}[{k}]" if spec.batch > 1 else path
            for path, k, spec in self._columns
        ]

    @property
    def roles(self) -> list[str]:
        """Role of each matrix."""
        self._read()
        return [spec.role for _, _, spec in self._columns]

    @property
    def blocks(self) -> list[str]:
        """Kind of block of each matrix: `"qk"`, `"vo"`, `"mlp"`, ..."""
        self._read()
        return [block_of(spec) for _, _, spec in self._columns]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draws noise, its spread within blocks, and learning rates.

        Args:
            path: File for the picture; its suffix is the format.

        Returns:
            A `matplotlib.figure.Figure` of three panels: noise of the groups,
            noise within QK, VO and MLP (bands: least and largest matrix), and
            the learning rates of the groups over the base rate (bands:
            standard deviation).

        Raises:
            ValueError: Without any record.
            ImportError: Without matplotlib.

        References:
            arXiv 2510.14009.
        """
        if not len(self.steps):
            raise ValueError(
                "`plot` needs a record: give the monitor to `fit`, for at "
                f"least `every` batches. Received: every={self.every}, "
                f"{self._batches} batches"
            )
        rate = self._optimizer().noise
        figure = draw_noise(
            self.steps,
            self.noise,
            self.ratio,
            roles=self.roles,
            blocks=self.blocks,
            over_signal=rate is not None and rate.alpha_unit == "signal",
        )
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    # What `fit` calls.

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a model whose optimizer measures nothing."""
        self._optimizer()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Batches are counted anew in each epoch."""
        self._last_batch = -1
        # Here `BackupAndRestore` has restored the optimizer's step.
        self._resume_once()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes a record when it is time."""
        before = self._batches
        self._batches += batch - self._last_batch
        self._last_batch = batch
        if self._batches // self.every > before // self.every:
            self._take()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The file has all of an epoch at its end, and `logs` a summary."""
        self._read()
        if logs is not None:
            logs.update(self._summary())

    def on_train_end(self, logs: Any = None) -> None:
        """Writes what is left."""
        self._resume_once()  # a finished run has no epoch
        self._read()

    # How.

    def _optimizer(self) -> LMOOptimizer:
        """The model's own, out of Keras' loss scaling."""
        optimizer = getattr(self.model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(inner, LMOOptimizer) or inner.noise is None:
            raise ValueError(
                "`NoiseMonitor` needs a model that is compiled with an "
                "optimizer that measures noise, such as `Lanton()`. A task "
                "of KerasHub that `load_model` made has Adam: compile it with "
                "`Lanton`, then `keras_lanton.load_checkpoint(model, path)`. "
                f"Received: optimizer={shown(optimizer)}"
            )
        return inner

    def _resume_once(self) -> None:
        if self.csv is not None and not self._resumed:
            self._resume(self.csv, self._optimizer())
            self._resumed = True

    def _resume(self, path: pathlib.Path, optimizer: LMOOptimizer) -> None:
        """Takes over the file's records of the steps until now.

        Raises:
            ValueError: If they are of another model.
        """
        now = int(ops.convert_to_numpy(optimizer.micro_steps))
        records = _read_csv(path) if path.exists() else {}
        if records:
            self._columns = _columns(optimizer)
        paths = [name for name, _, _ in self._columns]
        names = [[without_numbers(n), str(k)] for n, k, _ in self._columns]
        last = max(records, default=0)
        for step, rows in records.items():
            if step > now:
                continue
            found = [[without_numbers(row[1]), row[2]] for row in rows]
            if step == last and found == names[: len(found)] != names:
                continue  # the file ended within it
            if found != names:
                raise ValueError(
                    "`csv` must be a file of this model's matrices, or a new "
                    f"one. Received: csv={str(path)!r}, which has "
                    f"{found[:3]}... in place of {names[:3]}..."
                )
            for given, path_now in zip(rows, paths, strict=True):
                given[1] = path_now  # Keras may number equal names anew
            self._steps.append(step)
            for i, name in enumerate(FIGURES):
                row = [float(each[i - len(FIGURES)]) for each in rows]
                self._rows[name].append(np.array(row, "float32"))
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(path.name + ".new")
        with whole.open("w", newline="") as file:
            kept = (row for step in self._steps for row in records[step])
            csv_files.writer(file).writerows([COLUMNS, *kept])
        whole.replace(path)

    def _take(self) -> None:
        """Reads the last snapshot, which is there by now; takes another."""
        self._read()
        self._sync()
        self._snapshot = self._optimizer().noise_snapshot()

    def _sync(self) -> None:
        """On JAX `fit` keeps the variables' values to itself."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()

    def _summary(self) -> dict[str, float]:
        """Mean noise of each kind of block, and the range of the ratios."""
        self._sync()
        optimizer = self._optimizer()
        report = optimizer.noise_report(optimizer.noise_snapshot())
        columns = _columns(optimizer)
        blocks = np.array([block_of(spec) for _, _, spec in columns])
        noise, ratio = (
            np.array([report[path][name][k] for path, k, _ in columns])
            for name in ("noise", "ratio")
        )
        return {
            **{
                f"noise_{name}": float(noise[blocks == name].mean())
                for name in dict.fromkeys(blocks.tolist())
            },
            "smallest_ratio": float(ratio.min()),
            "largest_ratio": float(ratio.max()),
        }

    def _read(self) -> None:
        """Turns the snapshot into a record."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        optimizer = self._optimizer()
        report = optimizer.noise_report(snapshot)
        self._columns = self._columns or _columns(optimizer)
        paths = list(dict.fromkeys(path for path, _, _ in self._columns))
        if not set(paths) <= set(report):
            raise ValueError(
                "A NoiseMonitor is for one model: make another. Received: a "
                f"model with other layers than before, {list(report)}"
            )
        self._steps.append(int(ops.convert_to_numpy(snapshot.iterations)))
        for name in FIGURES:
            row = [report[path][name] for path in paths]
            self._rows[name].append(np.concatenate(row))
        self._write()

    def _write(self) -> None:
        """The last record to the file."""
        if self.csv is None:
            return
        step, last = self._steps[-1], [self._rows[f][-1] for f in FIGURES]
        with self.csv.open("a", newline="") as file:
            csv_files.writer(file).writerows(
                (step, path, k, spec.role, block_of(spec), *figures)
                for (path, k, spec), figures in zip(
                    self._columns, np.stack(last, 1).tolist(), strict=True
                )
            )

    def _stacked(self, name: str) -> np.ndarray:
        self._read()
        shape = (len(self._steps), len(self._columns))
        return np.array(self._rows[name], "float32").reshape(shape)


COLUMNS = ("step", "path", "matrix", "role", "block", *FIGURES)


def _columns(optimizer: LMOOptimizer) -> list[tuple[str, int, VariableSpec]]:
    """Path, number and layer of each matrix that is measured.

    Raises:
        ValueError: If there is none.
    """
    roles = optimizer.lmo_roles
    specs = [s for s in optimizer.updated_specs if s.role in roles]
    paths = optimizer.noise_report(optimizer.noise_snapshot())
    found = [
        (path, k, spec)
        for path, spec in zip(paths, specs, strict=True)
        for k in range(spec.batch)
    ]
    if not found:
        raise ValueError(
            "`NoiseMonitor` needs a model with trainable matrices, whose noise "
            "is measured. Received: "
            f"{[spec.path for spec in optimizer.updated_specs]}"
        )
    return found


def _read_csv(path: pathlib.Path) -> dict[int, list[list[str]]]:
    """The rows of each record, by its step."""
    with path.open(newline="") as file:
        lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):  # it was cut off
        del lines[-1]
    head, *rows = list(csv_files.reader(lines)) or [[]]
    if tuple(head) != COLUMNS:
        raise ValueError(
            "`csv` must be a file of NoiseMonitor's. "
            f"Received: csv={str(path)!r}, which begins with {head}"
        )
    records: dict[int, list[list[str]]] = {}
    for row in rows:
        if len(row) != len(COLUMNS) or not row[0].isdigit():
            raise ValueError(
                "`csv` must be a file of NoiseMonitor's, or a new one. "
                f"Received: csv={str(path)!r}, with the row {row}"
            )
        records.setdefault(int(row[0]), []).append(row)
    return records
