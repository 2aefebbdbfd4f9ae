"""Variables by which a pod of a job is told its part."""

ENDS_JOB = "ROPEWALK_ENDS_JOB"
"""Variable by which a container ends what is left of its job; any text: when it is over."""

HOLDS = "ROPEWALK_HOLDS"
"""Variable of containers whose pods a StatefulSet makes, which starts each again that ends: they
stay when their part is over."""

STATUS_OBJECT = "ROPEWALK_STATUS_OBJECT"
"""Variable with the name of the ConfigMap to which the chief writes the job's state."""
