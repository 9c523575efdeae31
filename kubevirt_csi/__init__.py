"""CSI driver for Kubernetes clusters whose nodes are KubeVirt virtual machines."""
