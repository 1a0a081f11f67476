import dataclasses
import pickle
import threading

import dupekit
import pyarrow as pa
import pytest
from dupekit import Transformation
from hypothesis import given
from hypothesis import strategies as st

# Unassigned characters are left out: Python and Rust may know different Unicode versions.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]) | st.sampled_from(" \n.,AİΣ\u3000"), max_size=200)
STEPS = [
    Transformation.SplitParagraphs("text", "id"),
    Transformation.Hash("text", "digest"),
    Transformation.SelectColumns(["text"]),
    Transformation.CleanText("text", "clean"),
    Transformation.MinHash("text", "signature"),
    Transformation.MinHashLSH("signature", "buckets"),
]


def batch_of(texts: list[str | None], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"id": list(range(len(texts))), "text": pa.array(texts, kind or pa.string())})


@given(texts=st.lists(st.none() | TEXT, max_size=6))
def test_cleaning_equals_its_description(reference, texts: list[str | None]) -> None:
    out = dupekit.transform(batch_of(texts), [Transformation.CleanText("text", "clean")])
    assert out["clean"].to_pylist() == [None if text is None else reference.clean(text) for text in texts]


@given(texts=st.lists(st.none() | TEXT, max_size=6))
def test_paragraphs_are_the_non_empty_lines_with_their_byte_offsets(texts: list[str | None]) -> None:
    rows = dupekit.transform(batch_of(texts), [Transformation.SplitParagraphs("text", "id")]).to_pylist()
    expected = [
        (str(number), line)
        for number, text in enumerate(texts)
        if text is not None
        for line in text.split("\n")
        if line
    ]
    assert [(row["doc_id"], row["paragraph_text"]) for row in rows] == expected
    for row in rows:
        start, end = row["paragraph_span"]["span"]
        raw = (texts[int(row["doc_id"])] or "").encode()
        assert raw[start:end].decode() == row["paragraph_text"]
        assert raw[end : end + 1] in (b"", b"\n")


def test_paragraph_identifiers_may_be_strings_integers_or_null() -> None:
    for ids, expected in [(pa.array(["x", None]), ["x", None]), (pa.array([7, None], pa.uint8()), ["7", None])]:
        batch = pa.record_batch({"id": ids, "text": ["a", "b"]})
        out = dupekit.transform(batch, [Transformation.SplitParagraphs("text", "id")])
        assert out["doc_id"].to_pylist() == expected
    with pytest.raises(dupekit.ColumnTypeError, match="integer type"):
        batch = pa.record_batch({"id": [1.5], "text": ["a"]})
        dupekit.transform(batch, [Transformation.SplitParagraphs("text", "id")])


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("step", STEPS[:5], ids=lambda step: type(step).__name__)
def test_every_string_layout_gives_the_same_result(step, kind: pa.DataType) -> None:
    texts = ["short", None, "", "a text that is longer than twelve bytes\nwith a second line", "é"]
    plain = dupekit.transform(batch_of(texts), [step])
    other = dupekit.transform(batch_of(texts, kind), [step])
    assert other.to_pylist() == plain.to_pylist()
    sliced = dupekit.transform(batch_of(["dropped", *texts, "dropped"], kind)[1:6].drop_columns("id"), [step] * 0)
    assert sliced["text"].to_pylist() == texts


def test_columns_that_no_step_touches_are_passed_on_without_a_copy() -> None:
    batch = batch_of(["some text"] * 1_000)
    out = dupekit.transform(batch, [Transformation.Hash("text", "digest")])
    before, after = batch["text"].buffers(), out["text"].buffers()
    assert before[2] is not None and after[2] is not None
    assert before[2].address == after[2].address
    assert out["id"].equals(batch["id"])


def test_a_step_may_replace_its_own_column() -> None:
    out = dupekit.transform(batch_of(["A  B!"]), [Transformation.CleanText("text", "text")])
    assert out.schema.names == ["id", "text"]
    assert out["text"].to_pylist() == ["a b"]


def test_selection_orders_columns_and_keeps_the_rows_of_an_empty_selection() -> None:
    batch = batch_of(["a", "b"])
    assert dupekit.transform(batch, [Transformation.SelectColumns(["text", "id"])]).schema.names == ["text", "id"]
    assert dupekit.transform(batch, [Transformation.SelectColumns([])]).num_columns == 0


def test_schema_metadata_survives() -> None:
    batch = batch_of(["a"]).replace_schema_metadata({"origin": "test"})
    out = dupekit.transform(batch, [Transformation.Hash("text", "digest")])
    assert out.schema.metadata == {b"origin": b"test"}


def test_no_steps_and_no_rows_are_fine() -> None:
    batch = batch_of(["a", None])
    assert dupekit.transform(batch, []).equals(batch)
    for step in STEPS[:5]:
        assert dupekit.transform(batch_of([]), [step]).num_rows == 0


def test_a_table_is_transformed_batch_by_batch() -> None:
    batch = batch_of(["a", None, "b"])
    table = pa.Table.from_batches([batch[:1], batch[1:]])
    steps = [Transformation.CleanText("text", "clean"), Transformation.MinHash("clean", "s", 8)]
    out = dupekit.transform(table, steps)
    assert isinstance(out, pa.Table)
    assert out.to_pylist() == dupekit.transform(batch, steps).to_pylist()
    empty = dupekit.transform(table.schema.empty_table(), steps)
    assert empty.schema == out.schema
    assert empty.num_rows == 0


def test_all_null_text_is_no_special_case() -> None:
    batch = pa.record_batch({"id": [1, 2], "text": pa.nulls(2)})
    out = dupekit.transform(batch, [Transformation.CleanText("text", "c"), Transformation.MinHash("text", "s", 4)])
    assert out.select(["c", "s"]).to_pylist() == [{"c": None, "s": None}] * 2
    assert dupekit.transform(batch, [Transformation.SplitParagraphs("text", "id")]).num_rows == 0


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_missing_column_is_named_with_the_ones_there_are(step) -> None:
    batch = pa.record_batch({"other": ["a"], "another": ["b"]})
    with pytest.raises(dupekit.ColumnNotFoundError, match="expected one of: other, another") as caught:
        dupekit.transform(batch, [step])
    assert isinstance(caught.value, ValueError)
    assert caught.value.available == ("other", "another")


@pytest.mark.parametrize("step", [STEPS[0], STEPS[3], STEPS[4]], ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("column", [pa.array([1]), pa.array([b"x"]), pa.array(["x"]).dictionary_encode()], ids=str)
def test_a_text_column_of_another_type_is_a_type_error(step, column: pa.Array) -> None:
    batch = pa.record_batch({"id": [1], "text": column})
    with pytest.raises(dupekit.ColumnTypeError, match=r"column='text'.*expected string") as caught:
        dupekit.transform(batch, [step])
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("step", [STEPS[0], STEPS[3], STEPS[4]], ids=lambda step: type(step).__name__)
def test_bytes_that_are_not_utf8_are_a_parse_error_with_the_row(step) -> None:
    raw = pa.array([b"fine", b"\xff\xfe"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    with pytest.raises(dupekit.ParseError, match="row 1 is not valid UTF-8"):
        dupekit.transform(pa.record_batch({"id": [1, 2], "text": text}), [step])


def test_things_that_are_no_batch_or_step_are_type_errors() -> None:
    with pytest.raises(TypeError, match="type=list; expected a pyarrow RecordBatch or Table"):
        dupekit.transform([1], [])  # pyrefly: ignore[no-matching-overload]
    with pytest.raises(TypeError, match="type=str; expected a member of dupekit"):
        dupekit.transform(batch_of(["a"]), ["Hash"])  # pyrefly: ignore[no-matching-overload]
    with pytest.raises(dupekit.ParameterError, match="threads=0"):
        dupekit.transform(batch_of(["a"]), [], threads=0)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_steps_are_plain_data(step) -> None:
    assert pickle.loads(pickle.dumps(step)) == step
    assert type(step).__name__ in repr(step)
    with pytest.raises(AttributeError):
        setattr(step, dataclasses.fields(step)[0].name, "changed")


def test_other_threads_run_while_a_batch_is_transformed(corpus) -> None:
    batch = pa.record_batch({"text": [corpus.text(2_000) for _ in range(150)]})
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks[0]
    dupekit.transform(batch, [Transformation.MinHash("text", "s", 2_000)])
    during = ticks[0] - before
    done.set()
    thread.join()
    # Were the lock held, the counter could move at most for one switch interval before the call.
    assert during > 10_000


def test_shingle_hashes_keep_text_order_and_repeats(reference) -> None:
    text = "a b a b a"
    hashes = dupekit.shingle_hashes(text, ngram_size=2)
    assert len(hashes) == 4
    assert hashes[0] == hashes[2] == dupekit.hash_xxh3_64(b"a b")
    assert len(set(dupekit.shingle_hashes("日本語", ngram_size=2, ngram_kind="char", kind="fast32"))) == 2
