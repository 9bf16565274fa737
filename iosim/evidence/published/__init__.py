"""Tables that others published, each as its author wrote it, beside predictions: `iosim validate --published`.

`forms.toml` says what the columns of each form mean; `tables` reads rows by it, `judge` predicts them and sums errors
up by GPU. Nothing here reaches a prediction.
"""
