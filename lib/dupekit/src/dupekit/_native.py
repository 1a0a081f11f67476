"""The one place that imports the native module, and checks that it speaks this package's contract.

The module lies beside the package rather than in it: an editable install of the package would hide a nested one.
"""

from dupekit.errors import NativeModuleError

API_VERSION = 1
"""Contract between the package and its native module; both sides raise it when a signature changes."""

try:
    import dupekit_native as native
except ImportError as error:
    raise NativeModuleError(reason=f"it does not load ({error})") from error

if native.API_VERSION != API_VERSION:
    raise NativeModuleError(reason=f"contract={native.API_VERSION} of native version {native.__version__}")

__all__ = ["API_VERSION", "native"]
