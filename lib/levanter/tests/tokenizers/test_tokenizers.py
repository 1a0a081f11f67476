import json
import pickle
import shutil
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from levanter.tokenizers import HfTokenizer, MarinTokenizer, PassthroughTokenizer, load_tokenizer, save_tokenizer
from levanter.tokenizers.errors import (
    InvalidTextError,
    TokenizerFileError,
    TokenizerNotFoundError,
    VocabularySizeError,
)
from levanter.tokenizers.training import train_byte_bpe
from tokenizers import Tokenizer

TEXTS = [f"def function_{i}(argument):\n    return argument + {i}  # <|endoftext|> naïve\n" for i in range(200)]


@pytest.fixture(scope="module")
def trained():
    return train_byte_bpe(TEXTS, vocab_size=300)


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(trained, str(path), eos_token="<|endoftext|>")
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=300, deadline=None)
@given(TEXT)
@example("<|endoftext|>")
@example("a<|endoftext|>\x00\r\n b")
@example("\ufeff line\u2028sep \U0001f600")
@example(" " * 1000)
def test_decoding_undoes_encoding_for_every_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= number < tokenizer.vocab_size for number in ids)
    assert not set(ids) & set(tokenizer.all_special_ids)


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXT, max_size=8))
def test_a_batch_equals_its_texts_one_by_one(tokenizer, texts):
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_control_tokens_in_documents_stay_text_unless_asked_for(tokenizer):
    assert tokenizer.eos_token_id == 0
    assert 0 not in tokenizer.encode("x<|endoftext|>")
    assert tokenizer.encode("x<|endoftext|>", parse_special=True)[-1] == 0


def test_document_marks_are_ids_not_text(tokenizer):
    assert tokenizer.encode("x", add_special_tokens=True) == [*tokenizer.encode("x"), 0]
    assert tokenizer.encode("", add_special_tokens=True) == [0]


def test_a_million_spaces_and_a_long_word_encode_in_seconds(tokenizer):
    for text in (" " * 1_000_000, "x" * 1_000_000):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_without_utf8_form_is_an_error_with_its_place(tokenizer):
    with pytest.raises(InvalidTextError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(InvalidTextError, match="NoneType"):
        tokenizer.encode_batch(["fine", None])


def test_training_twice_gives_the_same_file(trained):
    assert train_byte_bpe(TEXTS, vocab_size=300).to_str() == trained.to_str()
    assert train_byte_bpe(reversed(TEXTS), vocab_size=300).to_str() == trained.to_str()


@pytest.mark.slow
def test_training_does_not_depend_on_threads_or_hash_seeds(trained, tmp_path):
    script = (
        "import sys; from levanter.tokenizers.training import train_byte_bpe\n"
        "texts = sys.stdin.read().split('\\x1e')\n"
        "sys.stdout.write(train_byte_bpe(texts, vocab_size=300).to_str())"
    )
    for threads in ("1", "4"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input="\x1e".join(TEXTS),
            env={"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
            encoding="utf-8",
        )
        assert done.stdout == trained.to_str()


def test_a_vocabulary_larger_than_the_data_supports_names_the_numbers():
    with pytest.raises(VocabularySizeError) as caught:
        train_byte_bpe(["ab ab", "ab"], vocab_size=4096)
    error = caught.value
    assert (error.asked, error.reached, error.documents, error.characters) == (4096, 258, 2, 7)
    assert "vocab_size=4096, reachable=258" in str(error)
    assert train_byte_bpe(["ab ab", "ab"], vocab_size=error.reached).get_vocab_size() == error.reached
    with pytest.raises(ValueError, match="256 bytes and 1 special"):
        train_byte_bpe(["a"], vocab_size=100)
    with pytest.raises(InvalidTextError, match="document 1"):
        train_byte_bpe(["a", "\ud800"], vocab_size=300)


def test_saving_writes_the_same_bytes_and_loads_back(trained, folder, tmp_path):
    again = save_tokenizer(load_tokenizer(folder), str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        with open(f"{folder}/{name}", "rb") as one, open(tmp_path / name, "rb") as two:
            assert one.read() == two.read()
    assert again.fingerprint == load_tokenizer(folder).fingerprint
    assert again.fingerprint != HfTokenizer(trained).fingerprint
    with pytest.raises(TokenizerFileError, match="</s>"):
        save_tokenizer(trained, str(tmp_path), eos_token="</s>")


def test_a_lone_file_gets_its_roles_from_well_known_names(folder):
    lone = load_tokenizer(f"{folder}/tokenizer.json")
    assert (lone.eos_token, lone.bos_token, lone.pad_token_id) == ("<|endoftext|>", None, None)


def test_roles_written_as_objects_are_read(folder, tmp_path):
    shutil.copy(f"{folder}/tokenizer.json", tmp_path)
    config = {"bos_token": {"content": "<|endoftext|>", "lstrip": False}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.chat_template) == (0, None, "{{ messages }}")


def test_padding_and_truncation_settings_of_a_file_are_ignored(trained, tmp_path):
    changed = Tokenizer.from_str(trained.to_str())
    changed.enable_truncation(3)
    changed.enable_padding(length=8)
    changed.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).encode(TEXTS[0]) == HfTokenizer(trained).encode(TEXTS[0])


def test_names_are_never_looked_up_elsewhere(tmp_path):
    with pytest.raises(TokenizerNotFoundError, match="gpt2"):
        load_tokenizer("gpt2")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerFileError, match="cannot be parsed"):
        load_tokenizer(str(tmp_path))


def test_pieces_and_ids_convert_both_ways(tokenizer):
    ids = tokenizer.encode("def function")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.convert_tokens_to_ids(pieces) == ids
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab()) == 300
    with pytest.raises(IndexError, match="unknown token id=300"):
        tokenizer.convert_ids_to_tokens([300])


def test_tokenizers_travel_between_processes(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("x<|endoftext|>") == tokenizer.encode("x<|endoftext|>")
    assert (copy.fingerprint, copy.eos_token_id) == (tokenizer.fingerprint, 0)


def test_both_kinds_satisfy_the_protocol(tokenizer):
    assert isinstance(tokenizer, MarinTokenizer)
    assert isinstance(PassthroughTokenizer(10), MarinTokenizer)


def test_passthrough_parses_ids_and_refuses_others():
    passthrough = PassthroughTokenizer(10)
    assert passthrough.encode_batch(["1 2\n9", ""]) == [[1, 2, 9], []]
    assert passthrough.decode([3, 4]) == "3 4"
    for text in ("10", "-1", "x", "1.5", "²"):
        with pytest.raises(InvalidTextError, match="below 10"):
            passthrough.encode(text)
