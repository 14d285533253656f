"""Message passing compiled by Numba: ``plan`` implements the protocol of ``engines.messages``.

``runs`` hold messages, by the kernels of ``scaled`` (probabilities, pairwise factors; ``vector`` and ``lanes`` write
its inner loop in vector registers), of ``abreast`` (the same for eight instances side by side where graph and tables
are shared; ``products`` writes its inner loop) or of ``log`` (any factor, any temperatures). ``conditional`` is exact
about hidden trees given the outputs, ``regions`` relabels whole regions, ``wiring`` holds the index arrays all of them
read.
"""
