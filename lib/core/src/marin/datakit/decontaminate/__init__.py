"""Decontamination: marks beside the documents that repeat the text of an evaluation suite.

The problem: a model that has read its exam is not measured by it, and exact matching misses an item inside a longer
page. The idea: evaluation texts and documents are cut into the same hashed n-grams; a document is condemned when one of
its paragraphs consists, by half or more, of n-grams of a suite. The marks say which, and `marin.datakit.consolidate`
drops what they condemn.

`features` (the kernel) <- `eval_index` (hashes of the suites) <- `drop_sets` (n-grams that are common language) and
`mark` (the attributes). What is given away: a leak that is a small part of one long paragraph stays under the
threshold, and so does one with an edit in every 13 tokens; hits below the threshold are in the marks all the same.
"""
