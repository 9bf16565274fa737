"""Hugging Face's `config.json`, without transformers: a file or a preset's name to a `Model` of attention layers."""

from iosim.integrations.models.load import load_model, preset_names

__all__ = ["load_model", "preset_names"]
