"""The `amends` command."""


def main() -> None: ...
