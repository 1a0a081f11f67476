"""Documents from a data set on the Hugging Face hub, at a pinned revision.

The problem: "the same data set" is another one next month. The idea: resolve the revision to a commit first, record it,
download only the files that hold records, check their sizes, and hand them to the same reader that local files go
through. Needs the extra ``hf``; ``HF_ENDPOINT`` points it at a mirror or at a test server, ``HF_TOKEN`` opens gated
sets.
"""

from __future__ import annotations

import os
from dataclasses import replace

from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from marin.datakit.artifacts import DocumentCollection
from marin.datakit.download.local_files import collect_files
from marin.datakit.errors import SourceAccessError, SourceNotFoundError
from marin.datakit.recipe import CollectConfig
from marin.datakit.sources import JSONL_SUFFIXES, PARQUET_SUFFIXES, READABLE, TEXT_SUFFIXES


def collect_hub(config: CollectConfig) -> DocumentCollection:
    """Download a data set and turn it into documents.

    Args:
        config: What to download and where to write.
    Returns:
        The collection; ``source`` names the commit that the revision stood for.
    Raises:
        SourceNotFoundError: No such data set or revision, or it holds no readable file.
        SourceAccessError: The data set is gated or private and no token opens it.
    """
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN") or False)
    identity, revision = config.source.location, config.source.revision
    try:
        info = api.dataset_info(identity, revision=revision)
    except GatedRepoError as error:
        raise SourceAccessError(config.source.label) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise SourceNotFoundError(config.source.label, "an existing data set and revision") from error
    suffixes = JSONL_SUFFIXES + PARQUET_SUFFIXES + TEXT_SUFFIXES
    names = sorted(file.rfilename for file in info.siblings or () if file.rfilename.endswith(suffixes))
    if not names:
        raise SourceNotFoundError(config.source.label, READABLE)
    pinned = replace(config.source, revision=info.sha or revision)
    folder = f"{config.scratch_path}/hub"
    for name in names[: config.max_files]:
        api.hf_hub_download(identity, name, repo_type="dataset", revision=pinned.revision, local_dir=folder)
    return collect_files(replace(config, source=pinned), pattern=f"{folder}/**")
