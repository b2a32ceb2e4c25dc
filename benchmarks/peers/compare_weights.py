"""Compares fedkeel with other people's implementations: the weights after every round, on the same batches.

    python benchmarks/peers/compare_weights.py             # all peers; the first time it installs them (7 GB, 15 minutes)
    python benchmarks/peers/compare_weights.py flwr flgo   # some of them: prints, writes nothing

Each peer that is a package runs in a separate environment under .venv-peers/. Authors' repositories are not fetched: clone
them from GitHub into .venv-peers/clones/. Otherwise their lines say "not run" and how to clone them.

Prints a table and writes it to results/peers.md, followed by benchmarks/peers/one_off.md. A difference is explained if a
rule by hand gives exactly the peer's weights. Ends with status 1 if a difference is not explained.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
import numpy as np
import ours
import torch
from cases import CASES, Case
from environments import PEERS, Unavailable
from problem import EQUAL_STEPS, load, save

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "results" / "peers.md"
SMALLEST_MOVE = 0.05  # a comparison of weights that hardly move would show nothing

HEAD = """# The same weights as other people's code

Written by `python benchmarks/peers/compare_weights.py`; do not edit (the last section comes from
`benchmarks/peers/one_off.md`).

The problem: network 5-4-3 with tanh and cross-entropy, 4 clients with 5, 8, 11 and 4 samples, 2 epochs of batches of 4 (so
4, 4, 6 and 2 local steps), 5 rounds with 2 of 4 clients each, learning rate 0.1, unless the setting says otherwise. Both
sides get the same initial weights and the same batches in the same order. The difference is the largest of any weight after
any round. Everything is in float64 (rounding: about 1e-15) except where the peer insists on float32 (about 1e-7).
FL-Simulator adds 1e-7 to the norms of gradients that sharpness-aware methods divide by, and 1e-6 where it clips, so 1e-6
counts as the same there.
Aggregation is uniform, or by samples where the setting says so. "Equal K" means 4 local steps for every client. For Flower,
and for torch.optim on the server alone, the clients run fedkeel's plain SGD, so only the server's step is the peer's.

Code that is not a package (a commit stands beside its name) is neither in this repository nor fetched by it. Clone it from
GitHub to repeat these lines: `benchmarks/peers/environments.py` lists the repositories.
"""


@dataclass(frozen=True)
class Line:
    case: Case
    difference: str
    verdict: str  # same, explained, DIFFERENT or not run
    explanation: str

    def cells(self) -> list[str]:
        peer = PEERS[self.case.peer]
        title = f"{peer.title} {environments.release(peer)}" + (f", its {self.case.via}" if self.case.via else "")
        return [
            self.case.method, title, self.case.setting, self.difference,
            f"{self.verdict}. {self.explanation}" if self.explanation else self.verdict,
        ]  # fmt: skip


def weights_of(names: list[str]) -> dict[str, Any]:
    """Runs the peers -> for each the weights and errors of its cases, or the reason why it has none."""
    work = environments.HOME / "work"
    work.mkdir(parents=True, exist_ok=True)
    save(ours.problem(None), work / "epochs.npz")
    save(ours.problem(EQUAL_STEPS), work / "equal.npz")
    found: dict[str, Any] = {}
    for name in names:
        try:
            with np.load(environments.run(name)) as file:
                found[name] = {key: file[key] for key in file.files}
        except Unavailable as error:
            found[name] = str(error)
    return found


def tolerance(case: Case) -> float:
    return case.within or (2e-6 if case.settings.get("dtype") == torch.float32 else 1e-12)


def compare(case: Case, found: Any) -> Line:
    """One line of the table."""
    if isinstance(found, str):
        return Line(case, "-", "not run", found)
    if case.name not in found:
        return Line(case, "-", "not run", str(found.get(f"error {case.name}", "the script has no such case")))
    theirs = found[case.name]
    problem = load(environments.HOME / "work" / ("equal.npz" if case.settings.get("equal") else "epochs.npz"))
    if abs(theirs[-1] - problem.x0).max() < SMALLEST_MOVE:
        return Line(case, "-", "DIFFERENT", "the peer's weights did not move")
    gap = abs(theirs - ours.trajectory(case.method, case.options, **case.settings)).max()
    if case.rule is None:
        return Line(case, f"{gap:.0e}", "same" if gap < tolerance(case) else "DIFFERENT", "")
    rest = abs(theirs - np.stack(case.rule(problem))).max()
    explained = rest < tolerance(case) < gap
    return Line(
        case,
        f"{gap:.0e}",
        "explained" if explained else "DIFFERENT",
        f"{case.why} Peer minus this rule by hand: {rest:.0e}.",
    )


def table(lines: list[Line]) -> str:
    head = ["method", "peer", "setting", "largest weight difference", "explanation"]
    rows = [head, ["---"] * len(head), *(line.cells() for line in lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)


def summary(lines: list[Line]) -> str:
    """How many methods and peers agree, and what is missing."""
    same = [line.case for line in lines if line.verdict == "same"]
    direct = sorted({case.method for case in same if not case.via})
    others = sorted({f"{case.method} ({case.via})" for case in same if case.via and case.method not in direct})
    text = f"{len(direct)} methods give the weights of at least one peer's implementation of them: {', '.join(direct)}.\n"
    if others:
        text += f"{len(others)} more take the path of a peer's other method, as they must: {', '.join(others)}.\n"
    counts = Counter(line.verdict for line in lines)
    text += "Lines: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."
    missing = sorted({PEERS[line.case.peer].title for line in lines if line.verdict == "not run"})
    return text + (f" Not run: {', '.join(missing)}." if missing else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"some of: {', '.join(PEERS)}")
    chosen = parser.parse_args().peers or list(PEERS)
    if unknown := set(chosen) - set(PEERS):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    found = weights_of(chosen)
    cases = sorted((case for case in CASES if case.peer in chosen), key=lambda case: case.method)
    lines = [compare(case, found[case.peer]) for case in cases]
    print(f"\n{table(lines)}\n\n{summary(lines)}")
    if set(chosen) == set(PEERS):
        RESULT.parent.mkdir(exist_ok=True)
        one_off = (HERE / "one_off.md").read_text()
        RESULT.write_text(f"{HEAD}\n{summary(lines)}\n\n{table(lines)}\n\n{one_off}")
    return 1 if any(line.verdict == "DIFFERENT" for line in lines) else 0


if __name__ == "__main__":
    raise SystemExit(main())
