"""F1 of chunks by seqeval: reads {lines: [...]}, the true tag in the last column but one and the predicted one last."""

import json
import sys

from seqeval.metrics import f1_score, precision_score, recall_score

with open(sys.argv[1]) as file:
    lines = json.load(file)["lines"]
gold = [[]]
said = [[]]
for line in lines:
    columns = line.split()
    if not columns:
        gold.append([])
        said.append([])
        continue
    gold[-1].append(columns[-2])
    said[-1].append(columns[-1])
figures = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
print(json.dumps({name: 100 * float(figure(gold, said)) for name, figure in figures.items()}))
