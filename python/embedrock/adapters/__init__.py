"""Other libraries over tables: a module for each, which imports its library when it is imported.

None of these libraries is needed by anything else in the package.
"""
