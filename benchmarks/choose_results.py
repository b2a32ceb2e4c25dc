"""`fedkeel choose` on five real tasks: results/choose/. A task takes about ten minutes on one core.

python benchmarks/choose_results.py                       # all tasks
python benchmarks/choose_results.py mnist cifar10         # some of them
python benchmarks/choose_results.py sst2 --language-model FOLDER   # of all-MiniLM-L6-v2, or another model

The data directory is that of FEDKEEL_DATA. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "choose"
RUNS = Path("runs") / "choose"
SGD = "fedavg,fedavgm,scaffold,feddyn,fedprox"
ADAM = "fedadam,fadamgt,fedlada"
COLUMNS = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,capital_gain,"
    "capital_loss,hours,country,income"
)
# name -> options of `fedkeel choose`
TASKS = {
    "mnist": f"--data mnist --model mlp --clients 100 --rounds 40 --algorithms {SGD},{ADAM} --budget 80runs --target 0.9",
    "cifar10": "--data cifar10 --model lenet5 --clients 100 --concentration 0.3 --cohort 5 --local-steps 5 --rounds 60 "
    "--evaluate-every 20 --algorithms fedavg,fedavgm,scaffold,fedadam,fadamgt --budget 40runs --target 0.4",
    "adult": f"--data runs/adult.csv --label income --key occupation --model logistic --rounds 40 --algorithms {SGD},{ADAM} "
    "--budget 120runs --target 0.84",
    "sst2": "--data sst2 --split iid --model hf:LANGUAGE_MODEL --lora-layers 1 --clients 20 --cohort 4 --local-steps 4 "
    "--rounds 12 --validation 0.02 --evaluate-every 6 --algorithms fedavg,fedavgm,fedadam,fedit-adamgt --budget 26runs "
    "--target 0.8",
}
# Shakespeare by role has 776,639 test samples. So this script takes a part: 20 of 100 groups of roles, 300 samples each.
PYTHON = {
    "shakespeare": "fk.choose(model, fed, budget=30, methods=['fedavg', 'fedavgm', 'scaffold', 'fedadam'], rounds=30, "
    "cohort=4, local_steps=10, evaluate_every=10, engine='sequential', jobs=1, out='runs/choose/shakespeare')"
}


def adult_table() -> None:
    """Adult as one table with a heading: census records, and their occupation as the client."""
    source = Path(os.environ["FEDKEEL_DATA"]) / "adult" / "adult.data.gz"
    Path("runs").mkdir(exist_ok=True)
    with gzip.open(source, "rt") as lines, (Path("runs") / "adult.csv").open("w", newline="") as made:
        writer = csv.writer(made)
        writer.writerow(COLUMNS.split(","))
        writer.writerows(row for row in csv.reader(lines, skipinitialspace=True) if len(row) == COLUMNS.count(",") + 1)


def run(name: str, language_model: str) -> None:
    if name == "adult":
        adult_table()
    words = ["choose", *TASKS[name].split(), "--engine", "sequential", "--jobs", "1", "--out", str(RUNS / name)]
    shown = shlex.join(["fedkeel", *words])
    words = [word.replace("LANGUAGE_MODEL", language_model) for word in words]
    subprocess.run([sys.executable, "-m", "fedkeel", *words], check=True)
    keep(name, shown, language_model)


def run_in_python(name: str) -> None:
    """The next character of a role's text, predicted by a small LSTM."""
    import torch
    from torch import nn

    import fedkeel as fk

    class Characters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(80, 8), nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 80)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embedding(x))[0][:, -1])

    roles = fk.load("shakespeare").split("by_key", clients=100)  # a client has several roles
    large = [i for i in range(len(roles)) if roles.sizes[i] >= 3000][:20]
    pairs = [(roles[i].x[:300].long(), roles[i].y[:300]) for i in large]
    some = torch.randperm(len(roles.test[1]), generator=torch.Generator().manual_seed(0))[:2000]
    fed = fk.Federation.from_arrays(pairs, test=(roles.test[0][some].long(), roles.test[1][some]))
    eval(PYTHON[name], {"fk": fk, "model": Characters, "fed": fed})
    keep(name, PYTHON[name], "")


def keep(name: str, command: str, language_model: str) -> None:
    """The answer, the page and the numbers. The runs themselves are large."""
    folder, made = RESULTS / name, RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    choice = (made / "choice.json").read_text().replace(language_model or "\0", "LANGUAGE_MODEL")
    (folder / "choice.json").write_text(choice)
    shutil.copy(made / "table.csv", folder / "table.csv")
    found = json.loads(choice)
    rows = "\n".join(
        f"| {one['method']} | {', '.join(f'{key} {z:g}' for key, z in one['values'].items())} | "
        f"{'failed' if one['score'] is None else format(one['score'], '.4f')} | {one['trials']} | {one['rounds']} | "
        f"{'; '.join(one['edges'])} |"
        for one in found["candidates"]
    )
    answer = "\n".join(f"- {line}" for line in found["answer"])
    commands = "\n".join(found["commands"])
    (folder / "README.md").write_text(
        f"# choose: {name}\n\n    {command}\n\nMade by `python benchmarks/choose_results.py {name}`.\n\n{answer}\n\n"
        f"```sh\n{commands}\n```\n\nTuning of all candidates (validation score after the longest trial):\n\n"
        f"| method | values | score | trials | rounds | edges |\n|---|---|---|---|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=[*TASKS, *PYTHON])
    parser.add_argument("--language-model", default="", help="the folder of a language model, for sst2")
    given = parser.parse_args()
    for task in given.tasks:
        if task not in {*TASKS, *PYTHON}:
            parser.error(f"unknown task {task}; known: {', '.join([*TASKS, *PYTHON])}")
        if task == "sst2" and not given.language_model:
            parser.error("sst2 needs --language-model FOLDER")
        if task in PYTHON:
            run_in_python(task)
        else:
            run(task, given.language_model)
