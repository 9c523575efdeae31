"""Suites that take two kubeconfigs, so that they run on the lab and on nested kind alike."""
