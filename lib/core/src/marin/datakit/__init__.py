"""Curation: from source files to the documents that a tokenizer and a model are trained on.

The problem: most of what goes wrong with a model was already wrong in its text, and nobody can say afterwards which
rule removed which document. The idea: every stage is a pure function over sharded files whose output can be opened
alone, keeps the ids of its input, and reports what it lost::

    source files -> documents (jsonl.zst) -> normalised documents (Parquet) -> duplicate and contamination
      attributes beside them -> consolidated documents, split into train, validation and test

Stages: `marin.datakit.download` (fetch), `marin.datakit.normalize`, `marin.datakit.dedup`,
`marin.datakit.decontaminate`, `marin.datakit.consolidate`. `marin.datakit.sources` names where text comes from and
under which licence.
"""
