"""`python -m bench`: job S at several loads, every part in its own process, beside floors of the same run.

python -m bench [--seconds 6] [--loads 1,32,256,200/s,400/s] [--only kafka|embedded] [--warm 60] [--json FILE]
    [--engine transactions|faust]
Loads of so many a second, and the long warming, are for Apache Kafka only.
python -m bench drain [--workflows 10000]: many fail at once, while new work goes on (`bench/drain.py`)
python -m bench read-back [--lanes 10]: following the ledger or seeking in it (`bench/read_back.py`)
python -m bench takeover: how long until a processor's partitions are folded again (`bench/takeover.py`)
python -m bench compare BEFORE.json AFTER.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.children import make_folder, remove_folder
from amends.local.parts import Parts, environment
from amends.local.servers import Servers, servers
from amends.schemas.topics import FAUST, TRANSACTIONS
from bench import alone, drain, floors, read_back, recovery, takeover
from bench.loads import Agent
from bench.report import Figures, comparison, percentile, table, verdicts
from bench.tools import LANE

ENGINE = "AMENDS_PROCESSOR__ENGINE"
LOADS = "1,32,256,200/s,400/s"
EMBEDDED_WARM_S = 5.0
"""The embedded broker has no compiler to warm, and a fetch costs it more with every batch it holds (decision 0008)."""
EMBEDDED_PARTITIONS = 2
"""Fewer partitions make fewer and larger batches."""


class Processes:
    """CPU time of each part from now on, and its memory; its children included."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._cpu_s = {name: _cpu_s(pid) for name, pid in pids.items()}

    def spent(self) -> dict[str, dict[str, float]]:
        return {
            name: {"cpu_s": _cpu_s(pid) - self._cpu_s[name], "mb": _memory_mb(pid)} for name, pid in self._pids.items()
        }


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_s(pid: int) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in _family(pid))


def _memory_mb(pid: int) -> float:
    return sum(p.memory_info().rss for p in _family(pid)) / 1e6


def measure(
    settings: KafkaSettings, parts: Parts, pids: dict[str, int], load: str, seconds: float, number: int
) -> Figures:
    """Run one load and return its row."""
    floor = asyncio.run(floors.confirmed_produce(settings, 1 if load.endswith("/s") else int(load), 1.0))
    agent = Agent(parts, f"bench{number}", load, seconds, warm_s=3.0)
    agent.wait_for("measuring", 60)
    since, before, began = recovery.ends_of(settings), Processes({**pids, "agent": agent.part.pid}), time.monotonic()
    time.sleep(seconds)
    to, spent, took_s = recovery.ends_of(settings), before.spent(), time.monotonic() - began
    said = json.loads(agent.wait_for("{", 90))
    window = recovery.read(settings, since, to)
    # Some workflows are half done at either end of the window, so what is counted is work: three undos are a workflow.
    workflows = window.undone / recovery.UNDOS
    for part in spent.values():
        part["cpu_ms"] = part.pop("cpu_s") * 1_000 / max(1.0, workflows)
    steps_ms = [max(0.0, us - said["bare_us"]) / 1_000 for us in said["step_us"]]
    recoveries_ms = window.recoveries_ms
    return {
        "workflows_s": workflows / took_s,
        "samples": len(steps_ms),
        "step_p50_ms": percentile(steps_ms, 0.5),
        "step_p99_ms": percentile(steps_ms, 0.99),
        "recovery_p50_ms": percentile(recoveries_ms, 0.5),
        "recovery_p99_ms": percentile(recoveries_ms, 0.99),
        "floor_p50_ms": percentile(floor, 0.5) / 1_000,
        "floor_p99_ms": percentile(floor, 0.99) / 1_000,
        "cpu_ms": sum(p["cpu_ms"] for p in spent.values()),
        "parts": spent,
    }


def broker(options: argparse.Namespace, embedded: bool, found: Servers) -> Figures:
    settings = KafkaSettings(
        bootstrap_servers=found.kafka.bootstrap_servers,
        topic_prefix=f"bench{int(time.time())}",
        lanes=(LANE,),
        partitions=min(options.partitions, EMBEDDED_PARTITIONS) if embedded else options.partitions,
        replication_factor=1,
        embedded=embedded,
    )
    create_topics(settings, options.engine)
    folder = make_folder("bench")
    parts = Parts({**environment(settings, found.redis.url), ENGINE: options.engine}, folder)
    try:
        processor = parts.amends("processor", "processor")
        compensator = parts.amends("compensator", "compensator", "bench.tools", "--lane", LANE)
        pids = {"processor": processor.pid, "compensator": compensator.pid, "redis": found.redis.pid}
        if found.kafka.pid:
            pids["broker"] = found.kafka.pid
        warm_s = min(options.warm, EMBEDDED_WARM_S) if embedded else options.warm
        if warm_s:
            print(f"  warming {warm_s:g} s", flush=True)
            Agent(parts, "warm", "8" if embedded else "64", warm_s, 0.5).wait_for("{", warm_s + 90)
        rows = {}
        loads = [load for load in options.loads.split(",") if not (embedded and load.endswith("/s"))]
        for number, load in enumerate(loads):
            rows[load] = measure(settings, parts, pids, load, options.seconds, number)
            print(f"  {load}: {rows[load]['workflows_s']:.0f} workflows/s", flush=True)
        hops = floors.hop(settings, 2.0)
    except SystemExit as ended:
        for part in parts.running:
            print(f"--- {part.name}\n{part.last_words(12)}", file=sys.stderr)
        raise ended from None
    finally:
        parts.stop()
        remove_folder(folder)
    return {"loads": rows, "hop_p50_ms": percentile(hops, 0.5) / 1_000, "hop_p99_ms": percentile(hops, 0.99) / 1_000}


def alone_figures(redis_url: str, registry: str, restore_steps: int) -> Figures:
    fold = max(alone.fold() for _ in range(3))
    took_s, grown_mb = alone.restore(restore_steps)
    claims_ms = [us / 1_000 for us in alone.claims_now(redis_url)]
    return {
        "fold_facts_s": fold,
        "restore_steps": restore_steps,
        "restore_s": took_s,
        "restore_mb": grown_mb,
        "claim_p50_ms": percentile(claims_ms, 0.5),
        "claim_p99_ms": percentile(claims_ms, 0.99),
        "registry": registry,
    }


def run(options: argparse.Namespace) -> Figures:
    figures: dict[str, Any] = {
        "engine": options.engine,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "brokers": {},
    }
    for embedded in (False, True):
        if options.only and (options.only == "embedded") != embedded:
            continue
        with servers(embedded=embedded, quick_start=False) as found:
            print(found, flush=True)
            if not figures.get("alone"):
                figures["alone"] = alone_figures(found.redis.url, found.redis.kind, options.restore_steps)
            figures["brokers"][found.kafka.kind] = broker(options, embedded, found)
    return figures


def main() -> int:
    if sys.argv[1:2] == ["drain"]:
        return drain.main(sys.argv[2:])
    if sys.argv[1:2] == ["read-back"]:
        return read_back.main(sys.argv[2:])
    if sys.argv[1:2] == ["takeover"]:
        return takeover.main(sys.argv[2:])
    if sys.argv[1:2] == ["compare"]:
        before, after = (json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[2:4])
        print(comparison(before, after))
        return 0
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--only", choices=("kafka", "embedded"))
    parser.add_argument("--engine", choices=(TRANSACTIONS, FAUST), default=TRANSACTIONS, help="the processors' engine")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load before the first measurement")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--restore-steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, default=Path("bench/results/latest.json"))
    options = parser.parse_args()
    figures = run(options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(table(figures))
    print("\nTargets of issue 3:\n" + "\n".join(verdicts(figures)))
    print(f"\nwritten to {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
