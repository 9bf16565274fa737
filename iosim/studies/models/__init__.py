"""A model's attention: its layers by kind, and what all of them together move and keep.

Not for files: where a model's numbers come from, `iosim.integrations.models` knows.
"""

from iosim.studies.models.layers import Latent, LayerKind, Model

__all__ = ["Latent", "LayerKind", "Model"]
