"""Training and policies as most tests want them: without bars and pictures, and all share what is compiled."""

from functools import partial

from agents import placing, training
from agents.learner import KeptLearner

KEPT = KeptLearner()
train = partial(training.train, progress=False, pictures=False, kept=KEPT)
load_policy = partial(placing.load_policy, kept=placing.KeptSamplers())
