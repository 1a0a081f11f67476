"""Former path of the state dict functions."""

from haliax._state_dict.convert import flatten_modules_for_export, unflatten_modules_from_export
from haliax._state_dict.protocol import from_state_dict, to_state_dict

__all__ = ["flatten_modules_for_export", "from_state_dict", "to_state_dict", "unflatten_modules_from_export"]
