"""Measurements of the product on a lab, with their goals; never part of the tests, which assert no wall-clock time."""
