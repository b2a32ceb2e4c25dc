"""Compares robust means, attacks, compressors, privacy and schedules with other people's code.

    python benchmarks/peers/compare_conditions.py          # writes results/peers-conditions.md

Flower, dp-accounting, scipy, numpy and torch are those of this environment. Packages are installed without their
dependencies into .venv-peers/conditions on first use. Repositories are not fetched: clone them from GitHub into
.venv-peers/clones/ as the table says. Otherwise their lines say "not run".
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conditions_of_peers import (
    BAD,
    KARIMIREDDY,
    S,
    aggregator,
    alie_unbiased,
    attackers,
    bit_flipped,
    blades_alie,
    dp_accounting_replace_one,
    fedlab_quantised,
    fedlab_topk,
    fedscale_active,
    flower_clipped,
    flower_krum,
    flower_next_clip,
    flower_split,
    flower_strategy,
    flsim_mask,
    flsim_staleness,
    low_rank,
    mean,
    opacus_epsilon,
    pfl_epsilon,
    sent,
    v,
    workers,
    z,
)

import fedkeel as fk
from fedkeel.channel import aggregation

RESULT = Path(__file__).parents[2] / "results" / "peers-conditions.md"
SAME = 1e-9
Line = tuple[str, str, str, Callable[[], tuple[Any, Any]], str]  # what, peer, setting, (ours, theirs), explanation


def lines(folder: Path) -> list[Line]:
    even = z[:10]
    return [
        (
            "median",
            "Flower 1.41.0",
            "FedMedian, 11 uploads",
            lambda: (mean(aggregation.Median()), flower_strategy("FedMedian")),
            "",
        ),
        ("median", "numpy", "10 uploads", lambda: (mean(aggregation.Median(), even), np.median(even.numpy(), axis=0)), ""),
        (
            "median",
            KARIMIREDDY.title,
            "11 uploads",
            lambda: (mean(aggregation.Median()), aggregator("coordinatewise_median", "CM")),
            "",
        ),
        (
            "trimmed mean",
            "Flower 1.41.0",
            "FedTrimmedAvg(beta=0.2)",
            lambda: (mean(aggregation.TrimmedMean(0.2)), flower_strategy("FedTrimmedAvg", beta=0.2)),
            "",
        ),
        (
            "trimmed mean",
            KARIMIREDDY.title,
            "b = 2",
            lambda: (mean(aggregation.TrimmedMean(0.2)), aggregator("trimmed_mean", "TM", 2)),
            "",
        ),
        ("krum", "Flower 1.41.0", "2 bad of 11", lambda: flower_krum(1), ""),
        ("multi-krum", "Flower 1.41.0", "2 bad of 11, 9 kept", lambda: flower_krum(9), ""),
        (
            "multi-krum",
            KARIMIREDDY.title,
            "f = 2, m = 9; its sum divided by 9",
            lambda: (mean(aggregation.MultiKrum(0.2)), aggregator("krum", "Krum", S, BAD, 9) / 9),
            ("The peer adds fourth powers of distances where the paper adds squares; here both choose the same nine."),
        ),
        (
            "geometric median",
            KARIMIREDDY.title,
            "RFA(T=500, nu=1e-9)",
            lambda: (mean(aggregation.GeometricMedian(500)), aggregator("rfa", "RFA", 500, 1e-9)),
            "",
        ),
        (
            "geometric median",
            KARIMIREDDY.title,
            "RFA(T=8, nu=0.1), its usual setting",
            lambda: (mean(aggregation.GeometricMedian()), aggregator("rfa", "RFA", 8, 0.1)),
            "Eight steps of Weiszfeld's iteration have not converged; ours goes on until nothing changes.",
        ),
        (
            "norm bounding",
            "Flower 1.41.0",
            "clip_inputs_inplace, then the mean",
            lambda: (mean(aggregation.NormBound(2.0)), flower_clipped()[1].mean(0)),
            "",
        ),
        (
            "centred clipping",
            KARIMIREDDY.title,
            "(its author's code) tau = 1.5, 3 iterations, first round",
            lambda: (mean(aggregation.CentredClipping(1.5, 3)), aggregator("clipping", "Clipping", 1.5, 3)),
            "",
        ),
        (
            "ALIE",
            KARIMIREDDY.title,
            "the same number of standard deviations; 2 of 11",
            lambda: (attackers(fk.ALIE(BAD / S)), workers("alittle", "ALittleIsEnoughAttack")),
            "The peer's standard deviation divides by n - 1, ours by n; the next line has ours with n - 1.",
        ),
        (
            "ALIE",
            KARIMIREDDY.title,
            "ours, with standard deviations that divide by n - 1",
            lambda: (alie_unbiased(-1), workers("alittle", "ALittleIsEnoughAttack")),
            "",
        ),
        (
            "ALIE",
            "Blades 711e8df",
            "2 of 11",
            lambda: (attackers(fk.ALIE(BAD / S)), blades_alie()),
            "The peer moves up instead of down, and divides by n - 1; the next line has ours so.",
        ),
        ("ALIE", "Blades 711e8df", "ours, upwards and with n - 1", lambda: (alie_unbiased(1), blades_alie()), ""),
        (
            "inner-product",
            KARIMIREDDY.title,
            "epsilon 0.5",
            lambda: (attackers(fk.InnerProduct(BAD / S)), workers("xie", "IPMAttack", epsilon=0.5)),
            "",
        ),
        (
            "sign-flip",
            KARIMIREDDY.title,
            "bit flipping: minus the gradient",
            lambda: (attackers(fk.SignFlip(BAD / S)), bit_flipped()),
            "",
        ),
        ("top-k", "FedLab 1.3.0", "k = 60 of 600", lambda: (sent("topk:0.1"), fedlab_topk(0.1)), ""),
        ("top-k", "FLSim 7311f2d", "sparse mask, 540 of 600 are 0", flsim_mask, ""),
        (
            "quantize",
            "torch 2.13.0",
            "fake_quantize_per_tensor_affine, 4 bits",
            lambda: (sent("quantize:4"), torch.fake_quantize_per_tensor_affine(v, float(v.abs().max()) / 7, 0, -7, 7)),
            "",
        ),
        (
            "quantize",
            "FedLab 1.3.0",
            "QSGD(3 bits and a sign), not random",
            lambda: (sent("quantize:4"), fedlab_quantised(3)),
            (
                "The peer rounds down to 8 levels; ours rounds to the nearest of 7 levels, so that 0 "
                "and the largest number are met."
            ),
        ),
        (
            "sign",
            "numpy",
            "sign times the mean size",
            lambda: (sent("sign"), np.sign(v.numpy()) * np.abs(v.numpy()).mean()),
            "",
        ),
        (
            "low rank",
            "numpy",
            "rank 2 of 20 x 30: the error",
            low_rank,
            ("Two power iterations (torch.svd_lowrank) come close to the best error, which numpy's singular values give."),
        ),
        ("clipping", "Flower 1.41.0", "two fields, clip 2", flower_clipped, ""),
        ("adaptive clip: noise", "Flower 1.41.0", "noise 0.8, 100 clients", flower_split, ""),
        (
            "adaptive clip: next clip",
            "Flower 1.41.0",
            "its rule with the share that was not clipped",
            lambda: flower_next_clip(False),
            "",
        ),
        (
            "adaptive clip: next clip",
            "Flower 1.41.0",
            "as shipped",
            lambda: flower_next_clip(True),
            (
                "Flower counts the uploads that were clipped, Andrew et al. those that were not: with "
                "Flower's count the clip moves away from the quantile."
            ),
        ),
        (
            "epsilon, Poisson",
            "opacus 1.6.0",
            "q 0.1, noise 1.5, 50 rounds, delta 1e-5",
            opacus_epsilon,
            (
                "dp-accounting computes orders between whole numbers in another way. With whole orders "
                "alone both say the same."
            ),
        ),
        (
            "epsilon, Poisson",
            "pfl-research 0.6.0",
            "RDP accountant, the same",
            lambda: pfl_epsilon("RDPPrivacyAccountant"),
            "",
        ),
        (
            "epsilon, Poisson",
            "pfl-research 0.6.0",
            "PLD accountant, the same",
            lambda: pfl_epsilon("PLDPrivacyAccountant"),
            ("Privacy loss distributions bound epsilon more tightly than Renyi divergences; ours is on the safe side."),
        ),
        (
            "epsilon, fixed cohorts",
            "dp-accounting 0.6.0",
            "100 of 1,000, noise 4 (sensitivity 2), 30 rounds",
            dp_accounting_replace_one,
            "",
        ),
        ("staleness sqrt", "FLSim 7311f2d", "polynomial, exponent 0.5, tau up to 19", lambda: flsim_staleness(0.5), ""),
        ("staleness constant", "FLSim 7311f2d", "tau up to 19", lambda: flsim_staleness(None), ""),
        ("trace", "FedScale", "is_active in every second of a turn", lambda: fedscale_active(folder), ""),
    ]


def compared(line: Line) -> tuple[list[str], bool]:
    what, peer, setting, run, why = line
    try:
        ours, theirs = run()
    except Exception as error:  # the reason is part of the table
        return [what, peer, setting, "", f"not run: {type(error).__name__}: {' '.join(str(error).split())[:120]}"], True
    if isinstance(ours, list) and isinstance(ours[0], list):
        difference = float(ours != theirs)
    else:
        difference = float(np.abs(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)).max())
    if peer.startswith("Blades"):
        difference = difference if difference > 1e-6 else 0.0  # its number of standard deviations is a float32
    single = 2e-7 if isinstance(ours, torch.Tensor) and ours.dtype == torch.float32 else SAME
    same = difference <= single
    verdict = "same" if same else f"explained. {why}" if why else "DIFFERENT"
    return [what, peer, setting, f"{difference:.0e}", verdict + (f" ({why})" if same and why else "")], same or bool(why)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [compared(line) for line in lines(Path(folder))]
    head = (
        "# The same numbers as other people's rules, attacks, compressors and accountants\n\n"
        "Written by `python benchmarks/peers/compare_conditions.py`; do not edit. The difference is the largest of any "
        "number. Uploads: 11 vectors in float64, two of them far away; compressors: a vector of 600 numbers in float32.\n\n"
        "Without a peer: random-k (its places come from our seed), model replacement and random uploads (tested against "
        "their definitions), label flipping, Markov, cyclic and label-tied absence (tested against their probabilities), "
        "FedBuff's step (by hand in tests/engine/test_clock.py). Flower 1.41.0 has no accountant of epsilon.\n\n"
    )
    table = ["| what | peer | setting | difference | explanation |", "| --- | --- | --- | --- | --- |"]
    table += [f"| {' | '.join(row)} |" for row, _ in rows]
    RESULT.write_text(head + "\n".join(table) + "\n")
    print(RESULT.read_text())
    sys.exit(not all(good for _, good in rows))


if __name__ == "__main__":
    main()
