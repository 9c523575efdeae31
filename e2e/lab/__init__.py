"""The lab: real control planes, sidecars and tenant nodes on one machine, with only KubeVirt and CDI stood in for."""
