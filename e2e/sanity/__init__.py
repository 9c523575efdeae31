"""csi-sanity against the driver with real mounts: what it must advertise, and what may be skipped, is a committed list.

`python -m e2e.sanity` starts a lab with loop machines, runs csi-sanity for mount and block volumes, and compares.
"""
