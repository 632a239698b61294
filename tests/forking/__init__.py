"""Interpreters that tests start, forked from one that has imported torch: each would import it anew, which takes two
seconds of CPU.

What runs is the product's own code in a process of its own, a child of the test's. Tests that are about how an
interpreter begins are marked `executed`.
"""
