"""Docstrings of the members: each names its own parameters, and placeholders stand for the text that all share.

``{structure}`` is the first parameter, ``{common}`` the parameters after a member's own and the attributes of a fitted
estimator, ``{example}`` a line that fits and predicts.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

STRUCTURE = """
structure : Structure
    The variables to label and their dependencies; None is ``Chain()``.
"""

COMMON = """
C : float
    Weight of the data against the regulariser; a sum over instances, as in the paper.
loss : None, "hamming", "zero", "spans", "zero-one" or a loss object
    Delta; None is the member's own (Hamming, or none for likelihoods).
solver : "auto", "lbfgs", "cccp", "bcfw", "cutting-plane", "subgradient", "adam" or a solver object
    "auto" is L-BFGS with exact inference and with "decompose". Members that maximise (eps_y = 0 or eps_h = 0) are then
    smoothed, with temperatures that fall to the one that predicts best; "lbfgs" goes on to the objective itself.
    With belief propagation "auto" is "bcfw" for members that maximise if every label is known ("cutting-plane" where
    minimum cuts prove the maxima), otherwise "adam": averaged subgradient descent with Adam's rates ("subgradient"
    has AdaGrad's).
inference : "auto", "exact", "decompose", "propagate", "toulbar2" or an inference object
    "auto" is exact wherever ``memory_limit`` allows. Elsewhere it is "decompose" on pairwise graphs (a convergent
    upper bound, in training and in prediction) and "propagate" (belief propagation) on other graphs and with solvers
    other than L-BFGS; ``status_`` says which.
    "toulbar2" (extra ``map``) maximises on loopy graphs, with proofs: for eps_y = eps_h = 0 (SSVM, LSSVM).
engine : "auto", "native", "torch" or an engine object
    What runs inference; results do not depend on it beyond rounding.
device : None or a PyTorch device such as "cuda"
    Short for ``engine=`` with the torch engine there; needs the extra ``torch``.
init : "auto", "zeros", "random", "hcrf" or an array of weights
    "auto" starts at zero, except weights of hidden variables, which start at small random values. "hcrf" starts
    from a short likelihood fit, which helps members that maximise when most labels are missing.
n_init : int
    Number of random starts; the lowest objective wins. Problems with one minimum are solved once.
class_weight : None, "balanced" or a dict
    Scales the loss of every site by the weight of its label. A likelihood has no loss, so there it scales
    each instance by the mean weight of its labels.
classes : iterable of labels
    All classes, where y may lack some or has whole numbers below zero as classes.
missing_label : label
    A value of y that stands for a missing label, beside ``MISSING``, None and NaN. Whole numbers below zero, such as
    -1 and -100, are refused unless they are named here or in ``classes``.
decode : "map", "marginal" or "auto"
    How ``predict`` and ``score`` decide by default: "map" takes the best output as a whole, hidden
    variables eliminated at eps_h, for which the objective bounds the loss; "marginal" the labels of least expected
    loss, for Hamming the most probable label of every site. "auto" is "marginal" for likelihoods (eps_y >= 1), and
    with eps_h >= 1 where inference in training was approximate, else "map"; "map" also for chains of BIO and BIOES
    tags, which must fit together to be chunks (docs/decoding.md has the evidence).
penalties : mapping of block of weights to strength
    Strength of the regulariser on some blocks, 1 on all others; 0 leaves a block unregularised.
l1_ratio : float
    Share rho of absolute values in the regulariser, sum_j strength_j ((1 - rho) w_j^2 / 2 + rho |w_j|): 0 is the
    paper's, 1 the lasso, values between the elastic net. Above 0 many weights become exactly 0, and the solver must
    be L-BFGS, which "auto" then chooses.
support : "all" or "seen"
    "seen" fixes at zero the weight of a sparse or named feature and a label that never occur together in training, as
    crfsuite does by default: of a large vocabulary only a small share of the weights remains.
max_iter, tol : int, float
    Iterations and tolerance of a solver given by name; None is its own.
memory_limit : int
    Bytes that exact inference may use.
n_jobs : int
    Threads of an engine given by name; None is one, -1 all cores. Results do not depend on it.
random_state : int, RandomState or None
    Seed or generator of random starts and solvers.
warm_start : bool
    Start from the weights of the last fit, and at the last temperature of L-BFGS. Classes and named features that are
    new get weights of their own. ``partial_fit`` continues without the earlier data.
annotators : Annotators or None
    With it, y holds the votes of several annotators (``mssvm.annotators.votes`` says how), and true labels are hidden:
    ``fit`` estimates the confusion table of every annotator, ``aggregate`` infers true labels from features and votes.
verbose : bool
    Keep a line of progress on the terminal.

Attributes
----------
classes_, coef_ : arrays
    The labels, in the order of probabilities, and the weights.
n_features_in_, n_iter_, objective_ : numbers
    Features of a site, recorded iterations, and the value that training reached.
history_ : record array
    One row per recorded iteration: objective, gap, calls, seconds, temperatures and more.
status_ : str
    How training ended and what inference it rests on, in a sentence.
training_ : dict
    The figures behind ``status_`` and ``diagnose()``.
temperatures_ : pair of floats
    Temperatures of outputs and hidden variables in probabilities, (1, eps_h) unless calibrated.
"""

EXAMPLE = """
>>> ms.{name}(ms.Chain({hidden}), random_state=0).fit(X, y).predict(X)[0].tolist()
['B', 'I', 'O']
"""

Class = TypeVar("Class", bound=type[Any])


def documented(cls: Class) -> Class:
    """Fill the placeholders in the docstring of an estimator (a class decorator)."""
    if cls.__doc__ is None:  # python -OO
        return cls
    hidden = "hidden=2" if cls.member.hidden else ""
    shared = {
        "{structure}": STRUCTURE,
        "{common}": COMMON,
        "{example}": EXAMPLE.format(name=cls.__name__, hidden=hidden),
    }
    text = inspect.cleandoc(cls.__doc__)
    for placeholder, paragraph in shared.items():
        text = text.replace(placeholder, paragraph.strip())
    cls.__doc__ = text
    return cls
