"""The control plane, hosted by the chief: membership and the state of the job."""
