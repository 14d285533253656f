"""Several annotators: crowd workers and labelling functions on real text, known annotators on simulated chains.

    python benchmarks/bench_annotators.py [--data FOLDER] [--parts crowd weak simulated scale] [--output FILE]

crowd      CoNLL-2003 documents tagged by 46 crowd workers. Settings are chosen by span F1 on the documents of even
           number and reported on the others; votes of all documents are used, gold tags of none. ``predict`` sees
           features alone, of documents whose votes were not used.
weak       NCBI-Disease and LaptopReview: labelling functions as annotators, training on unlabelled text and votes, span
           F1 on the validation part. A function that marks nothing votes "O".
simulated  chains with known confusion tables: errors of tables and of labels against the number of votes.
scale      1,000 annotators and a million votes, in seconds.

Majority and Dawid-Skene run beside it; crowd-kit's aggregators and skweak's hidden Markov model run in environments of
their own (``environments.py``).
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import time
import warnings
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from environments import Unavailable, python_of

import mssvm as ms
from mssvm.annotators import dawid_skene, majority
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.arrays import Floats
from mssvm.data.labels import LabelVocabulary
from mssvm.data.metrics import span_f1
from mssvm.data.metrics import spans as spans_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "annotators.json"
DATA = HERE.parents[1] / "shared" / "data"
PENALTIES = {"bias": 0.001, "transition": 0.01}  # what is common is learned freely, what is rare is not
Tags = list[list[str]]


@dataclass(frozen=True)
class Setting:
    """What is chosen on one half of the documents."""

    strength: float
    diagonal: float
    weight: float
    C: float
    rounds: int
    context: str = "auto"

    def estimator(self, classes: list[str]) -> Any:
        annotators = ms.Annotators(
            context=self.context,
            strength=self.strength,
            diagonal=self.diagonal,
            weight=self.weight,
            max_iter=self.rounds,
        )
        chain = ms.Chain(forbidden=illegal_pairs(classes))
        return ms.HCRF(chain, C=self.C, annotators=annotators, classes=classes, penalties=PENALTIES, random_state=0)


GRID = [
    Setting(strength, diagonal, weight, 0.01, rounds)
    for strength, diagonal, weight, rounds in product((20.0, 60.0), (50.0, 500.0), (1.0, 0.6), (2, 4))
]


def illegal_pairs(classes: list[str]) -> list[tuple[str, str]]:
    """Pairs of BIO tags that cannot follow each other: I without a B or I of its type before it."""
    pairs = []
    for before, after in product(classes, classes):
        if after.startswith("I-") and before[2:] != after[2:]:
            pairs.append((before, after))
    return pairs


# ------------------------------------------------------------------------------------------------------------ features


def word_shape(word: str) -> str:
    """Capitals, small letters and digits of a word, runs of the same kind once."""
    shape = ""
    for character in word:
        if character.isupper():
            kind = "A"
        elif character.islower():
            kind = "a"
        elif character.isdigit():
            kind = "0"
        else:
            kind = character
        if not shape.endswith(kind):
            shape += kind
    return shape


def features(words: list[str]) -> list[dict[str, float]]:
    """Words, affixes and shapes of every token and of two on either side."""
    out = []
    for i, word in enumerate(words):
        names = [f"word={word}", f"lower={word.lower()}", f"shape={word_shape(word)}"]
        lower = word.lower()
        names += [f"suffix={word[-3:]}", f"suffix={word[-2:]}", f"prefix={word[:3]}", f"prefix={word[:2]}"]
        names += [f"suffix={lower[-4:]}", f"prefix={lower[:4]}", f"prefix={lower[:5]}"]
        for step in (-2, -1, 1, 2):
            inside = 0 <= i + step < len(words)
            other = words[i + step] if inside else ""
            names += [f"{step}:lower={other.lower()}", f"{step}:shape={word_shape(other)}"]
        out.append(dict.fromkeys(names, 1.0))
    return out


def f1(found: Any, gold: Tags) -> float:
    return 100 * float(span_f1(gold, [list(map(str, tags)) for tags in found]))


def flat_votes(votes: Any, classes: list[str], sizes: list[int]) -> Votes:
    return Votes.encode(RawVotes.parse(votes, 1), np.array(sizes), LabelVocabulary(tuple(classes)))


def tags_of(posterior: Floats, classes: list[str], sizes: list[int]) -> Tags:
    states = posterior.argmax(axis=1)
    ends = np.cumsum(sizes)
    return [[classes[k] for k in states[end - size : end]] for end, size in zip(ends, sizes, strict=True)]


# --------------------------------------------------------------------------------------------------------------- crowd


def read_crowd(data: Path) -> tuple[list[list[str]], list[dict[str, list[Any]]], Tags, list[int]]:
    """Sentences, votes, gold tags, and the number of the document of every sentence."""
    words: list[list[str]] = []
    votes: list[dict[str, list[Any]]] = []
    gold: Tags = []
    document_of: list[int] = []
    with gzip.open(data / "crowd_ner" / "val.jsonl.gz", "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            document = json.loads(line)
            for s, sentence in enumerate(document["words"]):
                words.append(sentence)
                gold.append(document["gold"][s])
                document_of.append(number)
                given = {name: tags[s] for name, tags in document["crowd"].items() if tags[s] is not None}
                votes.append(given)
    return words, votes, gold, document_of


def crowd(data: Path) -> dict[str, Any]:
    words, votes, gold, document_of = read_crowd(data)
    classes = ["O", *(f"{part}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for part in "BI")]
    X = [features(sentence) for sentence in words]
    even = [b for b, number in enumerate(document_of) if number % 2 == 0]
    odd = [b for b, number in enumerate(document_of) if number % 2 == 1]

    def on(which: list[int], found: Any) -> float:
        return f1([found[b] for b in which], [gold[b] for b in which])

    sizes = [len(sentence) for sentence in words]
    rows: dict[str, Any] = {}
    for name, found in (("majority", majority(votes)), ("dawid-skene", dawid_skene(votes))):
        rows[name] = {"chosen on": on(even, found), "reported on": on(odd, found)}
    tried = []
    best: tuple[float, Setting, Any] | None = None
    for setting in GRID:
        fitted = quiet_fit(setting.estimator(classes), X, votes)
        found = fitted.aggregate(X, votes)
        tried.append({**vars(setting), "chosen on": on(even, found), "reported on": on(odd, found)})
        print(tried[-1], flush=True)
        if best is None or tried[-1]["chosen on"] > best[0]:
            best = (tried[-1]["chosen on"], setting, found)
    assert best is not None
    rows["aggregate"] = {"chosen on": on(even, best[2]), "reported on": on(odd, best[2]), **vars(best[1])}
    site_by_site = quiet_fit(replace(best[1], context="none").estimator(classes), X, votes).aggregate(X, votes)
    rows["aggregate, context none"] = {"chosen on": on(even, site_by_site), "reported on": on(odd, site_by_site)}
    half = quiet_fit(best[1].estimator(classes), [X[b] for b in even], [votes[b] for b in even])
    predicted = half.predict([X[b] for b in odd])
    rows["predict, votes of the other half"] = {"reported on": f1(predicted, [gold[b] for b in odd])}
    freer = quiet_fit(replace(best[1], C=0.3).estimator(classes), [X[b] for b in even], [votes[b] for b in even])
    rows["predict, C = 0.3"] = {"reported on": f1(freer.predict([X[b] for b in odd]), [gold[b] for b in odd])}
    rows["peers"] = peers(
        votes, classes, sizes, lambda found: {"chosen on": on(even, found), "reported on": on(odd, found)}
    )
    as_spans = span_votes(words, votes)
    reported = [as_spans[b] for b in odd]
    rows["peers"]["skweak HMM"] = {
        "reported on": skweak_f1(as_spans, reported, ["PER", "LOC", "ORG", "MISC"], [gold[b] for b in odd])
    }
    return {"rows": rows, "tried": tried, "published": {"majority": 65.4, "HMM-crowd": 74.2, "BSC-seq": 77.4}}


def quiet_fit(estimator: Any, X: Any, votes: Any) -> Any:
    """Rounds are a setting here, so that their end is no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, votes)


PEER = """
import json, sys
import pandas
from crowdkit import aggregation
task = json.load(open(sys.argv[1]))
frame = pandas.DataFrame(task["votes"], columns=["worker", "task", "label"])
out = {}
for name in ("MajorityVote", "DawidSkene", "MACE", "GLAD"):
    found = getattr(aggregation, name)().fit_predict(frame)
    out[name] = [str(found.get(k, "O")) for k in range(task["sites"])]
json.dump(out, open(sys.argv[2], "w"))
"""


# Spans of every function become spans of a spaCy document; the answer is read back as spans.
SKWEAK = """
import json, sys
from skweak.generative import HMM
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab
task = json.load(open(sys.argv[1]))
vocab = Vocab()
def document(words, functions):
    doc = Doc(vocab, words=words)
    for name, spans in functions.items():
        doc.spans[name] = [Span(doc, start, stop, label=kind) for start, stop, kind in spans]
    return doc
model = HMM("aggregated", task["kinds"])
docs = [document(*item) for item in task["train"]]
model.fit(docs)
out = []
for item in task["test"]:
    doc = model(document(*item))
    out.append([[span.start, span.end, span.label_] for span in doc.spans["aggregated"]])
json.dump(out, open(sys.argv[2], "w"))
"""


def run_peer(environment: str, program: str, task: Any) -> Any:
    """The answer of a program in a peer's environment; raises ``Unavailable`` where it has none."""
    python = python_of(environment)
    folder = HERE.parent / "build" / "annotators"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.json").write_text(json.dumps(task))
    (folder / "peer.py").write_text(program)
    command = [str(python), str(folder / "peer.py"), str(folder / "in.json"), str(folder / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads((folder / "out.json").read_text())


def skweak_f1(train: Any, test: Any, kinds: list[str], gold: Tags) -> float | str:
    """Span F1 of skweak's hidden Markov model, fitted to the spans of ``train``: (words, spans by function)."""
    try:
        found = run_peer("skweak", SKWEAK, {"train": train, "test": test, "kinds": kinds})
    except Unavailable as reason:
        return str(reason)
    return f1([bio(spans, len(tags)) for spans, tags in zip(found, gold, strict=True)], gold)


def span_votes(words: Any, votes: Any) -> list[tuple[list[str], dict[str, list[tuple[int, int, str]]]]]:
    """Words and votes as spans by annotator."""
    out = []
    for sentence, given in zip(words, votes, strict=True):
        by_name = {name: spans_of([tag or "O" for tag in tags]) for name, tags in given.items()}
        out.append((sentence, by_name))
    return out


def peers(votes: Any, classes: list[str], sizes: list[int], score: Any) -> dict[str, Any]:
    """crowd-kit's aggregators, site by site (it has none for sequences)."""
    flat = flat_votes(votes, classes, sizes)
    triples = [
        [str(flat.names[a]), int(site), classes[k]]
        for a, site, k in zip(flat.annotator, flat.site, flat.label, strict=True)
    ]
    try:
        found = run_peer("crowdkit", PEER, {"votes": triples, "sites": flat.n_sites})
    except Unavailable as reason:
        return {"crowd-kit": str(reason)}
    out = {}
    for name, labels in found.items():
        ends = np.cumsum(sizes)
        tags = [labels[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        out[f"crowd-kit {name}"] = score(tags)
    return out


# ---------------------------------------------------------------------------------------------------------------- weak


def read_weak(path: Path) -> tuple[list[list[str]], list[dict[str, list[str]]], Tags]:
    words: list[list[str]] = []
    votes: list[dict[str, list[str]]] = []
    gold: Tags = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            n = len(row["words"])
            words.append(row["words"])
            gold.append(bio(row["gold"], n))
            votes.append({f"f{k}": bio(spans, n) for k, spans in enumerate(row["weak"])})
    return words, votes, gold


def bio(spans: list[list[Any]], n: int) -> list[str]:
    """Spans [start, stop, type] as BIO tags."""
    tags = ["O"] * n
    for start, stop, kind in spans:
        tags[start] = f"B-{kind}"
        for i in range(start + 1, stop):
            tags[i] = f"I-{kind}"
    return tags


def weak(data: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ("NCBI-Disease", "LaptopReview"):
        words, votes, gold = read_weak(data / "weak_ner" / f"{name}_train.jsonl.gz")
        held_words, held_votes, held_gold = read_weak(data / "weak_ner" / f"{name}_valid.jsonl.gz")
        voted = {tag for sentence in votes for tags in sentence.values() for tag in tags}
        classes = sorted(voted, key=lambda tag: (tag != "O", tag))
        X = [features(sentence) for sentence in words]
        held_X = [features(sentence) for sentence in held_words]
        sizes = [len(sentence) for sentence in held_words]
        flat = flat_votes(held_votes, classes, sizes)
        rows: dict[str, Any] = {}
        rows["majority"] = f1(majority(held_votes), held_gold)
        rows["dawid-skene"] = f1(dawid_skene(held_votes), held_gold)
        marked = flat.counts()
        marked[:, 0] = np.where(marked[:, 1:].sum(axis=1) > 0, 0.0, 1.0)
        rows["majority of those that mark something"] = f1(tags_of(marked, classes, sizes), held_gold)
        kinds = sorted({tag[2:] for tag in classes if tag != "O"})
        rows["skweak HMM"] = skweak_f1(span_votes(words, votes), span_votes(held_words, held_votes), kinds, held_gold)
        supervised = ms.CRF(ms.Chain(), C=1.0).fit(X, gold)
        rows["supervised CRF: predict, trained on gold tags"] = f1(supervised.predict(held_X), held_gold)
        for C, context in ((0.3, "auto"), (0.3, "none"), (2.0, "none")):
            fitted = quiet_fit(Setting(20.0, 50.0, 1.0, C, 6, context).estimator(classes), X, votes)
            rows[f"C = {C}, context {context}"] = {
                "aggregate": f1(fitted.aggregate(held_X, held_votes), held_gold),
                "predict": f1(fitted.predict(held_X), held_gold),
            }
            print(name, C, context, rows[f"C = {C}, context {context}"], flush=True)
        out[name] = rows
    return out


# ----------------------------------------------------------------------------------------------------------- simulated


def simulated(data: Path) -> list[dict[str, Any]]:
    rows = []
    for n_chains, signal in product((25, 100, 400, 1600), (0.0, 1.0)):
        table_errors = []
        gains = []
        for seed in range(5):
            drawn = ms.annotators.simulate(n_chains, 10, 3, (0.8, 0.7, 0.6, 0.2), signal=signal, seed=seed)
            settings = ms.Annotators(context="none", strength=1.0, diagonal=1.0, max_iter=30)
            clf = quiet_fit(ms.HCRF(ms.Chain(), annotators=settings, random_state=0), drawn.X, drawn.votes)
            tables = np.stack([row.confusion for row in clf.annotators_])
            table_errors.append(float(np.sqrt(np.mean((tables - drawn.tables) ** 2))))
            truth = np.concatenate(drawn.truth)
            mine = np.mean(np.concatenate(clf.aggregate(drawn.X, drawn.votes)) == truth)
            gains.append(float(mine - np.mean(np.concatenate(dawid_skene(drawn.votes)) == truth)))
        rows.append(
            {
                "votes": 40 * n_chains,
                "signal": signal,
                "table error": float(np.mean(table_errors)),
                "accuracy above Dawid-Skene": float(np.mean(gains)),
            }
        )
        print(rows[-1], flush=True)
    return rows


def scale(data: Path) -> dict[str, Any]:
    """1,000 annotators, each on ten of 10,000 chains of 100 sites: a million votes."""
    rng = np.random.default_rng(0)
    tables = [a * np.eye(3) + (1 - a) / 2 * (1 - np.eye(3)) for a in rng.uniform(0.4, 0.95, 1000)]
    drawn = ms.annotators.simulate(10_000, 100, 3, (), seed=0)
    votes = []
    for b, truth in enumerate(drawn.truth):
        name = b % 1000
        uniform = rng.random(100)
        cumulative = tables[name].cumsum(axis=1)[truth]
        votes.append({f"a{name}": (uniform[:, None] > cumulative).sum(axis=1).clip(0, 2)})
    began = time.perf_counter()
    clf = ms.HCRF(ms.Chain(), annotators=ms.Annotators(context="none"), n_jobs=-1, random_state=0)
    quiet_fit(clf, drawn.X, votes)
    found = clf.aggregate(drawn.X, votes)
    return {
        "seconds": time.perf_counter() - began,
        "votes": 1_000_000,
        "annotators": 1000,
        "accuracy": float(np.mean(np.concatenate(found) == np.concatenate(drawn.truth))),
        "accuracy of the votes": float(
            np.mean(np.concatenate([next(iter(v.values())) for v in votes]) == np.concatenate(drawn.truth))
        ),
    }


PARTS = {"crowd": crowd, "weak": weak, "simulated": simulated, "scale": scale}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept = json.loads(options.output.read_text()) if options.output.is_file() else {}
    for part in options.parts:
        kept[part] = PARTS[part](options.data)
        options.output.write_text(json.dumps(kept, indent=1))
        print(json.dumps(kept[part], indent=1)[:3000])


if __name__ == "__main__":
    main()
