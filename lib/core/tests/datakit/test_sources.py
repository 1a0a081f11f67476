"""Sources name their kind, place, revision and licence before a byte is read."""

import pytest
from marin.datakit.errors import SourceSyntaxError
from marin.datakit.sources import HUB_LICENCES, Source, SourceKind, parse_source, stdlib_source
from marin.execution.fingerprint import canonical_payload
from marin.policy import declared_sources
from marin.policy.spdx import accepts, is_licence_id


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


def test_what_no_policy_knows_is_no_term_of_a_source():
    with pytest.raises(ValueError, match="allowed_uses"):
        Source(SourceKind.PATH, "x", allowed_uses=("trian",))
    with pytest.raises(ValueError, match="pii_risk"):
        Source(SourceKind.PATH, "x", pii_risk="some")


def test_what_a_source_says_reaches_the_policy():
    source = Source(
        SourceKind.HUGGING_FACE, "acme/exam", "main", "MIT", ("eval",), "exam@1", "reviewed", "https://example.org"
    )
    (terms,) = declared_sources(canonical_payload({"source": source}), step="raw")
    assert terms.label == source.label and terms.licence == "MIT" and terms.allowed_uses == ("eval",)
    assert (terms.eval_suite, terms.pii_risk, terms.evidence) == ("exam@1", "reviewed", "https://example.org")


def test_licences_of_the_hub_are_known_and_the_caller_goes_over_them():
    assert parse_source("hf:roneneldan/TinyStories").licence == "CDLA-Sharing-1.0"
    vouched = parse_source("hf:roneneldan/TinyStories", licence="MIT")
    assert (vouched.licence, vouched.terms_url) == ("MIT", "")
    assert parse_source("hf:example/unheard-of").licence == "LicenseRef-unknown"
    assert all(accepts(expression, is_licence_id) for expression in HUB_LICENCES.values())
