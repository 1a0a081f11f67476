"""What was not committed when a step ran is kept beside the ledger, once, without secrets."""

import base64
import os
import random
import shutil
import subprocess
import sys

import pytest
from marin.execution.patch_redaction import redact_patch
from marin.execution.patches import patch_path
from marin.execution.records import read_record

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="patches need git")

SCRIPT = """
from marin.execution import ArtifactStep, run
def nothing(config):
    return None
NUMBER = 1
summary = run(ArtifactStep("a", "2026.12.01", run=nothing, build_config=lambda ctx: NUMBER), prefix=PREFIX)
print(summary.outcome("a").path)
"""


def git(folder, *arguments):
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "run.py").write_text(SCRIPT.replace("PREFIX", repr(str(tmp_path / "store"))))
    git(folder, "add", "run.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def provenance(folder):
    env = {key: value for key, value in os.environ.items() if key != "MARIN_PROVENANCE"}
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return read_record(done.stdout.strip()).provenance


def test_a_clean_working_copy_has_no_patch(repository):
    data = provenance(repository)
    assert not data["dirty"] and "patch" not in data and data["command_line"][-1] == "run.py"


def test_the_patch_of_a_dirty_one_gives_the_code_back(repository, tmp_path):
    text = (repository / "run.py").read_text().replace("NUMBER = 1", "NUMBER = 2")
    (repository / "run.py").write_text(text)
    data = provenance(repository)
    assert data["dirty"] and data["patch_redacted"] is False
    path = patch_path(str(tmp_path / "store"), data["patch"])
    git(repository, "checkout", "-q", data["base_commit"], "--", "run.py")
    git(repository, "apply", path)
    assert (repository / "run.py").read_text() == text


def test_a_secret_in_uncommitted_code_is_not_kept(repository, tmp_path):
    key = "hf_" + "Ab3dEf6hIj9lMn2pQr5t"
    with open(repository / "run.py", "a") as file:
        file.write(f"TOKEN = {key!r}\n")
    data = provenance(repository)
    with open(patch_path(str(tmp_path / "store"), data["patch"])) as file:
        kept = file.read()
    assert data["patch_redacted"] is True and key not in kept and "[REDACTED]" in kept


PLAIN = """
def token_of(tokenizer, auth_header):
    token = tokenizer.next(auth=auth_header)
    password = getpass.getpass()
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    return test_that_a_name_of_100_letters_is_no_key_even_when_it_is_very_long_2(token, max_tokens=100)
"""
LOCK = 'wheel = { hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" }\n'
NAMED = "hunter22"
SHAPED = "hf_" + "Ab3dEf6hIj9lMn2pQr5t"
RANDOM = base64.b64encode(random.Random(1).randbytes(36)).decode()
KEY = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(RANDOM[:24] for _ in range(3)) + "\n-----END PRIVATE KEY-----\n"


def dirty(folder, changes):
    """The patch of a working copy after these files were written, and what they held before."""
    for name, text in changes.items():
        (folder / name).write_text(text)
    git(folder, "add", "-N", ".")
    return git(folder, "diff", "HEAD", "--binary")


def applied(folder, patch):
    """What git makes of the commit and a patch."""
    git(folder, "reset", "-q", "--hard", "HEAD")
    git(folder, "clean", "-f", "-d", "-q")
    (folder.parent / "kept.patch").write_text(patch)
    git(folder, "apply", str(folder.parent / "kept.patch"))


def test_code_without_secrets_is_kept_to_the_letter_however_suspicious(repository):
    changes = {"run.py": PLAIN + SCRIPT, "uv.lock": LOCK, "no newline.py": "token = 1"}
    (repository / "image.bin").write_bytes(b"\0" + random.Random(2).randbytes(500))
    git(repository, "add", "image.bin")
    kept = redact_patch(patch := dirty(repository, changes))
    assert kept.text == patch and kept.applies and not kept.redacted
    applied(repository, kept.text)
    assert {name: (repository / name).read_text() for name in changes} == changes


def test_secrets_in_added_lines_go_and_the_patch_still_applies(repository):
    changes = {
        "run.py": SCRIPT + f"PASSWORD: str = '{NAMED}'\nclient(api_key=\"{NAMED}\", x='{RANDOM}')  # {SHAPED}\n"
        f'SETTINGS = """\nHF_TOKEN={NAMED}\n{RANDOM}\n{KEY}"""\nlast = 1\n',
        ".env": f"HF_TOKEN={NAMED}\n",
        "config.yaml": f"password: {NAMED}\nsteps: 100\n",
    }
    kept = redact_patch(dirty(repository, changes))
    assert kept.redacted and kept.applies
    assert not [secret for secret in (NAMED, SHAPED, RANDOM, RANDOM[:24]) if secret in kept.text]
    applied(repository, kept.text)
    code = (repository / "run.py").read_text()
    assert code.startswith(SCRIPT.split("PREFIX")[0][:30]) and code.endswith("last = 1\n")
    assert len(code.splitlines()) == len(changes["run.py"].splitlines())
    assert (repository / "config.yaml").read_text() == "password: [REDACTED]\nsteps: 100\n"


def test_a_committed_secret_beside_a_change_is_not_kept_either_and_the_record_says_it_does_not_apply(repository):
    (repository / "run.py").write_text(f"TOKEN = {NAMED!r}\n")
    git(repository, "commit", "-q", "-a", "-m", "oh no")
    kept = redact_patch(dirty(repository, {"run.py": f"TOKEN = {NAMED!r}\nMORE = 1\n"}))
    assert NAMED not in kept.text and kept.redacted and not kept.applies
    with pytest.raises(subprocess.CalledProcessError):
        applied(repository, kept.text)
