import gzip
import hashlib
import json
import os

import pytest


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """A small trained tokenizer, EOS `<|endoftext|>` with id 0."""
    from levanter.tokenizers import save_tokenizer, train_byte_bpe

    texts = [f"def function_{i}(argument):\n    return argument + {i}\n" for i in range(300)]
    path = str(tmp_path_factory.mktemp("tok"))
    tokenizer = train_byte_bpe(texts, vocab_size=300, special_tokens=["<|endoftext|>", "<s>"])
    save_tokenizer(tokenizer, path, eos_token="<|endoftext|>", bos_token="<s>")
    return path


@pytest.fixture
def write_jsonl():
    def write(path, texts, key="text"):
        data = "".join(json.dumps({key: text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
        return str(path)

    return write


@pytest.fixture
def tree_digest():
    """Digest of every file of a folder: names and bytes."""

    def digest(root):
        sha = hashlib.sha256()
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(folder, name)
                sha.update(os.path.relpath(path, root).encode())
                with open(path, "rb") as file:
                    sha.update(file.read())
        return sha.hexdigest()

    return digest
