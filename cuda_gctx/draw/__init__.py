"""Drawing: SM maps, timelines and tables from values. Measures nothing.

May use: nothing of the package.
"""
