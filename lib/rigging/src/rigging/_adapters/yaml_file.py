"""YAML files, read safely; the library is loaded with the first file."""

import os
from typing import Any

from rigging.errors import ConfigError


def load_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the one document of a file.

    Raises:
        ConfigError: Not YAML.
        OSError: The file cannot be read.
    """
    import yaml

    with open(path, encoding="utf-8") as stream:
        try:
            return yaml.safe_load(stream)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(os.fspath(path), " ".join(str(error).split()), "YAML") from error
