"""Serving: what attention costs a generated token, for a model's shape on a GPU."""

from iosim.studies.decode.decode import DecodePoint, ModelShape, decode_point, sweep
from iosim.studies.decode.study import Decoding

__all__ = ["DecodePoint", "Decoding", "ModelShape", "decode_point", "sweep"]
