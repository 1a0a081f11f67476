"""Loading an experiment script as the module it would be if it were imported."""

import importlib.util
import os
import sys
from types import ModuleType

from marin.errors import MarinError, ScriptError
from marin.execution.fingerprint import script_module_name


def load_script(path: str) -> ModuleType:
    """Import a script by its path; relative to packages around it, its full dotted name is used.

    Raises:
        ScriptError: There is no such file, or it raised while it was imported.
    """
    if not os.path.isfile(path):
        raise ScriptError(path, "there is no such file", hint="Pass the path of a Python file.")
    name = script_module_name(path)
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise ScriptError(path, "it is not a Python file", hint="Pass a file that ends in .py.")
    root = os.path.abspath(path)
    for _ in name.split("."):
        root = os.path.dirname(root)
    if root not in sys.path:
        sys.path.insert(0, root)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MarinError:
        raise
    except (Exception, SystemExit) as error:
        where = _where(error, path)
        message = f"importing it raised {type(error).__name__}: {error}{where}"
        raise ScriptError(path, message, hint="Run the file with python to see the whole traceback.") from error
    return module


def _where(error: BaseException, path: str) -> str:
    """The line of the script that an exception came through."""
    traceback, line = error.__traceback__, 0
    while traceback is not None:
        if os.path.abspath(traceback.tb_frame.f_code.co_filename) == os.path.abspath(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" (line {line})" if line else ""
