"""Training a transformer on one GPU: memory by tensor and over time, step time, and what fits.

A `Decoder` and a `Setup` are planned into a `Graph` of nodes; readers add up what autograd keeps (`saved_storages`),
play the allocations (`timeline`) and add seconds (`step_time`). `predict_training` runs them all; `frontier` maps what
fits.
"""

from iosim.studies.training.frontier import Frontier, frontier, longest_sequence
from iosim.studies.training.graph import Kind
from iosim.studies.training.model import Decoder, Setup
from iosim.studies.training.plan import plan
from iosim.studies.training.prediction import TrainingPrediction, predict_training

__all__ = [
    "Decoder",
    "Frontier",
    "Kind",
    "Setup",
    "TrainingPrediction",
    "frontier",
    "longest_sequence",
    "plan",
    "predict_training",
]
