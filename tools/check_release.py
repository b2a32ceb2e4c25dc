"""Checks what `make release` built: the wheel has all files of the package and works from a folder of its own.

python tools/check_release.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/fedkeel"
TRY = (
    "import fedkeel as fk; fed = fk.load('digits').split('iid', clients=10); "
    "fk.train(fk.model('mlp', fed), fed, 'fedavg', rounds=1)"
)


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    files = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing = files - set(zipfile.ZipFile(wheel).namelist())
    assert not missing, f"not in the wheel: {sorted(missing)}"
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2].removeprefix("src/") for name in archive.getnames()}
    assert not files - packed, f"not in the sdist: {sorted(files - packed)}"
    with tempfile.TemporaryDirectory() as place:
        zipfile.ZipFile(wheel).extractall(place)
        subprocess.run([sys.executable, "-W", "error", "-c", TRY], cwd=place, env={"PYTHONPATH": place}, check=True)
    print(f"{wheel.name} and {sdist.name}: all {len(files)} files are there, and the wheel trains")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
