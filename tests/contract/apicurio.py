"""Apicurio Registry itself: fetched once by Maven (106 MB) into the user's cache folder, run by Java, in memory."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from amends.local import jars
from amends.local.children import Child, free_port, make_folder, remove_folder

VERSION = "3.0.9"
"""The newest that runs on Java 17."""

PATH = "/apis/ccompat/v7"
START_S = 180
FETCH_S = 600


class NotFetched(RuntimeError):  # noqa: N818 - what is true
    """Maven could not fetch it: this machine can't run it, which is no failure of what is tested."""


def why_not() -> str | None:
    """Return why it can't be run here, or None."""
    if (reason := jars.why_not()) is not None:
        return reason
    if not _is_whole(_folder()) and shutil.which("mvn") is None:
        return "there is no `mvn` on the PATH to fetch it"
    return None


@contextlib.contextmanager
def apicurio() -> Iterator[str]:
    """Run one; yield the URL of its API. Raises NotFetched, and RuntimeError where it does not start."""
    program = _fetched() / f"apicurio-registry-app-{VERSION}-runner.jar"
    folder, port = make_folder("apicurio"), free_port()
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "apicurio.rest.deletion.artifact.enabled": "true",
        "apicurio.rest.deletion.artifact-version.enabled": "true",
    }
    said = folder / "log"
    with said.open("wb") as log:
        command = ["java", "-Xmx400m", "-XX:TieredStopAtLevel=1", *(f"-D{n}={v}" for n, v in options.items())]
        child = Child([*command, "-jar", str(program)], environment=dict(os.environ), stdout=log, stderr=log)
    try:
        _wait(port, child, said)
        yield f"http://127.0.0.1:{port}{PATH}"
    finally:
        child.kill()
        remove_folder(folder)


def _wait(port: int, child: Child, said: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and child.alive:
        with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, 5)) as asks:
            asks.request("GET", f"{PATH}/subjects")
            if asks.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"Apicurio did not start:\n{said.read_text(errors='replace')[-2_000:]}")


def _folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "amends" / f"apicurio-{VERSION}"


def _is_whole(folder: Path) -> bool:
    return (folder / f"apicurio-registry-app-{VERSION}-runner.jar").is_file()


def _fetched() -> Path:
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(folder):
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as work:
                _fetch(Path(work), folder)
    return folder


def _fetch(work: Path, folder: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={work}"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if done.returncode != 0:
        raise NotFetched(f"Maven could not fetch {artifact}:\n{done.stdout[-2_000:]}{done.stderr[-500:]}")
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(work / "whole", filter="data")
    shutil.rmtree(folder, ignore_errors=True)
    (work / "whole").rename(folder)
