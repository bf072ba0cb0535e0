"""The `helm` that the tests of the chart use: the one on the PATH, else one of a pinned version built by Go, once.

`python -m tests.deploy.helm` (`make helm`) builds it into the user's cache folder: minutes of CPU, so tests by
themselves don't.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "v3.22.0"
MODULE = "helm.sh/helm/v3/cmd/helm"
BUILD_DEADLINE_S = 1_800


def cached() -> Path:
    """Return where a built one is kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "amends" / f"helm-{VERSION}"


def find() -> Path | None:
    """Return a helm, None if there is none."""
    if cached().exists():
        return cached()
    found = shutil.which("helm")
    return Path(found) if found else None


def build() -> Path:
    """Return a helm, built if there is none.

    Raises:
        RuntimeError: there is no Go, or it could not build it.
    """
    found = find()
    if found is not None:
        return found
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("there is neither helm nor go on the PATH")
    cached().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached().parent) as folder:
        built = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
            env={**os.environ, "GOBIN": folder, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_DEADLINE_S,
        )
        if built.returncode != 0:
            raise RuntimeError(f"go could not build helm {VERSION}:\n{built.stderr[-2000:]}")
        Path(folder, "helm").rename(cached())
    return cached()


if __name__ == "__main__":
    try:
        print(build())
    except RuntimeError as missing:
        print(f"no helm: {missing}", file=sys.stderr)
        sys.exit(1)
