"""Results that show themselves: every face has the four functions."""

from __future__ import annotations

import importlib

from iosim.prediction.code import CodePrediction
from iosim.prediction.result import Prediction
from iosim.show.shown import Faced
from iosim.studies.compare import Choice, Comparison


def test_every_face_has_the_four_functions() -> None:
    for faced in (Prediction, CodePrediction, Comparison, Choice):
        assert issubclass(faced, Faced)
        face = importlib.import_module(faced._face)
        assert all(callable(vars(face)[name]) for name in ("line", "as_text", "parts", "panels"))
