"""Sources name their kind, place, revision and licence before a byte is read."""

import pytest
from marin.datakit.errors import SourceSyntaxError
from marin.datakit.sources import Source, SourceKind, parse_source, stdlib_source


def test_the_standard_library_is_known_with_its_version_and_licence():
    source = parse_source("stdlib")
    assert source == stdlib_source()
    assert source.licence == "PSF-2.0"
    assert source.label.startswith("stdlib:python@3.")


def test_a_path_keeps_its_glob_and_an_unknown_licence_is_said_to_be_unknown():
    assert parse_source("path:/data/*.jsonl") == Source(SourceKind.PATH, "/data/*.jsonl", "", "LicenseRef-unknown")


def test_a_hub_data_set_without_a_revision_means_main():
    assert parse_source("hf:owner/name").revision == "main"
    assert parse_source("hf:owner/name@abc", licence="CC-BY-4.0") == Source(
        SourceKind.HUGGING_FACE, "owner/name", "abc", "CC-BY-4.0"
    )


@pytest.mark.parametrize("argument", ["", "path:", "hf:", "hf:@main", "s3:bucket", "stdlib2", "/plain/path"])
def test_anything_else_is_refused_with_the_forms_that_work(argument):
    with pytest.raises(SourceSyntaxError, match="'path:GLOB' or 'hf:ID"):
        parse_source(argument)
