"""State dicts: modules as flat dictionaries of arrays, in the layout of PyTorch and Hugging Face."""
