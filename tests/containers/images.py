"""The images of a run: those the files name, from a registry of images or made of packages; and ours, built.

Where no registry of images can be reached, what the files name is made here under the same name: Debian by debootstrap,
on it Debian's Python and Redis, and the jars of Apache Kafka on Debian's Java (`stand_ins/`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.containers.compose_file import is_ours, services
from tests.containers.engine import Docker, ran

from amends.local.children import make_folder, remove_folder

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"
DEBIAN = "debian:bookworm-slim"
PULL_S = 600
OURS = {"amends": "amends:test-docker", "examples": "amends-examples:test-docker"}
"""Tags of their own: a person's images of these names stay what they are."""


def base_images() -> dict[str, str]:
    """Return the images the files name, by what stands in for them."""
    base = re.search(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert base is not None
    named = {name: str(service["image"]) for name, service in services().items() if not is_ours(service)}
    return {"python": base[1], **named}


def have_images(docker: Docker) -> list[str]:
    """Have every image that is named; return those that were made here."""
    made = []
    for name, image in base_images().items():
        if docker.has_image(image) or _pulled(docker, image):
            continue
        _debian(docker)
        _stand_in(docker, name, image)
        made.append(image)
    return made


def build_ours(docker: Docker) -> None:
    """Build the images of the Dockerfile, with this machine's index of packages."""
    folder = make_folder("pip")
    try:
        secrets = [f"--secret=id={name},src={path}" for name, path in _index(folder).items()]
        for target, tag in OURS.items():
            docker.run("build", "--network=host", *secrets, "--target", target, "--tag", tag, str(ROOT))
    finally:
        remove_folder(folder)


def _pulled(docker: Docker, image: str) -> bool:
    try:
        return docker.run("pull", "--quiet", image, check=False, timeout_s=PULL_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _debian(docker: Docker) -> None:
    if docker.has_image(DEBIAN):
        return
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise RuntimeError(f"{DEBIAN} can neither be fetched nor made: that takes root and debootstrap")
    folder = make_folder("debian")
    try:
        ran(["debootstrap", "--variant=minbase", "bookworm", str(folder / "root")], os.environ)
        for left in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(folder / "root" / left)
            (folder / "root" / left / "partial").mkdir(parents=True)
        ran(["tar", "-C", str(folder / "root"), "-c", "-f", str(folder / "debian.tar"), "."], os.environ)
        docker.run("import", str(folder / "debian.tar"), DEBIAN)
    finally:
        remove_folder(folder)


def _stand_in(docker: Docker, name: str, image: str) -> None:
    folder = make_folder("stand-in")
    try:
        context = folder / name
        shutil.copytree(STAND_INS / name, context)
        if (context / "pom.xml").exists():
            jars = ["dependency:copy-dependencies", f"-DoutputDirectory={context / 'jars'}", "-DincludeScope=runtime"]
            ran(["mvn", "-q", "-B", "-f", str(context / "pom.xml"), *jars], os.environ)
        docker.run("build", "--network=host", "--tag", image, str(context))
    finally:
        remove_folder(folder)


def _index(folder: Path) -> dict[str, Path]:
    """Return the secrets that let a build reach packages as this machine does: its settings of pip, its authorities.

    Folders of this machine are not in a build, and a certificate authority is where the secret is.
    """
    said = ran(["pip", "config", "list"], os.environ, check=False).stdout
    settings: dict[str, str] = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        settings[re.sub(r"^(global|install|:env:)\.", "", name)] = value.strip("'\"")
    secrets = {}
    authority = settings.pop("cert", None) or os.environ.get("SSL_CERT_FILE")
    if authority and Path(authority).is_file():
        secrets["ca.crt"] = Path(authority)
        settings["cert"] = "/run/secrets/ca.crt"
    kept = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "default-timeout")
    file = folder / "pip.conf"
    file.write_text(
        "[global]\n" + "".join(f"{name} = {settings[name]}\n" for name in kept if name in settings), "utf-8"
    )
    return {**secrets, "pip.conf": file}
