"""Low-rank adaptation in one place: :mod:`levanter.adaptor.lora` and the format of :mod:`levanter.compat.peft`."""

from levanter.adaptor.lora import LoraConfig as LoraConfig
from levanter.adaptor.lora import is_lora_model as is_lora_model
from levanter.adaptor.lora import lora_trainable_params_filter as lora_trainable_params_filter
from levanter.adaptor.lora import loraize as loraize
from levanter.adaptor.lora import merge_lora_modules as merge_lora_modules
from levanter.adaptor.lora import unwrap_lora_modules as unwrap_lora_modules
from levanter.compat.peft import load_peft_pretrained as load_peft_pretrained
from levanter.compat.peft import lora_state_dict as lora_state_dict
from levanter.compat.peft import save_merged_hf_model as save_merged_hf_model
from levanter.compat.peft import save_peft_pretrained as save_peft_pretrained
from levanter.layers.linear import LoraLinear as LoraLinear
