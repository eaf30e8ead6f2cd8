"""Embedrock's laboratory: the benchmarks and the demo, which the installed package does not have.

``bench`` has a module for each benchmark, ``demo`` is what `embedrock demo` runs, ``measure`` what
both share: facts about the machine, rounds that wait for a quiet one, rows whose values follow from
their keys. ``commands`` has `embedrock bench` and `embedrock demo`. The package `embedrock` looks
for those, and knows nothing else of this one.
"""
