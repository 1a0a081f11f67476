"""Signatures: the encoding that is signed, the four states, and that no key material is ever shown."""

import datetime as dt
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import CorruptRecordError, KeyFileError, RecordNotFoundError, UsageError
from marin.execution import Artifact, ArtifactStep, run
from marin.execution.layout import StepLayout
from marin.ledger import Ledger, verify
from marin.ledger.dsse import PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE, Envelope, pae
from marin.ledger.signing import sign_step

pytest.importorskip("cryptography", reason="signatures need the extra sign")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from marin.ledger._adapters.ed25519 import Signer, generate_pair, holds, key_id, load_signer
from marin.ledger.trusted_keys import TrustedKey, TrustedKeys, load_trusted_keys


class Total(Artifact):
    total: int


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("http://example.com/HelloWorld", b"hello world", b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"),
        ("", b"", b"DSSEv1 0  0 "),
        ("a b", b"\x00\xff", b"DSSEv1 3 a b 2 \x00\xff"),
        ("\u00e9", b"1", b"DSSEv1 2 \xc3\xa9 1 1"),
    ],
)
def test_the_pre_authentication_encoding_agrees_with_the_published_one(kind, body, expected):
    assert pae(kind, body) == expected


@given(st.text(), st.binary(), st.text(), st.binary())
def test_different_documents_have_different_encodings(kind, body, other_kind, other_body):
    assert (pae(kind, body) == pae(other_kind, other_body)) == ((kind, body) == (other_kind, other_body))


def test_keys_and_signatures_are_those_of_rfc_8032():
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = Ed25519PrivateKey.from_private_bytes(secret)
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    assert raw.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = Signer(key).sign(b"")
    assert signature.hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb882159")
    assert holds(key.public_key(), signature, b"") and not holds(key.public_key(), signature, b"x")


@pytest.fixture
def pair(tmp_path):
    """A signer and the keys that trust it."""
    generate_pair(str(tmp_path / "key"))
    return load_signer(str(tmp_path / "key")), load_trusted_keys(str(tmp_path / "key.pub"))


@pytest.fixture
def store(tmp_path):
    def add(config):
        with open(os.path.join(config["out"], "sum.txt"), "w") as file:
            file.write("6")
        return Total(total=6)

    def step(name, *deps):
        def build(ctx):
            return {"out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]}

        return ArtifactStep(name, "2026.12.01", artifact_type=Total, run=add, build_config=build, deps=deps)

    prefix = str(tmp_path / "store")
    assert run(step("double", step("total")), prefix=prefix).ok
    return Ledger(prefix)


def states(result):
    return {finding.step.partition("@")[0]: finding.signature.value for finding in result.findings}


def test_an_output_is_signed_and_only_with_keys_can_one_tell(store, pair):
    signer, keys = pair
    assert states(verify(store, "double")) == {"double": "absent", "total": "absent"}
    result, signed = sign_step(store, "double", signer=signer)
    assert result.ok and signed == ["double@2026.12.01"]
    assert states(verify(store, "double")) == {"double": "unchecked", "total": "absent"}
    checked = verify(store, "double", keys=keys)
    assert checked.ok and states(checked) == {"double": "valid", "total": "absent"}
    event = next(event for event in store.events() if event.kind == "verified")
    assert event.data["signed_by"] == signer.keyid


def test_a_signature_may_be_required_of_the_whole_lineage(store, pair):
    signer, keys = pair
    sign_step(store, "double", signer=signer)
    result = verify(store, "double", keys=keys, require_signature=True)
    assert [finding.problems for finding in result.findings] == [(), ("it is not signed",)]
    sign_step(store, "double", signer=signer, lineage=True)
    assert verify(store, "double", keys=keys, require_signature=True).ok
    assert not verify(store, "double", require_signature=True).ok


def test_a_key_that_is_not_trusted_is_the_wrong_one(store, pair, tmp_path):
    generate_pair(str(tmp_path / "other"))
    sign_step(store, "total", signer=load_signer(str(tmp_path / "other")))
    result = verify(store, "total", keys=pair[1])
    assert states(result) == {"total": "wrong_key"} and "no trusted key" in result.findings[0].problems[0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"revoked": True}, "is revoked"),
        ({"until": dt.date(2020, 1, 1)}, "until 2020-01-01 only"),
        ({"since": dt.date(2099, 1, 1)}, "before 2099-01-01"),
        ({"since": dt.date(2020, 1, 1), "until": dt.date(2099, 1, 1)}, ""),
    ],
)
def test_a_key_counts_only_in_its_time(store, pair, limits, message):
    signer, keys = pair
    sign_step(store, "total", signer=signer)
    limited = TrustedKeys({signer.keyid: TrustedKey("k", keys.keys[signer.keyid].public, **limits)})
    (finding,) = verify(store, "total", keys=limited).findings
    assert finding.signature == ("wrong_key" if message else "valid")
    assert message in "".join(finding.problems)


def edit(path, change):
    with open(path) as file:
        data = json.load(file)
    change(data)
    with open(path, "w") as file:
        json.dump(data, file)


def tamper_record(layout, envelope):
    edit(layout.record, lambda data: data["result"].update(total=7))


def tamper_origin(layout, envelope):
    edit(layout.record, lambda data: data.update(licences=["MIT"]))


def tamper_manifest(layout, envelope):
    with open(layout.manifest, "a") as file:
        file.write('{"path": "more", "sha256": "00", "size": 0, "volatile": true}\n')


def tamper_payload(layout, envelope):
    edit(envelope, lambda data: data.update(payload=data["payload"][:-8] + "AAAA" + data["payload"][-4:]))


def tamper_signature(layout, envelope):
    edit(envelope, lambda data: data["signatures"][0].update(sig="A" * 86 + "=="))


def tear(layout, envelope):
    with open(envelope, "w") as file:
        file.write('{"payload": ')


@pytest.mark.parametrize(
    "tamper", [tamper_record, tamper_origin, tamper_manifest, tamper_payload, tamper_signature, tear]
)
def test_whatever_is_changed_afterwards_is_found(store, pair, tamper):
    signer, keys = pair
    sign_step(store, "total", signer=signer)
    layout = store.find("total").layout
    (name,) = os.listdir(os.path.join(layout.control, "signatures"))
    tamper(layout, os.path.join(layout.control, "signatures", name))
    result = verify(store, "total", keys=keys)
    assert states(result) == {"total": "tampered"} and result.findings[0].problems and not result.ok


def test_a_signature_of_one_output_is_none_of_another(store, pair):
    signer, keys = pair
    sign_step(store, "total", signer=signer)
    folders = [os.path.join(store.find(name).layout.control, "signatures") for name in ("total", "double")]
    os.rename(*folders)
    assert states(verify(store, "double", keys=keys))["double"] == "tampered"


def test_what_does_not_verify_is_not_signed(store, pair):
    with open(os.path.join(store.find("total").path, "sum.txt"), "w") as file:
        file.write("7")
    result, signed = sign_step(store, "double", signer=pair[0])
    assert not result.ok and signed == []
    assert not os.path.exists(os.path.join(store.find("double").layout.control, "signatures"))


def test_a_rebuilt_output_has_to_be_signed_again(store, pair):
    signer, keys = pair
    sign_step(store, "total", signer=signer)
    handle = ArtifactStep(
        "total", "2026.12.01", artifact_type=Total, run=lambda c: Total(total=8), build_config=lambda ctx: 1
    )
    assert run(handle, prefix=store.prefix, force=["total"]).ok
    assert states(verify(store, "total", keys=keys)) == {"total": "tampered"}
    sign_step(store, "total", signer=signer)
    assert states(verify(store, "total", keys=keys)) == {"total": "valid"}


def test_the_statement_is_an_in_toto_one_that_other_tools_can_read(store, pair):
    sign_step(store, "total", signer=pair[0])
    layout = store.find("total").layout
    (name,) = os.listdir(os.path.join(layout.control, "signatures"))
    path = os.path.join(layout.control, "signatures", name)
    with open(path) as file:
        envelope = Envelope.from_json(file.read(), path)
    signed = json.loads(envelope.payload)
    assert (envelope.payload_type, signed["_type"]) == (PAYLOAD_TYPE, STATEMENT_TYPE)
    assert signed["predicateType"] == PREDICATE_TYPE
    assert signed["subject"][0] == {
        "name": "total@2026.12.01",
        "digest": {"sha256": store.record("total").content_digest},
    }


def test_key_files_are_private_and_their_content_is_never_shown(tmp_path, store, caplog):
    path = tmp_path / "key"
    generate_pair(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().splitlines()[1]
    signer = load_signer(str(path))
    sign_step(store, "double", signer=signer, lineage=True)
    shown = repr(signer) + caplog.text + json.dumps(vars(signer), default=str)
    for folder, _, files in os.walk(store.prefix):
        for name in files:
            with open(os.path.join(folder, name)) as file:
                shown += file.read()
    assert secret not in shown
    with pytest.raises(KeyFileError, match="exists") as refused:
        generate_pair(str(path))
    assert secret not in str(refused.value)


def test_a_key_comes_from_a_reference_too(tmp_path, monkeypatch):
    keyid = generate_pair(str(tmp_path / "key"))
    monkeypatch.setenv("SIGNING_KEY", (tmp_path / "key").read_text())
    assert load_signer("env:SIGNING_KEY").keyid == keyid
    assert load_signer(f"file:{tmp_path}/key").keyid == keyid
    monkeypatch.setenv("SIGNING_KEY", "-----BEGIN PRIVATE KEY-----\nsecret-text\n-----END PRIVATE KEY-----")
    with pytest.raises(KeyFileError) as refused:
        load_signer("env:SIGNING_KEY")
    assert "secret-text" not in str(refused.value)


def test_keys_that_cannot_be_used_are_bad_input(tmp_path, pair):
    generate_pair(str(tmp_path / "open"))
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "text.pub").write_text("hello")
    for call, message in [
        (lambda: load_signer(str(tmp_path / "open")), "mode=0644"),
        (lambda: load_signer(str(tmp_path / "gone")), "No such file"),
        (lambda: load_signer("env:NO_SUCH_VARIABLE_HERE"), "NO_SUCH_VARIABLE_HERE"),
        (lambda: load_trusted_keys(str(tmp_path / "text.pub")), "no public key"),
        (lambda: load_trusted_keys(str(tmp_path / "key")), "holds a private key"),
        (lambda: load_trusted_keys(str(tmp_path / "gone.pub")), "No such file"),
    ]:
        with pytest.raises(KeyFileError, match=message):
            call()


def write_keys(tmp_path, text):
    public = (tmp_path / "key.pub").read_text()
    path = tmp_path / "trusted.toml"
    path.write_text(text.replace("PUBLIC", f"'''{public}'''"))
    return str(path)


def test_a_project_keeps_a_list_of_keys(tmp_path, pair):
    path = write_keys(tmp_path, "format = 1\n[[key]]\nname = 'a'\npublic = PUBLIC\nfrom = 2026-01-01\nrevoked = true\n")
    (key,) = load_trusted_keys(path).keys.values()
    assert (key.name, key.since, key.revoked) == ("a", dt.date(2026, 1, 1), True)
    assert list(load_trusted_keys(path).keys) == [key_id(key.public)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "format = 1"),
        ("format = 1\nkeys = 3\n", "'keys' is not known"),
        ("format = 1\n[[key]]\nname = 'a'\npublic = PUBLIC\nrevokd = true\n", "Did you mean 'revoked'"),
        ("format = 1\n[[key]]\nname = 'a'\npublic = PUBLIC\nuntil = 'soon'\n", "until is 'soon'"),
        ("format = 1\n[[key]]\nname = 'a'\n", "needs name and public"),
        ("format = 1\n[[key]]\nname = 'a'\npublic = 'x'\n", "no public key"),
        ("format = ", "not TOML"),
    ],
)
def test_a_list_of_keys_is_read_strictly(tmp_path, pair, text, message):
    with pytest.raises(KeyFileError, match=message):
        load_trusted_keys(write_keys(tmp_path, text))


def test_there_has_to_be_something_to_sign(store, pair, tmp_path):
    from marin.ledger.signatures import sign_output

    with pytest.raises(RecordNotFoundError):
        sign_output(StepLayout(str(tmp_path / "nothing")), pair[0])
    with pytest.raises(RecordNotFoundError):
        sign_step(store, "nothing", signer=pair[0])


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setattr("marin.ledger._adapters.ed25519.INSTALLED", False)
    with pytest.raises(UsageError, match=r"marin-core\[sign\]"):
        load_signer("key")


@given(st.text())
def test_no_text_makes_the_reader_of_envelopes_fail_otherwise(text):
    try:
        Envelope.from_json(text, "x")
    except CorruptRecordError:
        return
