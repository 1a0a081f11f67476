"""The pages of the architectures name every tensor that the code maps, and run."""

import pathlib
import re
import runpy

import pytest
from levanter.compat.hf_checkpoints import config_class_of

RECIPE = runpy.run_path(str(pathlib.Path(__file__).parent / "golden" / "recipe.py"))
FOLDER = pathlib.Path(__file__).parents[3] / "docs/levanter"
PAGES = {
    "gpt2": "gpt2", "gpt2_scaled": "gpt2", "llama": "llama", "llama_biased_llama3": "llama", "llama_yarn": "llama",
    "llama_linear": "llama", "llama_dynamic": "llama", "mistral": "mistral", "qwen2": "qwen", "qwen3": "qwen",
    "gemma": "gemma", "gemma2": "gemma", "gemma3": "gemma", "olmo2": "olmo", "olmo3": "olmo", "apertus": "apertus",
}  # fmt: skip
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the pages are part of the repository, not of the package")


@pytest.mark.parametrize("case", sorted(PAGES))
def test_the_page_of_a_model_has_its_state_dict(case):
    page = (FOLDER / "models" / f"{PAGES[case]}.md").read_text()
    assert f"`{case}`" in page
    config, _, _, _ = RECIPE["load_case"](case)
    for slot in config_class_of(config["model_type"]).from_hf_config(config).state_dict_map():
        name = re.sub(r"\.(layers|h)\.\d+\.", r".\1.{i}.", slot.name)
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert rows, f"{name} is not on the page of {case}"
        ours = [leaf.path.replace("transformer.layers.stacked.", "stacked.") for leaf in slot.leaves]
        assert slot.constant is not None or any(all(path in row for path in ours) for row in rows), rows


@pytest.mark.parametrize("page", ["models/index.md", "adding-a-model.md"])
def test_the_code_of_the_pages_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), {"__name__": "documentation"})
