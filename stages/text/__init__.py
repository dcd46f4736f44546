"""What stages are made of: normalisation, words, shingles, exact similarity, rules and models, as pure functions.

Kernels work on the offsets and bytes of Arrow's large_string arrays and make no Python object per document. numba is
imported by the modules that hold kernels or call them, so stages import those when they are bound, not when they are
registered:

    no numba     arrow  bands  charges  codepoints  keep  sample
    duplicates   bits  utf8  normalise  words  shingles  sketch  components  greedy  resolve
    rules        rules and rules_*: chars  lines  ngrams  numbering  runs  words
    models       flatten  classifier  ngram  ngram_model
"""
