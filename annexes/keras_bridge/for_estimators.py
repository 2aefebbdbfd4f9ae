"""Models of Keras for an Estimator, which shares a new copy of one in each training."""

from .model import distribute
from .shared_variables import share_anew

__all__ = ["distribute", "share_anew"]
