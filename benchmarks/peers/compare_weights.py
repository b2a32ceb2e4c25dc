"""Compares fedkeel with other people's implementations: the weights after every round, on the same batches.

    python benchmarks/peers/compare_weights.py             # all peers; the first time it installs them (7 GB, 15 minutes)
    python benchmarks/peers/compare_weights.py flwr flgo   # some of them; the lines of the others stay as they are

Each peer that is a package runs in a separate environment under .venv-peers/. Authors' repositories are not fetched: clone
them from GitHub into .venv-peers/clones/. Otherwise their lines say "not run" and how to clone them.

Prints a table and writes it to results/peers.md, followed by benchmarks/peers/one_off.md. A difference is explained if a
rule by hand gives exactly the peer's weights. Ends with status 1 if a difference is not explained.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import environments
import numpy as np
import ours
import torch
from cases import CASES, Case
from environments import PEERS, Unavailable
from problem import EQUAL_STEPS, load, save

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "results" / "peers.md"
COLUMNS = ["method", "peer", "setting", "largest weight difference", "explanation"]
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


class Line(NamedTuple):
    """One line of the table."""

    method: str
    peer: str  # its name and release, and its method if that is another one
    setting: str
    difference: str
    verdict: str  # same, explained, DIFFERENT or not run, and why

    def starts(self, *words: str) -> bool:
        return self.verdict.startswith(words)


def line(case: Case, difference: str, verdict: str, explanation: str = "") -> Line:
    via = f", its {case.via}" if case.via else ""
    full = f"{verdict}. {explanation}" if explanation else verdict
    return Line(case.method, title(case.peer) + via, case.setting, difference, full)


def title(name: str) -> str:
    return f"{PEERS[name].title} {environments.release(PEERS[name])}"


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
        return line(case, "-", "not run", found)
    if case.name not in found:
        return line(case, "-", "not run", str(found.get(f"error {case.name}", "the script has no such case")))
    theirs = found[case.name]
    problem = load(environments.HOME / "work" / ("equal.npz" if case.settings.get("equal") else "epochs.npz"))
    if abs(theirs[-1] - problem.x0).max() < SMALLEST_MOVE:
        return line(case, "-", "DIFFERENT", "the peer's weights did not move")
    gap = abs(theirs - ours.trajectory(case.method, case.options, **case.settings)).max()
    if case.rule is None:
        return line(case, f"{gap:.0e}", "same" if gap < tolerance(case) else "DIFFERENT")
    rest = abs(theirs - np.stack(case.rule(problem))).max()
    explained = rest < tolerance(case) < gap
    return line(
        case,
        f"{gap:.0e}",
        "explained" if explained else "DIFFERENT",
        f"{case.why} Peer minus this rule by hand: {rest:.0e}.",
    )


def table(lines: list[Line]) -> str:
    rows = [COLUMNS, ["---"] * len(COLUMNS), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)


def written() -> list[Line]:
    """The lines of the file that an earlier call wrote."""
    text = RESULT.read_text() if RESULT.exists() else ""
    rows = [row.strip("| ").split(" | ") for row in text.partition("\n## ")[0].splitlines() if row.startswith("| ")]
    return [Line(*row) for row in rows[2:]]


def summary(lines: list[Line]) -> str:
    """How many methods and peers agree, and what is missing."""
    same = [(one.method, one.peer.partition(", its ")[2]) for one in lines if one.starts("same")]
    direct = sorted({method for method, via in same if not via})
    others = sorted({f"{method} ({via})" for method, via in same if via and method not in direct})
    text = f"{len(direct)} methods give the weights of at least one peer's implementation of them: {', '.join(direct)}.\n"
    if others:
        text += f"{len(others)} more take the path of a peer's other method, as they must: {', '.join(others)}.\n"
    counts = Counter(one.verdict.partition(".")[0] for one in lines)
    text += "Lines: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."
    missing = sorted({one.peer for one in lines if one.starts("not run")})
    return text + (f" Not run: {', '.join(missing)}." if missing else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"some of: {', '.join(PEERS)}")
    chosen = parser.parse_args().peers or list(PEERS)
    if unknown := set(chosen) - set(PEERS):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    found = weights_of(chosen)
    lines = [compare(case, found[case.peer]) for case in CASES if case.peer in chosen]
    print(f"\n{table(lines)}\n\n{summary(lines)}")
    ran = {title(name) for name in chosen if not isinstance(found[name], str)}
    kept = [one for one in written() if one.peer.partition(", its ")[0] not in ran]
    new = [one for one in lines if one.peer.partition(", its ")[0] in ran or one[:3] not in {old[:3] for old in kept}]
    everything = sorted([*kept, *new], key=lambda one: one.method)
    RESULT.parent.mkdir(exist_ok=True)
    one_off = (HERE / "one_off.md").read_text()
    RESULT.write_text(f"{HEAD}\n{summary(everything)}\n\n{table(everything)}\n\n{one_off}")
    return 1 if any(one.starts("DIFFERENT") for one in lines) else 0


if __name__ == "__main__":
    raise SystemExit(main())
