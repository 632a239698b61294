"""Says whether what a class tells of its samples holds for a subclass."""

from __future__ import annotations


def goes_with_samples(kind: type, name: str) -> bool:
    """Returns True when the class has the attribute `name`, and no subclass of whoever defines that has defined
    __getitem__() anew: what the attribute says of samples may not hold for those."""
    definers = [next((each for each in kind.__mro__ if of in each.__dict__), None) for of in (name, "__getitem__")]
    of_name, of_samples = definers
    if of_name is None or of_samples is None:
        return of_name is not None
    return kind.__mro__.index(of_name) <= kind.__mro__.index(of_samples)
