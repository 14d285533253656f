"""Training and prediction on a Dask cluster; solvers and estimators see a ``Problem`` as on one machine.

with ms.distributed("tcp://scheduler:8786") as cluster:
    data = ms.ShardedDataset("corpus/part-*.jsonl")
    clf = ms.HCRF(ms.Chain(hidden=2)).fit(data)

store      a shard as columns on the local disk of the worker that read it
work       the functions that run on workers: read shards, make blocks, evaluate them
problem    the training problem of solvers, a sum over workers
answers    prediction and comparison, shard by shard
cluster    submits functions to workers and survives their loss; the only module that imports Dask
"""
