"""What can go wrong before anything of ours runs."""

from __future__ import annotations


class ServerUnavailable(Exception):  # noqa: N818 - named as the family of AmendsError is: by what happened
    """A server could not be had on this machine. The text says what was tried and what to do."""
