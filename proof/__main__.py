"""The command: `python -m proof`. Exit code 1 if any case differs, 2 if it could not be run.

For each task of retail and airline and each number of its writes, an agent makes these writes (and the reads among
them) through amends, and is killed. Its lease runs out, and what it wrote is undone from the before-images. The
database must then equal the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from amends.local.errors import ServerUnavailable
from amends.local.servers import Servers, servers
from amends.schemas.facts import StepStatus, UndoStatus
from proof.databases import ADDRESS, ask
from proof.domains import KITS, Case, cases_of
from proof.inverses import equal_with_inverses_alone
from proof.pipeline import Broken, Seen, running
from proof.report import table

DEADLINE_S = 300.0
"""For everything after the kill: two leases until the silence is noticed, then the undos."""


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    cases = [case for domain in KITS for case in cases_of(domain)]
    if options.cases:
        cases = cases[:: max(1, len(cases) // options.cases)][: options.cases]
    embedded = not (options.apache or options.kafka)
    try:
        with servers(kafka=options.kafka, redis=options.redis, embedded=embedded) as found:
            result = prove(cases, found, options.lease, options.killed)
    except (Broken, ServerUnavailable) as error:
        print(f"The proof could not be run: {error}", file=sys.stderr)
        return 2
    print(table(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    settled = result["equal"] + result["asked"]
    return 0 if settled == result["cases"] and result["shared_untouched"] and not result["overwritten"] else 1


def prove(cases: list[Case], found: Servers, lease: str, killed: str) -> dict[str, Any]:
    """Run all cases at once and return what came of them. Raises Broken.

    Args:
        killed: where in its last call an agent is killed: behind it, or inside it, before or after its effect. Killed
            inside, after the effect, only a person can say whose value is there: such a case must wait for one, and
            be left alone until then.
    """
    begun = time.monotonic()
    with running(found) as pipeline:
        os.environ[ADDRESS] = str(pipeline.port)
        agents = pipeline.run(cases, lease, killed)
        written = asyncio.run(_differing(cases))
        for part in agents:
            part.kill()
        dead = time.monotonic()
        print(f"{len(cases)} agents killed after {dead - begun:.0f} s; waiting for their leases", file=sys.stderr)
        seen = pipeline.follow({case.name for case in cases}, DEADLINE_S, asked_is_an_end=killed == "after")
        undone = time.monotonic()
        left, lost = asyncio.run(_differing(cases)), asyncio.run(_lost(cases))
        untouched = asyncio.run(ask("", "untouched"))
    inverses = {case.name for case in cases if equal_with_inverses_alone(case)}
    return {
        **_counts(cases, seen, written, left, inverses, seen.asked()),
        "overwritten": sorted(name for name in seen.asked() if lost[name]),
        "killed": killed,
        "lease": lease,
        "shared_untouched": all(untouched.values()),
        "servers": str(found),
        "calls_s": round(dead - begun, 1),
        "undone_after_s": round(undone - dead, 1),
    }


async def _differing(cases: list[Case]) -> dict[str, list[str]]:
    """Return the records that differ from the beginning, for each case where any does."""
    answers = [(case.name, await ask(case.name, "differs")) for case in cases]
    return {name: records for name, records in answers if records}


async def _lost(cases: list[Case]) -> dict[str, Any]:
    """Return what is no longer as the call left it that each agent was killed inside."""
    return {case.name: await ask(case.name, "lost") for case in cases}


def _counts(
    cases: list[Case],
    seen: Seen,
    written: dict[str, Any],
    left: dict[str, Any],
    inverses: set[str],
    asked: dict[str, str],
) -> dict[str, Any]:
    rows = {}
    for domain in KITS:
        own = [case for case in cases if case.domain == domain]
        rows[domain] = {
            "tasks": len({case.task for case in own}),
            "cases": len(own),
            "writes": sum(case.writes for case in own),
            "changed": sum(case.name in written for case in own),
            "equal": sum(case.name not in left for case in own),
            "asked": sum(case.name in left and case.name in asked for case in own),
            "equal_with_inverses_alone": sum(case.name in inverses for case in own),
        }
    return {
        **{name: sum(row[name] for row in rows.values()) for name in next(iter(rows.values()))},
        "domains": rows,
        "writes_done": seen.writes[StepStatus.SUCCEEDED],
        "writes_refused": seen.writes[StepStatus.FAILED],
        "undos": seen.undos[UndoStatus.UNDONE],
        "nothing_to_undo": seen.undos[UndoStatus.NOTHING_TO_UNDO],
        "attempts": seen.undos[UndoStatus.STARTED],
        "incidents": len(seen.incidents),
        "different": {name: records for name, records in left.items() if name not in asked},
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--cases", type=int, default=0, help="only so many, spread over all (default: every case)")
    parser.add_argument("--apache", action="store_true", help="start Apache Kafka instead of the embedded broker")
    parser.add_argument("--kafka", help="host:port of a Kafka to use")
    parser.add_argument("--redis", help="URL of a Redis to use")
    parser.add_argument("--lease", default="10s", help="how long an agent may be silent (default: 10s)")
    parser.add_argument(
        "--killed",
        choices=("behind", "before", "after"),
        default="behind",
        help="where in its last call: behind it (default), or inside it, before or after its effect",
    )
    parser.add_argument("--json", help="a file to write all figures to")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
