"""The papers' tables and figures on real data, as far as two cores allow: results/NAME/.

    python benchmarks/paper_results.py NAME --data-dir DIR [--runs DIR] [--jobs N]     # runs it, or continues
    python benchmarks/paper_results.py NAME --publish [--runs DIR]                     # only writes what is complete

A result is one `fedkeel` command (COMMANDS), so it has the properties of studies: complete runs are not run again, partial
runs continue. results/NAME/ gets the study file, the tables (README.md, CSV, LaTeX), the figures, and the raw
numbers of all complete runs (runs.tar.xz), from which the next call continues, also on another machine. The text about a
result is results/NAME/findings.md; it is copied under the table.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import tomli_w

from fedkeel.engine.state.directory import ERROR
from fedkeel.files import read_toml
from fedkeel.study.changes import choose_cases
from fedkeel.study.file import choose_methods
from fedkeel.study.recipes import read as recipe
from fedkeel.study.report.table_text import (
    APART,
    NOT_COMPARABLE,
    differs,
    in_paper_units,
    paper_column_titles,
    place_columns,
    place_of,
    table_rows,
)
from fedkeel.study.report.write import report, results_of
from fedkeel.study.results.collect import ORIGIN
from fedkeel.study.results.numbers import NOT_RUN

RESULTS = Path(__file__).parents[1] / "results"
STUDIES = Path(__file__).parent / "studies"  # the papers' claims in other regimes than those of our recipes
NUMBERS = ("config.toml", "metrics.jsonl", "summary.json")  # files of a run that are kept; not its checkpoint

# LeNet-5 replaces ResNet-18, and T is smaller, where the paper's scale would take weeks. The README of a result says so.
LENET = "--model lenet5 --local-steps 5 --batch-size 20 --evaluate-every 10"
GRADMA = ("gradma-w", "gradma-s", "gradma")
COMMANDS = {
    # Only the hardest column is searched: searching all five would take as long as everything else.
    "gradma-mnist": "reproduce gradma/tab2 --cases mnist --evaluate-every 5 --search rounds=100 --search every=10 "
    "--search 'case=MNIST S=10 omega=0.01'",
    # Its third column again, with short steps for all methods, which the search of gradma-mnist does not choose.
    "gradma-mnist-short": "reproduce gradma/tab2 --cases 'mnist s=10 omega=0.01' --evaluate-every 5 --search rounds=100 "
    "--search every=10 --algorithms fedavg,fedavgm,scaffold,gradma-w,gradma-s,gradma"
    + "".join(f" --set {z}.lr=0.01 --set {z}.server_lr=1" for z in ("fedavg", "fedavgm", "scaffold", *GRADMA)),
    # The network of the released code, which is not the one that the paper describes.
    "gradma-mnist-bn": "reproduce gradma/tab2 --cases 'mnist s=10' --model mlp-bn --evaluate-every 5 --search rounds=100 "
    "--search every=10 --search 'case=MNIST S=10 omega=0.01' "
    "--algorithms fedavg,fedavgm,mifa,scaffold,gradma-w,gradma-s,gradma",
    "gradma-cifar10": "reproduce gradma/tab2 --cases cifar-10 --evaluate-every 10 --search rounds=100 --search every=20 "
    "--search 'case=CIFAR-10 S=10 omega=0.01' --algorithms fedavg,fedavgm,mifa,scaffold,gradma-w,gradma-s,gradma",
    # GradMA in that column with the values that the search chose for GradMA-S; the search for GradMA did not find them.
    "gradma-cifar10-short": "reproduce gradma/tab2 --cases 'cifar-10 s=10 omega=0.01' --evaluate-every 10 "
    "--algorithms gradma --set gradma.lr=0.01 --set gradma.server_lr=1 --set gradma.beta1=0.9 --set gradma.beta2=0.1",
    "lamb-supp-fig1": "reproduce lamb/supp-fig1 --model mlp --evaluate-every 2 --seeds 1 --search rounds=5 --search every=5",
    "ppf-fig2": "reproduce ppf/fig2 --cases dirichlet --data fashion-mnist --model cnn --rounds 100 --local-steps 5 "
    "--over lr=1e-3:1:2 --evaluate-every 20 --seeds 1",
    "ppf-fig6": "reproduce ppf/fig6 --cases beta --length 64 --local-steps 5 --rounds 100 --evaluate-every 20 --seeds 1 "
    "--search rounds=20 --search every=20 --set fedavg.lr=0.3,1,3,10,30 --set scaffold.lr=0.1,0.3,1,3,10 "
    "--set scaffold-m.lr=0.3,1,3,10",
    "pt-tab1": f"reproduce pt/tab1 --cases cifar-10 {LENET} --rounds 200 --target 0.35 --search rounds=100 "
    "--set fedavg.lr=0.01,0.03,0.1,0.3 --set scaffold.lr=0.003,0.01,0.03,0.1 --set local-adam.lr=0.0003,0.001,0.003,0.01 "
    "--set fedlada.lr=0.0003,0.001,0.003,0.01,0.03 --set fadamet.lr=0.0003,0.001,0.003 "
    "--set fadamgt.lr=0.0003,0.001,0.003,0.01,0.03",
    "pt-tab2": "reproduce pt/tab2 --cases sst-2 --model hf:MINILM --length 48 --lora-rank 8 --lora-layers 2 --cohort 50 "
    "--local-steps 2 --batch-size 8 --rounds 40 --evaluate-every 2 --target 0.7 --seeds 1"
    + "".join(f" --set fedit-{z}.lr=0.002 --set fedit-{z}.server_lr=1" for z in ("adam", "adamet", "adamgt")),
    "lada-tab5": f"reproduce lada/tab5 --data cifar10 {LENET} --rounds 200",
    "lada-tab10": f"reproduce lada/tab10 {LENET} --rounds 200",
    "lada-fig8": f"reproduce lada/fig8 {LENET} --rounds 200",
} | {path.stem: f"compare STUDIES/{path.name}" for path in sorted(STUDIES.glob("*.toml"))}

OTHER_TABLE = {
    name: "gradma/tab1" for name, command in COMMANDS.items() if command.startswith("reproduce gradma")
}  # another table with the same runs: show its numbers, too


def unpack(name: str, runs: Path) -> None:
    """Unpacks the runs that were kept with the result, if they are not here yet."""
    kept = RESULTS / name / "runs.tar.xz"
    if kept.exists() and not runs.exists():
        runs.mkdir(parents=True)
        with tarfile.open(kept) as archive:
            archive.extractall(runs, filter="data")
        shutil.copy(
            RESULTS / name / "study.toml", runs
        )  # otherwise --publish alone would not know which study the runs belong to


def pack(name: str, runs: Path) -> None:
    """Packs the numbers of all complete runs, the errors of others, and the splits. The same runs give the same bytes."""
    files = [path.parent / file for path in sorted(runs.rglob("summary.json")) for file in NUMBERS]
    with tarfile.open(RESULTS / name / "runs.tar.xz", "w:xz", preset=9) as archive:
        for path in files + sorted(runs.rglob(ERROR)) + sorted(runs.glob(ORIGIN)):
            data = path.read_bytes()
            entry = tarfile.TarInfo(str(path.relative_to(runs)))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def add_table(name: str, path: Path) -> None:
    """Adds the numbers of another table of the paper to the study file of a result with the same runs."""
    file = read_toml(path)
    cases = ",".join(case["name"] for case in file["cases"])
    other = choose_methods(choose_cases(recipe.read(OTHER_TABLE[name]).file, cases), ",".join(file["methods"]))["paper"]
    file["paper"] = other + [one for one in file["paper"] if one not in other]
    path.write_text(tomli_w.dumps(file))


def publish(name: str, runs: Path) -> None:
    """Writes what is complete to the files of the repository."""
    out = RESULTS / name
    out.mkdir(parents=True, exist_ok=True)
    if name in OTHER_TABLE:
        add_table(name, runs / "study.toml")
    report(runs)
    shutil.copy(runs / "study.toml", out / "study.toml")
    gone = {old.name for old in out.glob("*.svg")} - {file.name for file in (runs / "report").iterdir()}
    for old in out.glob("*.svg"):
        old.unlink()
    for file in sorted((runs / "report").iterdir()):
        if file.suffix in (".svg", ".csv", ".tex"):
            shutil.copy(file, out / file.name)
    (out / "README.md").write_text(page(name, results_of(runs)))
    pack(name, runs)
    print(
        f"results/{name}: README.md, tables, figures, runs.tar.xz" + f"; no longer: {', '.join(sorted(gone))}" * bool(gone)
    )


def page(name: str, results: dict[str, Any]) -> str:
    findings = RESULTS / name / "findings.md"
    parts = [f"# {results['title']}", results["about"], f"Made by `python benchmarks/paper_results.py {name}`, which runs"]
    parts.append(f"```\nfedkeel {COMMANDS[name].replace('STUDIES', 'benchmarks/studies')}\n```")
    parts += [beside_paper(results["rows"], paper) for paper in results["paper"]]
    parts.append("## All numbers\n\n" + all_numbers(results))
    parts.append(missing(results["rows"], "Failed", "name", failed=True))
    parts.append(missing(results["rows"], "Still to be run", "case", failed=False))
    if findings.exists():
        parts.insert(4, findings.read_text().strip())
    return "\n\n".join(part for part in parts if part) + "\n"


def missing(rows: list[dict[str, Any]], what: str, kind: str, failed: bool) -> str:
    """How many runs failed, or are still to come, for each line (kind = "name") or case of a table."""
    counts: dict[str, int] = {}
    for row in rows:
        count = sum((why != NOT_RUN) == failed for why in row["errors"].values())
        counts[row[kind]] = counts.get(row[kind], 0) + count
    listed = [f"{name} ({count})".strip() for name, count in counts.items() if count]
    return f"{what} (runs): {', '.join(listed)}." if listed else ""


def beside_paper(rows: list[dict[str, Any]], paper: dict[str, Any]) -> str:
    """Our numbers above the paper's, one column per case or value. ≠: they differ by more than both deviations."""
    metric, at = paper["metric"], paper["at"]
    rows = [row for row in rows if metric in row["paper"] and row["seeds"]]
    if not rows:
        return ""
    unit = ", %" if metric.endswith("accuracy") else ""
    lines = [f"## {metric.replace('_', ' ')}{unit}, beside {paper['where']}", ""]
    lines += [
        "| method | " + " | ".join(z or "all" for z in paper_column_titles(rows, paper)) + " |",
        "|---" * (len(at) + 1) + "|",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        shown = []
        for column in at:
            mine = [row for row in rows if row["method"] == method and column in (row["case"], *row["axes"].values(), "")]
            cell = f"{in_paper_units(mine[0], metric)} ({mine[0]['paper'][metric]})" if mine else ""
            shown.append(cell + " ≠" * bool(mine and differs(mine[0], paper)))
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", f"Ours, and in brackets the paper's; {APART if paper['comparable'] else NOT_COMPARABLE}."])


def all_numbers(results: dict[str, Any]) -> str:
    columns = place_columns(results)
    rows = [row for row in results["rows"] if row["seeds"]]
    lines = []
    for row, cells in zip(rows, table_rows(rows), strict=True):
        shown = {name: text for name, (text, _) in cells.items() if name not in ("seconds", "memory MB")}
        lines.append({"method": row["method"], **place_of(row, columns), **shown})
    head = ["| " + " | ".join(lines[0]) + " |", "|---" * len(lines[0]) + "|"]
    return "\n".join(head + ["| " + " | ".join(line.values()) + " |" for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(COMMANDS))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs lie, e.g. --runs /tmp/runs")
    parser.add_argument("--data-dir", help="folder of the data sets, e.g. --data-dir ~/data")
    parser.add_argument(
        "--minilm", default="minilm", help="folder of MiniLM, for pt-tab2 (benchmarks/tasks.py names the model)"
    )
    parser.add_argument("--jobs", help="runs at a time, e.g. --jobs 1")
    parser.add_argument("--publish", action="store_true", help="run nothing, write what is complete")
    given = parser.parse_args()
    runs = given.runs / given.name
    unpack(given.name, runs)
    code = 0
    if not given.publish:
        more = ["--out", str(runs)] + (["--jobs", given.jobs] if given.jobs else [])
        env = os.environ | ({"FEDKEEL_DATA": given.data_dir} if given.data_dir else {})
        words = shlex.split(COMMANDS[given.name].replace("MINILM", given.minilm).replace("STUDIES", str(STUDIES)))
        code = subprocess.run([sys.executable, "-m", "fedkeel", *words, *more], env=env, check=False).returncode
    if code in (0, 1):  # 1: some runs failed, for example because they diverged; the others are shown
        publish(given.name, runs)
    sys.exit(code)


if __name__ == "__main__":
    main()
