"""What the exit codes of `amends` mean. 2 (wrong arguments) is also what the command line itself ends with."""

from __future__ import annotations

OK = 0
FAILED = 1  # amends could not do it: Kafka does not answer, topics are missing, an extra is not installed
USAGE = 2  # the command, an option or a setting is wrong
NOT_FOUND = 3  # there is no such workflow, incident or dead letter
NEEDS_ATTENTION = 4  # what it found needs a person: a topic is wrong, an incident is open, a decision comes too late
INTERRUPTED = 130


class Stop(Exception):  # noqa: N818 - an end with words and a code, not always an error
    """Ends the command: `words` go to standard error, `code` to the shell."""

    def __init__(self, words: str, code: int = FAILED) -> None:
        super().__init__(words)
        self.words = words
        self.code = code
