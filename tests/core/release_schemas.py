"""Freeze the current schemas and golden records as a release: `python -m tests.core.release_schemas 0.1.0`.

From then on readers resolve that version, tests hold every change against it, and its folders are never touched.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.core import golden_records
from tests.core.avro_of_models import schema
from tests.core.compatibility import RELEASED, SCHEMAS, against_releases, load

from amends.schemas.codec import RECORDS


def release(version: str) -> Path:
    """Write `released/<version>` and `golden/<version>`.

    Raises:
        SystemExit: the version is none, is there already, or the schemas are not fit to be released.
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        raise SystemExit(f"{version!r} is no version such as 0.1.0")
    folder = RELEASED / version
    if folder.exists():
        raise SystemExit(f"{folder} exists: a release is never changed; take the next version")
    for record in RECORDS:
        if load(SCHEMAS / f"{record.__name__}.avsc") != schema(record):
            raise SystemExit(f"{record.__name__}.avsc is not its model: run tests/core/avro_of_models.py first")
    problems = list(against_releases())
    if problems:
        raise SystemExit("\n".join(problems))
    folder.mkdir(parents=True)
    for path in sorted(SCHEMAS.glob("*.avsc")):
        shutil.copy(path, folder / path.name)
    golden_records.write()
    shutil.copytree(golden_records.NEXT, golden_records.GOLDEN / version)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tests.core.release_schemas VERSION")
    print(f"released {release(sys.argv[1])}; commit it, and tests/core/golden/{sys.argv[1]} with it")
