"""A process that runs an engine over the tally fold. It writes its progress as JSON lines to stdout."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from tests.contract.tally import Tally

from amends.kafka.settings import KafkaSettings
from amends.processors.engine import EngineError
from amends.processors.faust_worker import ProcessorApp, make_app
from amends.processors.settings import ProcessorSettings
from amends.processors.transactions import TransactionalEngine
from amends.processors.watchdog import Progress
from amends.schemas.topics import FAUST


def main() -> int:
    given = json.loads(sys.argv[1])
    kafka = KafkaSettings(**given["kafka"])
    signals = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
    fault, point = given.get("fault"), given.get("at")
    happened = threading.Lock()

    def faults(here: str) -> None:
        if fault is not None and here == point and happened.acquire(blocking=False):
            os.kill(os.getpid(), signals[fault])

    settings = ProcessorSettings(**given["processor"])

    def fold(partition: int) -> Tally:
        return Tally(partition, kafka.topics)

    if settings.engine == FAUST:
        return run_faust(make_app(kafka, settings, fold, refold=given["refold"], faults=faults))
    engine = TransactionalEngine(kafka, settings, fold, refold=given["refold"], faults=faults)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop())
    with reported(lambda: engine.progress):
        try:
            engine.run()
        except EngineError as error:
            sys.stderr.write(str(error))
            return error.exit_code
    return 0


def run_faust(app: ProcessorApp) -> int:
    with reported(lambda: app.engine.progress):
        try:
            app.Worker(loglevel="INFO").execute_from_commandline()
        except SystemExit as ended:
            return int(ended.code or 0)


@contextlib.contextmanager
def reported(progress: Callable[[], Progress]) -> Iterator[None]:
    ended = threading.Event()
    reporter = threading.Thread(target=report, args=(progress, ended), daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def report(progress: Callable[[], Progress], ended: threading.Event) -> None:
    last = ""
    while not ended.wait(0.02):
        seen = dataclasses.replace(progress(), turns=0, unconfirmed=0)
        line = json.dumps(dataclasses.asdict(seen))
        if line != last:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        last = line


if __name__ == "__main__":
    raise SystemExit(main())
