"""The cluster as data: who is in it, who this process is, where variables go, how the job
stands.
"""
