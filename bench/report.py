"""Figures as a table for people, and two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Figures = dict[str, Any]

TARGETS: dict[str, Figures] = {
    "1": {"step_ms": (1.0, 2.0), "recovery_ms": 7, "workflows_s": 90},
    "32": {"step_ms": (7, 16), "recovery_ms": 35, "workflows_s": 450},
    "256": {"step_ms": (25, 65), "recovery_ms": 200, "workflows_s": 700, "cpu_ms": 3.0},
    "200/s": {"step_ms": (2, 8), "recovery_p": (15, 60)},
    "400/s": {"step_ms": (10, 25), "recovery_p": (50, 200)},
}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of `values` lie; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def table(figures: Figures) -> str:
    """Return the table of one run."""
    lines = []
    for broker, found in figures["brokers"].items():
        lines.append(f"\n{broker}")
        lines.append(
            f"{'load':>8} | {'wf/s':>7} | {'step p50/p99 ms':>16} | {'recovery p50/p99 ms':>20} | "
            f"{'CPU ms/wf':>9} | {'floor: produce p50/p99':>22} | parts (CPU ms/wf, MB)"
        )
        for load, row in found["loads"].items():
            parts = " ".join(f"{n} {p['cpu_ms']:.2f}/{p['mb']:.0f}" for n, p in row["parts"].items())
            lines.append(
                f"{load:>8} | {row['workflows_s']:7.1f} | {row['step_p50_ms']:7.2f}/{row['step_p99_ms']:8.2f} | "
                f"{row['recovery_p50_ms']:9.1f}/{row['recovery_p99_ms']:10.1f} | {row['cpu_ms']:9.2f} | "
                f"{row['floor_p50_ms']:10.2f}/{row['floor_p99_ms']:11.2f} | {parts}"
            )
        lines.append(f"floor: produce -> consume -> produce p50 {found['hop_p50_ms']:.2f} ms")
    alone = figures["alone"]
    lines.append(
        f"\nfold alone {alone['fold_facts_s']:,.0f} facts/s · restore of {alone['restore_steps']:,} steps "
        f"{alone['restore_s']:.1f} s, {alone['restore_mb']:.0f} MB · claim p50/p99 "
        f"{alone['claim_p50_ms']:.3f}/{alone['claim_p99_ms']:.3f} ms ({alone['registry']})"
    )
    return "\n".join(lines)


def verdicts(figures: Figures) -> list[str]:
    """Return where each target stands, for Apache Kafka."""
    lines = []
    for broker, found in figures["brokers"].items():
        if "apache" not in broker:
            continue
        for load, row in found["loads"].items():
            target = TARGETS.get(load, {})
            said = []
            if "step_ms" in target:
                p50, p99 = target["step_ms"]
                said.append(f"step {_met(row['step_p50_ms'], p50)} {_met(row['step_p99_ms'], p99)}")
            if "recovery_ms" in target:
                said.append(f"recovery {_met(row['recovery_p50_ms'], target['recovery_ms'])}")
            if "recovery_p" in target:
                p50, p99 = target["recovery_p"]
                said.append(f"recovery {_met(row['recovery_p50_ms'], p50)} {_met(row['recovery_p99_ms'], p99)}")
            if "workflows_s" in target:
                said.append(f"rate {_met(-row['workflows_s'], -target['workflows_s'])}")
            if "cpu_ms" in target:
                said.append(f"CPU {_met(row['cpu_ms'], target['cpu_ms'])}")
            lines.append(f"{load:>8}: " + " · ".join(said))
    return lines


def _met(found: float, target: float) -> str:
    return f"{abs(found):.4g} (target {abs(target):g}{'' if found <= target else ', MISSED'})"


def comparison(before: Figures, after: Figures) -> str:
    """Return both runs' figures, each as a ratio to its own floor, side by side: after over before."""
    lines = [f"{'':>28} | {'wf/s':>6} | {'step/floor p50':>14} | {'recovery/hop p50':>16} | {'CPU/wf':>7}"]
    for broker, found in after["brokers"].items():
        old = before["brokers"].get(broker)
        for load, row in found["loads"].items() if old else ():
            was = old["loads"].get(load)
            if was is None:
                continue
            step = _ratio(row["step_p50_ms"] / row["floor_p50_ms"], was["step_p50_ms"] / was["floor_p50_ms"])
            recovery = _ratio(row["recovery_p50_ms"] / found["hop_p50_ms"], was["recovery_p50_ms"] / old["hop_p50_ms"])
            rate = _ratio(row["workflows_s"], was["workflows_s"])
            cpu = _ratio(row["cpu_ms"], was["cpu_ms"])
            lines.append(f"{broker[:18]:>18} {load:>9} | {rate:>6} | {step:>14} | {recovery:>16} | {cpu:>7}")
    return "\n".join(lines)


def _ratio(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before else "-"
