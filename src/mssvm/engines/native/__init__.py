"""The engine for CPUs: kernels in C++20, compiled ahead of time (``cpp/``), called through ctypes (``core.library``).

engine                                          the engine: what it can do, and by which of the modules below
exact                                           each instance by the cheapest method that is exact on it
forests, families, copies                       forests, several instances side by side
cutset, clustering, maps                        graphs that become forests if a variable is cut, or variables are joined
elimination                                     any graph
segments                                        semi-Markov models
messages, wiring, conditional                   belief propagation, and hidden trees given the outputs
chains, chain_layout, trws, anneal              the bound by chains, and labellings near it
features, terms, joined                         linear models, alone and joined with inference
"""
