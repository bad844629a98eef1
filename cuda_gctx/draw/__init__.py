"""Drawing: bars, curves and timelines as SVG, from values. Measures nothing."""
