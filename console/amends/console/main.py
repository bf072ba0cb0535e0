"""The `amends` command. Without its extra it says what to install."""

from __future__ import annotations

import sys

_NEEDS = ("typer", "rich")


def main() -> None:
    """Run the command line; ends the process with one of the codes of `exits`."""
    try:
        from amends.console.application import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in _NEEDS:
            raise
        sys.exit(f"amends: the command line needs {missing.name}: pip install 'amends[console]', or 'amends[all]'")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
