"""A process that runs the transactional engine over the tally fold. It writes its progress as JSON lines to stdout."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading

from tests.contract.tally import Tally

from amends.kafka.settings import KafkaSettings
from amends.processors.engine import EngineError
from amends.processors.settings import ProcessorSettings
from amends.processors.transactions import TransactionalEngine


def main() -> int:
    given = json.loads(sys.argv[1])
    kafka = KafkaSettings(**given["kafka"])
    signals = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
    fault, point = given.get("fault"), given.get("at")
    happened = threading.Lock()

    def faults(here: str) -> None:
        if fault is not None and here == point and happened.acquire(blocking=False):
            os.kill(os.getpid(), signals[fault])

    engine = TransactionalEngine(
        kafka,
        ProcessorSettings(**given["processor"]),
        lambda partition: Tally(partition, kafka.topics),
        refold=given["refold"],
        faults=faults,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop())
    ended = threading.Event()
    reporter = threading.Thread(target=report, args=(engine, ended), daemon=True)
    reporter.start()
    try:
        engine.run()
    except EngineError as error:
        sys.stderr.write(str(error))
        return error.exit_code
    finally:
        ended.set()
        reporter.join()
    return 0


def report(engine: TransactionalEngine, ended: threading.Event) -> None:
    last = ""
    while not ended.wait(0.02):
        seen = dataclasses.replace(engine.progress, turns=0, unconfirmed=0)
        line = json.dumps(dataclasses.asdict(seen))
        if line != last:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        last = line


if __name__ == "__main__":
    raise SystemExit(main())
