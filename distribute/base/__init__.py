"""The base of ``distribute``: arrays, devices, values, reductions and contexts."""
