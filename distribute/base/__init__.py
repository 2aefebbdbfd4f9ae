"""What the other rooms of ``distribute`` stand on: arrays, devices, values, reductions and contexts."""
