"""Reading mathematics as models and datasets write it: extraction, normal form, exact values, comparison.

Pure functions, no sympy, nothing evaluated: what cannot be read is refused, never partly matched.
"""
