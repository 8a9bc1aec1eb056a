"""`queen`, or `python -m queen_node`: starts a node with the environment's settings."""

from __future__ import annotations

import os
import sys

import trio

from queen_node import config
from queen_node.layout import CannotStart
from queen_node.node import run_node
from queen_node.observability import set_up_logging

EXIT_BAD_SETTING = 2
EXIT_CANNOT_START = 3
EXIT_STOPPED = 4


def main() -> None:
    """Run until SIGTERM. A boot that must not go on ends with one line on stderr and a code of its own."""
    try:
        settings = config.load(os.environ)
    except config.BadSetting as error:
        print(f"queen: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_SETTING)
    set_up_logging(settings.log_level, settings.log_json, server_id=settings.server_id)
    try:
        if not trio.run(run_node, os.environ, settings):
            sys.exit(EXIT_STOPPED)
    except CannotStart as error:
        print(f"queen: cannot start: {error}", file=sys.stderr)
        sys.exit(EXIT_CANNOT_START)


if __name__ == "__main__":
    main()
