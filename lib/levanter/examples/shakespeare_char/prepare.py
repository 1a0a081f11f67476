"""Make the data of the character recipe: a character tokenizer, and the text split 90 to 10.

    python prepare.py FOLDER [--text FILE]

FOLDER then holds ``tokenizer/tokenizer.json``, ``train.jsonl`` and ``validation.jsonl``, one document each. Training is

    cd FOLDER && python -m levanter.main.train_lm --config_path .../shakespeare_char/config.yaml
"""

import argparse
import gzip
import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

TEXT = pathlib.Path(__file__).with_name("tinyshakespeare.txt.gz")


def character_tokenizer(text: str) -> Tokenizer:
    """One token a character, ids in code-point order, as nanoGPT numbers them."""
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(text)))}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def read_text(path: pathlib.Path) -> str:
    """The text of a file, gzipped or plain."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def prepare(folder: pathlib.Path, text: str) -> None:
    """Write the tokenizer and both splits."""
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    character_tokenizer(text).save(str(folder / "tokenizer" / "tokenizer.json"))
    cut = int(len(text) * 0.9)
    for name, part in (("train", text[:cut]), ("validation", text[cut:])):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": part}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, default=TEXT)
    args = parser.parse_args()
    prepare(args.folder, read_text(args.text))
    print(f"prepared {args.folder}")
