"""Keep a training command alive.

    python -m levanter.main.supervise [--max_restarts 20] [--heartbeat_timeout 10m] ... -- COMMAND WORDS...

Leaves with the command's last exit code; see :mod:`levanter.recovery.exits` for which codes are started again.
"""

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence

from levanter import config as levanter_config
from levanter.errors import ConfigError, LevanterError
from levanter.recovery.supervisor import Supervisor, SupervisorConfig


def main(words: Sequence[str] | None = None) -> int:
    """Split the words at ``--``, read the options before it, supervise the command after it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    words = list(sys.argv[1:] if words is None else words)
    options, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    if "--help" in options or "-h" in options:
        print(__doc__)
        levanter_config.print_help(SupervisorConfig)
        return 0
    try:
        config = levanter_config.parse_command_line(SupervisorConfig, options)
        if not command:
            raise ConfigError("there is no command; expected -- and the words to run.")
        if shutil.which(command[0]) is None:
            raise ConfigError(f"cannot find the command {command[0]!r}; expected a program on PATH.")
    except LevanterError as error:
        levanter_config.fail_with_hint(error, levanter_config.EXIT_BAD_CONFIG)
    with tempfile.TemporaryDirectory(prefix="levanter-") as folder:
        supervisor = Supervisor(config, command, os.path.join(folder, "heartbeat"))
        with supervisor.forwarding():
            return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
