"""The door of `rmsnorm-verify` and of `python -m references`: says what is not installed before it is imported."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("numpy", "ml_dtypes", "mpmath", "typer", "rich")  # the extra `verify`


def main() -> None:
    """Run the command line; exit status 2 where a package that it needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"rmsnorm-verify: {', '.join(missing)} not installed: pip install 'rmsnorm[verify]' brings what it needs",
            file=sys.stderr,
        )
        sys.exit(2)
    from references.cli import run

    run()


if __name__ == "__main__":
    main()
