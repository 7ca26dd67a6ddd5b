"""The theory of LANTON, on a stochastic quadratic whose constants are known.

    python -m experiments.paper.theory

writes benchmarks/results/theory.json; docs/paper.md shows it. The problem has
N layers, matrices of 16 x 24:

    f(X) = sum_l 1 / (2 r k) ||X_l - X*_l||_F^2,   r = 16, k = 24 / 16

so that each layer's gradient is 1-Lipschitz from the RMS->RMS norm to its
dual ||.||_*. A stochastic gradient adds noise whose dual norm is between
s_l and S_l = s_l / 0.9, always: a random multiple of one of 16 fixed partial
isometries, of random sign. `Lanton` itself makes the steps (Option II: two
gradients per step, exact nuclear norms, alpha absolute, no look-ahead).

What is tested. The paper's proofs were not at hand: from the paper itself come
Algorithm 1, the assumption (smooth layers, s_l <= noise <= S_l almost
surely), that the bounds on H need beta_2 near 1 and s_l > 0, and the form of
the theorem: an average dual norm of 1 / sqrt(T) + sqrt(sum_l S_l) / T^(1/4),
against sqrt(N max_l S_l) without adaptation. The statements below, with their
constants, were derived here. M_l is E ||G - G'||_*^2, computed from the
problem, and s_l^2 <= M_l <= 4 S_l^2 by Jensen and the triangle inequality.

1. H. Surely H_t <= 4 S_l^2 (1 - b2^t). With probability 1 - delta, for all
   layers and all t from t0 to T at once,

       M_l (1 - b2^t) / 2  <=  H_t^l  <=  3 M_l (1 - b2^t) / 2

   where t0 is the first step from which Hoeffding's bound on the weighted sum
   (weights (1 - b2) b2^(t-k), terms in [0, 4 S_l^2]) and a union bound over
   layers, steps and sides promise it.
2. Ratio. Surely (alpha^2 / (alpha^2 + 4 S_l^2))^(1/4) <= ratio <= 1. On the
   event of 1, with h = 1 - b2^t and M the least M_l,

       ((alpha^2 + h M / 2) / (alpha^2 + 3 h M_l / 2))^(1/4)  <=  ratio
       ratio  <=  ((alpha^2 + 3 h M / 2) / (alpha^2 + h M_l / 2))^(1/4)

3. Rate. The usual analysis of momentum with a linear minimization oracle
   bounds the average over t of sum_l ||grad_l f||_* by

       Delta / (eta T) + 2 eta N / (1 - b1) + 2 sqrt(1 - b1) S

   up to terms of higher order, where S is sum_l S_l with adaptation and
   N max_l S_l without. The eta ~ T^(-3/4) and 1 - b1 ~ T^(-1/2) that minimize
   it give T^(-1/4), and sqrt(S). Adapted rates are divided by the mean of the
   ratios to be expected, so that their mean is eta.
4. Noise. As one layer's noise grows, the average norm without adaptation over
   that with it grows as sqrt(N max_l S_l / sum_l S_l). This compares two
   upper bounds: the methods themselves need not do so. Without adaptation
   ("fixed") it is run at its own eta and 1 - b1 of 3 ("own"), at those of the
   adaptive method ("same"), which is what adaptation by itself changes, and
   with eta tuned for each, "fixed" at the better of the two ("tuned").

The quadratic is separable, so that a noisy layer disturbs no other: what
adaptation gains where layers are coupled is not seen here.
"""

import argparse
import dataclasses
import json
import math
import pathlib

import numpy as np

from experiments.paper.quadratic import RADIUS
from experiments.paper.quadratic import mean_square
from experiments.paper.quadratic import trajectory
from experiments.run import ROOT

RESULT = ROOT / "benchmarks" / "results" / "theory.json"
ALPHA = 0.1
WITHOUT = 1e9  # so large that every ratio is 1
METHODS = ("adaptive", "fixed")
KINDS = (*METHODS, "same")  # "same" is "fixed" at the setting of "adaptive"
NOISE = 0.25  # of the other layers, in 4
ROUNDING = 1e-4
RECORDED = ("H", "ratios")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers of runs and steps."""

    trials: int = 10  # of the lemmas
    lemma_steps: int = 384
    beta_2: float = 1 - 1 / 128
    horizons: tuple = (32, 64, 128, 256, 512, 1024)  # T of the rate
    noise_steps: int = 256
    noises: tuple = (1, 4, 16)  # S of the noisy layer, over the others'
    factors: tuple = (1, 4)  # of eta, to tune it; 16 was worse for all
    layers: int = 6
    delta: float = 0.1


def hoeffding(t, S, scale):
    """The bound on |H - E H|; see 1. `(steps, layers)`."""
    b2 = scale.beta_2
    weights = (1 - b2) / (1 + b2) * (1 - b2 ** (2 * t))  # sum of their squares
    events = 2 * scale.layers * scale.lemma_steps / scale.delta
    return 4 * S**2 * np.sqrt(weights * math.log(events) / 2)


def check_lemmas(scale):
    S = np.geomspace(0.5, 2.0, scale.layers)
    M = mean_square() * S**2
    t = np.arange(1, scale.lemma_steps + 1)[:, None]
    h = 1 - scale.beta_2**t
    promised = np.all(hoeffding(t, S, scale) <= h * M / 2, axis=1)
    if not promised[-1]:
        raise ValueError(
            "`beta_2` must be nearer to 1, or `lemma_steps` larger: nothing "
            f"is promised. Received: beta_2={scale.beta_2}, "
            f"lemma_steps={scale.lemma_steps}"
        )
    start = scale.lemma_steps - int(np.argmin(promised[::-1]))
    a2, least = ALPHA**2, M.min()
    low = ((a2 + h * least / 2) / (a2 + 1.5 * h * M)) ** 0.25
    high = ((a2 + 1.5 * h * least) / (a2 + h * M / 2)) ** 0.25
    surely_low = (a2 / (a2 + 4 * S**2)) ** 0.25
    given = {"eta": 0.02, "beta_1": 0.9, "beta_2": scale.beta_2}
    given |= {"alpha": ALPHA, "record": True}
    runs = [
        trajectory(S, scale.lemma_steps, seed=seed, **given)
        for seed in range(scale.trials)
    ]
    # (trials, steps, layers)
    H, ratios = (np.stack([run[name] for run in runs]) for name in RECORDED)
    relative = H / (h * M)
    late, late_ratios = relative[:, start:], ratios[:, start:]
    held = {
        "H": (late >= 0.5) & (late <= 1.5),
        "ratio": (late_ratios >= low[start:] * (1 - ROUNDING))
        & (late_ratios <= high[start:] * (1 + ROUNDING)),
        "H_surely": H <= 4 * S**2 * h * (1 + ROUNDING),
        "ratio_surely": (ratios >= surely_low) & (ratios <= 1 + ROUNDING),
    }
    return {
        "S": S.tolist(),
        "M": M.tolist(),
        "trials": scale.trials,
        "t0": start + 1,
        "promised": 1 - scale.delta,
        "frequency": {
            name: float(np.all(one, axis=(1, 2)).mean())
            for name, one in held.items()
        },
        "largest_deviations": np.abs(late - 1).max(axis=(1, 2)).tolist(),
        "allowed_deviation": 0.5,
        "noisiest_layer": relative[:8, :, -1].tolist(),
    }


def setting(S, steps, method):
    """The eta and b1 that minimize the bound of 3, and alpha."""
    N = len(S)
    total = N * np.max(S) if method == "fixed" else np.sum(S)
    Delta = N * RADIUS**2 / 2
    share = min(1.0, math.sqrt(2 * Delta * N / steps) / total)
    eta = math.sqrt(Delta * share / (2 * N * steps))
    if method != "adaptive":
        return eta, 1 - share, WITHOUT
    a = ALPHA / np.sqrt(ALPHA**2 + mean_square() * S**2)
    return eta / np.mean(np.sqrt(a / a.max())), 1 - share, ALPHA


def average_norm(S, steps, method, seed, factor=1):
    """(1 / T) sum_t sum_l ||grad_l f||_*."""
    eta, beta_1, alpha = setting(S, steps, method)
    given = {"beta_1": beta_1, "beta_2": 0.98, "alpha": alpha, "seed": seed}
    run = trajectory(S, steps, eta=factor * eta, **given)
    return float(run["norms"].sum(axis=1).mean())


def measure_rate(scale, seeds):
    S = np.geomspace(0.5, 2.0, scale.layers)
    found = {"T": list(scale.horizons), "predicted": -0.25}
    for method in METHODS:
        norms = [
            [average_norm(S, T, method, seed) for T in scale.horizons]
            for seed in seeds
        ]
        logs = np.log(norms).T
        slopes = np.polyfit(np.log(scale.horizons), logs, 1)[0]
        found[method] = {
            "norms": norms,
            "exponent": float(np.mean(slopes)),
            "exponents": slopes.tolist(),
        }
    return found


def measure_noise(scale, seeds):
    predicted, norms = [], {kind: [] for kind in KINDS}
    for noise in scale.noises:
        S = np.full(scale.layers, NOISE)
        S[-1] *= noise
        predicted.append(math.sqrt(scale.layers * S.max() / S.sum()))
        for kind in KINDS:
            runs = [
                [
                    average_norm(S, scale.noise_steps, kind, seed, factor)
                    for factor in scale.factors
                ]
                for seed in seeds
            ]
            norms[kind].append(np.mean(runs, axis=0).tolist())
    adaptive, fixed, same = (np.array(norms[kind]) for kind in KINDS)
    own = scale.factors.index(1)
    best = np.minimum(fixed.min(axis=1), same.min(axis=1))
    return {
        "noises": list(scale.noises),
        "factors": list(scale.factors),
        "norms": norms,
        "predicted": predicted,
        "own": (fixed[:, own] / adaptive[:, own]).tolist(),
        "same": (same[:, own] / adaptive[:, own]).tolist(),
        "tuned": (best / adaptive.min(axis=1)).tolist(),
    }


def measure(scale, seeds):
    """The experiment, as JSON has it; the lemmas have seeds of their own."""
    return {
        "scale": dataclasses.asdict(scale),
        "seeds": list(seeds),
        "lemmas": check_lemmas(scale),
        "rate": measure_rate(scale, seeds),
        "noise": measure_noise(scale, seeds),
    }


def main(argv=None):
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=RESULT)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args(argv)
    result = measure(Scale(), args.seeds)
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(args.output)


if __name__ == "__main__":
    main()
