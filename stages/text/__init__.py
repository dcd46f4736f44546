"""What text stages share: normalisation, words, shingles, sketches and exact similarity, as pure functions.

Kernels work on the offsets and bytes of Arrow's large_string arrays and make no Python object per document. numba is
imported by the modules that hold kernels, so stages import those when they are bound, not when they are registered:

    no numba     arrow  codepoints  keep  bands
    kernels      bits  normalise  words  shingles  sketch  components  resolve
"""
