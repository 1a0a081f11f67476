"""Training a tokeniser as a step."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from levanter.tokenizers import load_tokenizer
from marin.datakit.errors import SourceNotFoundError
from marin.execution.failures import classify
from marin.tokenization.recipe import END_OF_TEXT, TokenizerConfig
from marin.tokenization.tokenizer import iterate_texts, train_tokenizer


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "docs" / "outputs" / "train"
    folder.mkdir(parents=True)
    for shard in range(2):
        texts = [f"def function_{shard}_{i}(argument): return argument + {i}\n" for i in range(50)]
        pq.write_table(pa.table({"text": texts}), folder / f"part-{shard:05d}-of-00002.parquet")
    return tmp_path / "docs"


def config(documents, folder, vocab_size):
    folder.mkdir()
    return TokenizerConfig(str(folder), str(documents), vocab_size=vocab_size)


def test_the_tokeniser_has_the_size_asked_for_ends_documents_and_decodes_what_it_encoded(documents, tmp_path):
    artifact = train_tokenizer(config(documents, tmp_path / "out", 300))
    tokenizer = load_tokenizer(str(tmp_path / "out"))
    assert artifact.vocab_size == tokenizer.vocab_size == 300
    assert tokenizer.eos_token == END_OF_TEXT
    assert tokenizer.decode(tokenizer.encode("naïve ∀x")) == "naïve ∀x"


def test_equal_documents_give_equal_files(documents, tmp_path):
    for name in "ab":
        train_tokenizer(config(documents, tmp_path / name, 300))
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]


def test_a_vocabulary_beyond_the_documents_is_a_failure_of_the_data(documents, tmp_path):
    with pytest.raises(ValueError, match="vocab_size=100000") as caught:
        train_tokenizer(config(documents, tmp_path / "out", 100_000))
    assert classify(caught.value) == "data"


def test_texts_come_in_shard_order_and_a_missing_split_is_refused(documents, tmp_path):
    texts = list(iterate_texts(f"{documents}/outputs/train/part-*.parquet"))
    assert (len(texts), texts[0][:14], texts[50][:14]) == (100, "def function_0", "def function_1")
    with pytest.raises(SourceNotFoundError, match="nowhere"):
        list(iterate_texts(f"{tmp_path}/nowhere/*.parquet"))
