"""State dicts: modules to and from flat dictionaries of arrays, as PyTorch and Hugging Face store them.

`to_torch_compatible_state_dict` and `from_torch_compatible_state_dict` do the whole job for most models: keys are the
dotted paths of fields (renamed by `_state_dict_key_map`), layers with several axes are flattened to matrices, stacked
layers become ``prefix.<i>.rest``.
"""

from haliax._state_dict.convert import (
    flatten_modules_for_export,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_numpy_state_dict,
    to_torch_compatible_state_dict,
    unflatten_modules_from_export,
)
from haliax._state_dict.protocol import (
    ModuleWithStateDictSerialization,
    StateDict,
    default_eqx_module_from_state_dict,
    default_eqx_module_to_state_dict,
    from_state_dict,
    to_state_dict,
    with_prefix,
)
from haliax._state_dict.stacking import stack_state_dict, unstack_state_dict

__all__ = [
    "ModuleWithStateDictSerialization",
    "StateDict",
    "default_eqx_module_from_state_dict",
    "default_eqx_module_to_state_dict",
    "flatten_modules_for_export",
    "from_state_dict",
    "from_torch_compatible_state_dict",
    "load_state_dict",
    "save_state_dict",
    "stack_state_dict",
    "to_numpy_state_dict",
    "to_state_dict",
    "to_torch_compatible_state_dict",
    "unflatten_modules_from_export",
    "unstack_state_dict",
    "with_prefix",
]
