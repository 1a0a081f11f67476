import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from infra.isolated_test import clean_environment, main, prove_origin, write_pytest_config
from infra.workspace import ROOT

FILES = {
    "fray/__init__.py": '"""fray."""\n',
    "marin_fray-0.1.0.dist-info/METADATA": "Metadata-Version: 2.3\nName: marin-fray\nVersion: 0.1.0\n",
    "marin_fray-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\n",
}


def record(files: dict[str, str]) -> str:
    def digest(text: str) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()

    return "".join(f"{name},sha256={digest(text)},{len(text)}\n" for name, text in files.items())


def make_wheel(folder: Path) -> Path:
    path = folder / "marin_fray-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr("marin_fray-0.1.0.dist-info/RECORD", record(FILES))
    return path


def make_site(folder: Path, wheel: Path | None) -> Path:
    """A site-packages folder with the wheel unpacked; without ``wheel`` it looks fetched from an index."""
    site = folder / "site"
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    if wheel is not None:
        origin = {"url": wheel.as_uri(), "archive_info": {}}
        (site / "marin_fray-0.1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    return site


def add_distribution(site: Path, name: str) -> None:
    folder = site / f"{name.replace('-', '_')}-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {name}\nVersion: 9.9\n")


def test_our_own_wheel_passes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert prove_origin(make_site(tmp_path, wheel), {"marin-fray": wheel}, ["levanter"]) == (3, [])


def test_a_distribution_from_an_index_is_caught_even_with_equal_files(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    _, problems = prove_origin(make_site(tmp_path, None), {"marin-fray": wheel}, [])
    assert len(problems) == 1 and "came from the index" in problems[0]


def test_a_file_that_differs_from_the_wheel_is_caught(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    site = make_site(tmp_path, wheel)
    (site / "fray/__init__.py").write_text("changed = True\n")
    _, problems = prove_origin(site, {"marin-fray": wheel}, [])
    assert problems == [
        "marin-fray: installed fray/__init__.py differs from the wheel marin_fray-0.1.0-py3-none-any.whl"
    ]


def test_a_sibling_that_nobody_declared_is_caught(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    site = make_site(tmp_path, wheel)
    add_distribution(site, "marin-iris")
    _, problems = prove_origin(site, {"marin-fray": wheel}, [])
    assert len(problems) == 1 and "marin-iris 9.9" in problems[0]


def test_a_foreign_distribution_under_one_of_our_import_names_is_caught(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    site = make_site(tmp_path, wheel)
    add_distribution(site, "levanter")
    _, problems = prove_origin(site, {"marin-fray": wheel}, ["levanter", "fray"])
    assert len(problems) == 1 and "levanter 9.9" in problems[0]


def test_a_missing_distribution_is_caught(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    (tmp_path / "site").mkdir()
    _, problems = prove_origin(tmp_path / "site", {"marin-fray": wheel}, [])
    assert problems == ["marin-fray is not installed"]


def test_the_run_sees_nothing_of_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "lib"))
    monkeypatch.setenv("VIRTUAL_ENV", str(ROOT / ".venv"))
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}:/usr/bin")
    environment = clean_environment(Path("/scratch/bin"))
    assert environment["PATH"] == "/scratch/bin:/usr/bin"
    assert "PYTHONPATH" not in environment and "VIRTUAL_ENV" not in environment


def test_the_pytest_settings_of_the_root_are_taken_over(tmp_path: Path) -> None:
    text = write_pytest_config(tmp_path).read_text()
    assert "filterwarnings = \n    error" in text
    assert "--import-mode=importlib" in text and "testpaths = \n    tests" in text


@pytest.mark.parametrize(("arguments", "expected"), [(["nothing"], "unknown packages"), ([], "no package named")])
def test_wrong_use_says_what_is_known(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert expected in error and "rigging" in error and "hint:" in error
