"""The paper's experiments, run with the structures and estimators that users call, and comparisons on users' own data.

``protocol`` reads what is fixed in ``protocol.toml``; ``simulate``, ``segmentation`` and ``msrc`` make data as users
give them, ``members`` trains the estimators that are compared. Each table or figure has a file with its trial and its
part of the report, built on ``collect`` (looking up trials, claims) and ``statistics``; ``catalogue`` lists them,
``trials`` runs and stores them, ``reproduce`` does it all. ``comparison`` is ``mssvm compare``.
"""
