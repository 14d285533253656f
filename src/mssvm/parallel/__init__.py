"""Training and prediction on a Dask cluster: wraps one thing, a ``Problem``.

    with ms.distributed("tcp://scheduler:8786") as cluster:
        data = ms.ShardedDataset("corpus/part-*.jsonl")
        clf = ms.HCRF(ms.Chain(hidden=2)).fit(data)

``store`` keeps a shard on the disk of the worker that read it, ``work`` is what workers do with it, ``problem`` the sum
of their answers as solvers see it, ``answers`` prediction, ``cluster`` the way to the workers. Nothing but ``cluster``
knows of Dask.
"""
