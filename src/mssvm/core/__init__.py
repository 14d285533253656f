"""What every other package builds on, and what imports none of them.

power, entropy            the power sum, the operator everything is made of, and entropies
topology, components      graphs of variables and factors, batches of them, and their connected components
potentials, terms         scores and queries in, beliefs out; terms of linear models
segments                  semi-Markov models in the same arrays
orders                    elimination orders
library, threads          calls of the compiled library; a pool of threads
arrays                    names of array types; sums by group
caches, recycling         caches with a limit on their size; memory that is used again
errors, checks, memory    errors, and the checks of parameters and sizes that raise them
registry, params, files   names of classes and settings, and how they are written to files
progress, stopping        a line of progress; Ctrl-C and SIGTERM
text, collector           text that is safe to print; pausing the garbage collector
"""
