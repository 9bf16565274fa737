"""Floor 6, the verb: `predictor.predict` turns a problem, a kernel and a profile into a `result.Prediction`.

Imports the readers and all below. Not for loops over predictions: those are `studies`.
"""
