"""A SuperLink with TLS and SuperNode authentication, and SuperNodes, as processes on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from tests.deploy.flower_warm import COMMANDS

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).parents[2] / "src"
PATIENT = (sys.executable, str(Path(__file__).parent / "flower_patient.py"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Variables with which Flower sends nothing out, and every process has one thread."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}",
    }


def call(words: list[str], env: dict[str, str], cwd: Path | None = None, seconds: float = 120) -> str:
    """Runs a command until it ends, and returns its output."""
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def flwr(env: dict[str, str], *words: str) -> str:
    """The output of a `flwr` command. It runs in a fork of this process, because loading Flower takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of Flower itself
        from flwr.cli.app import app
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.environ.update(env)
            sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = open(1, "w", closefd=False)  # noqa: SIM115
            warnings.simplefilter("ignore")
            code = app(list(words), standalone_mode=False) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"flwr {' '.join(words)} failed: {text}")
    return text


def status(env: dict[str, str], superlink: str, run: int) -> str:
    """The status of a run, such as "finished:failed", or "unknown" if the SuperLink was too busy to answer."""
    listing = json.loads(flwr(env, "list", superlink, "--run-id", str(run), "--format", "json"))
    return str(listing["runs"][0]["status"]) if "runs" in listing else "unknown"


def warm_commands(folder: Path, env: dict[str, str]) -> list[str]:
    """Puts faster commands before Flower's on the PATH (flower_warm.py). Returns the process that must run for them."""
    commands, fifo = folder / "bin", folder / "orders"
    commands.mkdir()
    os.mkfifo(fifo)
    for name in COMMANDS:
        (commands / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" > {fifo}\n')
        (commands / name).chmod(0o755)
    env["PATH"] = f"{commands}:{env['PATH']}"
    return [sys.executable, str(Path(__file__).parent / "flower_warm.py"), str(fifo)]


class Network:
    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self.home = folder, folder / "keys", folder / "flwr"
        self.env = environment(self.home)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.keys.mkdir(parents=True)
        self.home.mkdir()
        self.start("warm", *warm_commands(folder, self.env))
        self._certificates()
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "net"\n\n[superlink.net]\n{connection}')
        files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
        tls = [word for option, name in files.items() for word in (option, str(self.keys / name))]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start(
            "superlink",
            *PATIENT,
            "flower-superlink",
            *where,
            *tls,
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        wait_for(lambda: "Uvicorn running" in self.log("superlink"), 120, "the SuperLink does not start")
        wait_for(lambda: "ready for orders" in self.log("warm"), 120, "flower_warm.py does not start")

    def _certificates(self) -> None:
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        call([*new, "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test"], self.env, self.keys)
        call([*new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"], self.env, self.keys)
        (self.keys / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        sign = "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names"
        call([*sign.split(), "-out", "server.crt"], self.env, self.keys)

    def start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [str(BIN / words[0]), *words[1:]]  # an absolute path stays as it is
            self.processes[name] = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def key(self, name: str) -> Path:
        path = self.keys / name
        if not path.exists():
            call(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", str(path)], self.env)
        return path

    def register(self, name: str) -> None:
        self.flwr("supernode", "register", str(self.key(name).with_suffix(".pub")), "net")

    def node(self, name: str, config: str, key: bool = True) -> None:
        """Starts a SuperNode with its key."""
        words = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()), "--node-config", config]
        words += ["--root-certificates", str(self.keys / "ca.crt")]
        words += ["--auth-supernode-private-key", str(self.key(name))] if key else []
        self.start(name, *PATIENT, "flower-supernode", *words)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def flwr(self, *words: str) -> str:
        return flwr(self.env, *words)

    def run(self, app: Path, **config: Any) -> int:
        """Starts a run of the app and returns its number."""
        overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        return int(re.findall(r"run (\d+)", self.flwr("run", str(app), "net", "-c", overrides))[0])

    def status(self, run: int) -> str:
        return status(self.env, "net", run)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def wait_for(ready: Any, seconds: float, otherwise: str, pause: float = 0.5) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(pause)
